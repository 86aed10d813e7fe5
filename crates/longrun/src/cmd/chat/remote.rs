//! A server that speaks OpenAI's chat completions.
//!
//! Owns its address and key. Refuses to follow it anywhere else, so that the key stays with it.

use std::io::Read;
use std::time::Duration;

use longrun_lm::{Error, Kind, Result};
use serde_json::Value;
use ureq::Agent;
use ureq::http::header;
use ureq::tls::TlsConfig;

use super::backend::{Chunks, refused};
use crate::hub;

/// How long a connection may take. An answer may take any time.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a list of models at most.
const MOST_BYTES: u64 = 4 << 20;

pub(super) struct Remote {
    agent: Agent,
    /// With `/v1` at its end.
    base: String,
    key: Option<String>,
    model: String,
}

impl Remote {
    /// # Errors
    /// It is no address, it can't be reached, it wants another key, or it has no model.
    pub(super) fn open(url: &str, key: Option<String>, model: Option<String>) -> Result<Self> {
        if !(url.starts_with("http://") || url.starts_with("https://")) {
            let error = Error::usage(format!("{url:?} is no address")).at("--server");
            return Err(error.hint("write it as http://HOST:PORT"));
        }
        let base = url.trim_end_matches('/');
        let base = if base.ends_with("/v1") { base.to_owned() } else { format!("{base}/v1") };
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("longrun/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(PATIENCE))
            .timeout_connect(Some(PATIENCE));
        if let Some(certificates) = hub::certificates()? {
            config = config.tls_config(TlsConfig::builder().root_certs(certificates).build());
        }
        let agent = config.build().into();
        let mut remote = Self { agent, base, key, model: model.unwrap_or_default() };
        if remote.model.is_empty() {
            remote.model = remote.first_model()?;
        }
        Ok(remote)
    }

    pub(super) fn name(&self) -> String {
        format!("{} at {}", self.model, self.base)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.key.as_deref().unwrap_or("none"))
    }

    fn unreachable(&self, why: &dyn std::fmt::Display) -> Error {
        let what = format!("{} can't be reached ({why})", self.base);
        Error::new(Kind::Device, what).at("--server")
    }

    fn first_model(&self) -> Result<String> {
        let request = self.agent.get(format!("{}/models", self.base));
        let response = request.header(header::AUTHORIZATION, self.bearer()).call();
        let response = response.map_err(|e| self.unreachable(&e))?;
        let status = response.status().as_u16();
        let mut bytes = Vec::new();
        let read = response.into_body().into_reader().take(MOST_BYTES).read_to_end(&mut bytes);
        read.map_err(|e| self.unreachable(&e))?;
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if status != 200 {
            return Err(refused(status, &body).at("--server"));
        }
        let id = body["data"][0]["id"].as_str().map(str::to_owned);
        id.ok_or_else(|| {
            Error::usage("the server names no model").at("--server").hint("--model NAME")
        })
    }

    /// Asks for an answer, and reads it until it ends or nobody listens.
    pub(super) fn answer(&self, mut body: Value, mut chunks: Chunks) {
        body["model"] = self.model.as_str().into();
        let request = self.agent.post(format!("{}/chat/completions", self.base));
        let request = request
            .header(header::AUTHORIZATION, self.bearer())
            .header(header::CONTENT_TYPE, "application/json");
        let response = match request.send(body.to_string()) {
            Ok(response) => response,
            Err(error) => return chunks.fail(self.unreachable(&error)),
        };
        chunks.status = response.status().as_u16();
        let mut reader = response.into_body().into_reader();
        let mut bytes = [0; 8192];
        loop {
            match reader.read(&mut bytes) {
                Ok(0) => return chunks.finish(),
                Ok(n) if chunks.push(&bytes[..n]) => {}
                Ok(_) => return,
                Err(error) => return chunks.fail(self.unreachable(&error)),
            }
        }
    }
}
