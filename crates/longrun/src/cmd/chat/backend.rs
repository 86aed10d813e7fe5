//! Who answers: a model in this process, or a server.
//!
//! Owns the events of an answer, which look the same from both: chunks of OpenAI's chat completions. Dropping them ends
//! the answer.

use std::sync::Arc;

use futures_util::StreamExt;
use longrun_lm::{Error, Kind, Result};
use serde_json::Value;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

#[cfg(feature = "hub")]
use super::remote::Remote;
use crate::args::{ChatArgs, ServeArgs};
use crate::serve::{self, App};

/// Beginnings of the conversation that are kept: after `/retry` and `/undo` it goes on from an earlier one.
const SNAPSHOTS: usize = 8;
/// Bytes of an error, or of an event, at most.
const MOST_BYTES: usize = 16 << 20;

/// The chunks of an answer, as they come.
pub(super) type Events = UnboundedReceiver<Result<Value>>;

pub(super) enum Backend {
    Here {
        app: Arc<App>,
        name: String,
    },
    #[cfg(feature = "hub")]
    There(Arc<Remote>),
}

impl Backend {
    pub(super) fn open(args: ChatArgs) -> Result<Self> {
        if let Some(url) = &args.server {
            return there(url, args.api_key, args.model);
        }
        let name = args.model.clone().unwrap_or_else(|| "demo".into());
        let serve = ServeArgs {
            seed: args.sampling.seed.unwrap_or(0),
            model: args.model,
            memory: args.memory,
            context: args.context,
            chat_template: args.chat_template,
            max_rows: 1,
            max_snapshots: Some(SNAPSHOTS),
            strict: true,
            adapter: args.adapter,
            draft: args.draft,
            kv: args.kv,
            device: args.device,
            ..ServeArgs::plain()
        };
        Ok(Self::Here { app: Arc::new(serve::open(&serve)?), name })
    }

    /// Who it is, for people.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Here { name, .. } => name.clone(),
            #[cfg(feature = "hub")]
            Self::There(remote) => remote.name(),
        }
    }

    /// Begins an answer. It wants a runtime around it.
    pub(super) fn start(&self, body: Value) -> Events {
        let (out, events) = mpsc::unbounded_channel();
        match self {
            Self::Here { app, .. } => {
                _ = tokio::spawn(here(Arc::clone(app), body.to_string(), Chunks::new(out)));
            }
            #[cfg(feature = "hub")]
            Self::There(remote) => {
                let remote = Arc::clone(remote);
                std::thread::spawn(move || remote.answer(body, Chunks::new(out)));
            }
        }
        events
    }
}

#[cfg(feature = "hub")]
fn there(url: &str, key: Option<String>, model: Option<String>) -> Result<Backend> {
    Ok(Backend::There(Arc::new(Remote::open(url, key, model)?)))
}

#[cfg(not(feature = "hub"))]
fn there(url: &str, _: Option<String>, _: Option<String>) -> Result<Backend> {
    let error = Error::unsupported(format!("this build can't reach {url}")).at("--server");
    Err(error.hint("build it with the feature hub"))
}

async fn here(app: Arc<App>, body: String, mut chunks: Chunks) {
    let response = serve::chat(app, body.into()).await;
    chunks.status = response.status().as_u16();
    let mut body = response.into_body().into_data_stream();
    loop {
        let bytes = tokio::select! {
            () = chunks.out.closed() => return,
            bytes = body.next() => bytes,
        };
        match bytes {
            Some(Ok(bytes)) if chunks.push(&bytes) => {}
            Some(Ok(_)) => return,
            Some(Err(_)) | None => return chunks.finish(),
        }
    }
}

/// The bytes of a response on their way to being events.
pub(super) struct Chunks {
    out: UnboundedSender<Result<Value>>,
    pub(super) status: u16,
    buffer: Vec<u8>,
}

impl Chunks {
    fn new(out: UnboundedSender<Result<Value>>) -> Self {
        Self { out, status: 200, buffer: Vec::new() }
    }

    /// Takes more of it. False if it is over, or nobody listens any more.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() > MOST_BYTES {
            self.fail(Error::new(Kind::Limit, "the server sends more than an answer"));
            return false;
        }
        if !(200..300).contains(&self.status) {
            return true;
        }
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
            if data == "[DONE]" {
                return false;
            }
            let event = serde_json::from_str(data).map_err(|e| {
                Error::new(Kind::Device, format!("the server sends what is no JSON: {e}"))
            });
            let event = event.and_then(|event: Value| match event.get("error") {
                Some(error) if !error.is_null() => Err(refused(500, &event)),
                _ => Ok(event),
            });
            let is_last = event.is_err();
            if self.out.send(event).is_err() || is_last {
                return false;
            }
        }
        true
    }

    /// Ends it: what came may be an error in whole.
    pub(super) fn finish(self) {
        if !(200..300).contains(&self.status) {
            let body = serde_json::from_slice(&self.buffer).unwrap_or_default();
            self.fail(refused(self.status, &body));
        }
    }

    pub(super) fn fail(&self, error: Error) {
        let _ = self.out.send(Err(error));
    }
}

/// The error that a server's words are.
pub(super) fn refused(status: u16, body: &Value) -> Error {
    let error = &body["error"];
    let words = error["message"].as_str().or(error.as_str()).map(str::to_owned);
    let words = words.unwrap_or_else(|| format!("the server answered {status}"));
    let kind = if (400..500).contains(&status) { Kind::Usage } else { Kind::Device };
    Error::new(kind, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_do_not_depend_on_how_bytes_are_cut() {
        let text =
            ": alive\n\ndata: {\"a\": \"é\"}\n\nevent: x\ndata:{\"a\": 2}\r\n\ndata: [DONE]\n\n{";
        for size in 1..text.len() {
            let (out, mut events) = mpsc::unbounded_channel();
            let mut chunks = Chunks::new(out);
            let ended = text.as_bytes().chunks(size).any(|bytes| !chunks.push(bytes));
            assert!(ended);
            drop(chunks);
            let mut found = Vec::new();
            while let Ok(event) = events.try_recv() {
                found.push(event.unwrap()["a"].to_string());
            }
            assert_eq!(found, ["\"é\"", "2"], "{size}");
        }
    }

    #[test]
    fn errors_come_whole_or_in_between() {
        for (status, text, words) in [
            (400, "{\"error\": {\"message\": \"too hot\"}}", "too hot"),
            (502, "<html>", "answered 502"),
            (200, "data: {\"error\": {\"message\": \"broke\"}}\n", "broke"),
            (200, "data: {\n", "no JSON"),
        ] {
            let (out, mut events) = mpsc::unbounded_channel();
            let mut chunks = Chunks::new(out);
            chunks.status = status;
            if chunks.push(text.as_bytes()) {
                chunks.finish();
            }
            let error = events.try_recv().unwrap().unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
