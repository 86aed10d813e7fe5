//! What the hub is asked, and what its answers mean.
//!
//! Owns addresses, the token and the words for a refusal. Refuses to write files, and to send the token to any other
//! host.

use std::fmt::Write as _;
use std::io::Read;
use std::time::Duration;

use longrun_lm::{Error, Result};
use serde::Deserialize;
use ureq::Agent;
use ureq::http::{HeaderMap, Response, StatusCode, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use super::cache::{home, is_commit};
use super::{HubName, is_part, is_path, variable};

const ENDPOINT: &str = "https://huggingface.co";
/// Silence after which a connection is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest list of a repository's files.
const MAX_LISTING: u64 = 32 << 20;
/// Redirects on the way to a file: to a model's new name, to a store.
const MAX_HOPS: usize = 8;
/// What a file's content is called where the hub sends to a store for it.
const LINKED_ETAG: &str = "x-linked-etag";

/// Why something did not come.
#[derive(Debug)]
pub(super) enum Failure {
    /// No answer, or one that says to come back later.
    Unreachable(String),
    /// An answer, but not what was asked for; or the disk.
    Other(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

pub(super) type Fetched<T> = std::result::Result<T, Failure>;
/// What came back, or why nothing did.
type Answer = std::result::Result<Response<ureq::Body>, String>;

/// The hub.
pub(super) struct Remote {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// The files of a revision.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    /// Paths with `/`; those that could lead elsewhere are left out.
    pub(super) files: Vec<String>,
}

/// What is known of a file before it comes.
#[derive(Debug)]
pub(super) struct Meta {
    /// Names the content; 64 hexadecimal digits are its SHA-256.
    pub(super) etag: String,
    pub(super) size: u64,
}

#[derive(Deserialize)]
struct RepoInfo {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

impl Remote {
    pub(super) fn from_env() -> Result<Self> {
        let endpoint = variable("HF_ENDPOINT").map_or_else(
            || Ok(ENDPOINT.to_owned()),
            |value| {
                let text = value.to_string_lossy().trim_end_matches('/').to_owned();
                let good = text.starts_with("https://") || text.starts_with("http://");
                let bad = || Error::usage(format!("{text:?} is no address")).at("HF_ENDPOINT");
                good.then_some(text.clone()).ok_or_else(bad)
            },
        )?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("longrun/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(PATIENCE))
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_per_read(Some(PATIENCE));
        if let Some(certificates) = certificates()? {
            config = config.tls_config(TlsConfig::builder().root_certs(certificates).build());
        }
        Ok(Self { agent: config.build().into(), endpoint, token: token()? })
    }

    /// A model's page, for people.
    fn page(&self, name: &HubName) -> String {
        format!("{}/{}", self.endpoint, name.repo)
    }

    /// The files of the revision that `name` asks for.
    pub(super) fn listing(&self, name: &HubName) -> Fetched<Listing> {
        let revision = escaped(&name.revision).replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}", self.endpoint, name.repo);
        let response = self.get(&url, 0).map_err(|why| self.unreachable(&why))?;
        if !response.status().is_success() {
            return Err(self.refused(name, &response, None));
        }
        let bad = |what: String| Error::file(format!("the list of files from {url} {what}"));
        let mut bytes = Vec::new();
        let read = response.into_body().into_reader().take(MAX_LISTING + 1).read_to_end(&mut bytes);
        read.map_err(|e| self.unreachable(&e.to_string()))?;
        if bytes.len() as u64 > MAX_LISTING {
            return Err(bad(format!("is longer than {MAX_LISTING} bytes")).into());
        }
        let info: RepoInfo = serde_json::from_slice(&bytes)
            .map_err(|e| bad(format!("can't be understood: {e}")).hint("is HF_ENDPOINT a hub?"))?;
        if !is_commit(&info.sha) {
            return Err(bad(format!("names {:?}, which is no commit", info.sha)).into());
        }
        let names = info.siblings.into_iter().map(|sibling| sibling.rfilename);
        Ok(Listing { commit: info.sha, files: names.filter(|name| is_path(name)).collect() })
    }

    /// Where a file of a commit is.
    pub(super) fn url(&self, name: &HubName, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{}", self.endpoint, name.repo, escaped(file))
    }

    /// Asks for a file's size and the name of its content.
    pub(super) fn meta(&self, name: &HubName, commit: &str, file: &str) -> Fetched<Meta> {
        let url = self.url(name, commit, file);
        let response = self.send(true, &url, 0).map_err(|why| self.unreachable(&why))?;
        let (status, headers) = (response.status(), response.headers());
        if status.is_redirection() && text(headers, LINKED_ETAG).is_none() {
            let what = "the hub leads elsewhere without saying what is there";
            return Err(Error::file(what).at(file).into());
        }
        if !(status.is_success() || status.is_redirection()) {
            return Err(self.refused(name, &response, Some(file)));
        }
        Ok(read_meta(headers).map_err(|e| e.at(file))?)
    }

    /// A file from its byte `from` on.
    pub(super) fn get(&self, url: &str, from: u64) -> Answer {
        self.send(false, url, from)
    }

    /// Asks, and follows redirects: without the token to other hosts, and with HEAD only within the hub, which knows
    /// what it leads to.
    fn send(&self, head: bool, url: &str, from: u64) -> Answer {
        let mut url = url.to_owned();
        for _ in 0..MAX_HOPS {
            let request = if head { self.agent.head(&url) } else { self.agent.get(&url) };
            let mut request = request.header(header::ACCEPT_ENCODING, "identity");
            if let Some(token) = self.token.as_ref().filter(|_| self.is_hub(&url)) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let response = request.call().map_err(|e| e.to_string())?;
            let known = head && text(response.headers(), LINKED_ETAG).is_some();
            if !response.status().is_redirection() || known {
                return Ok(response);
            }
            match text(response.headers(), "location").and_then(|to| target(&url, to)) {
                Some(next) if !head || self.is_hub(&next) => url = next,
                _ => return Ok(response),
            }
        }
        Err("it leads in circles".into())
    }

    /// Whether an address is of the hub's own host.
    fn is_hub(&self, url: &str) -> bool {
        origin(url).is_some_and(|host| origin(&self.endpoint) == Some(host))
    }

    fn unreachable(&self, why: &str) -> Failure {
        Failure::Unreachable(format!("{} can't be reached ({why})", self.endpoint))
    }

    /// What a status other than success means, for a person.
    pub(super) fn refused(
        &self,
        name: &HubName,
        response: &Response<ureq::Body>,
        file: Option<&str>,
    ) -> Failure {
        let (status, page) = (response.status(), self.page(name));
        let code = text(response.headers(), "x-error-code").unwrap_or_default();
        let error = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                self.unwelcome(status, code == "GatedRepo", &page)
            }
            StatusCode::NOT_FOUND if file.is_some() => {
                Error::file("the hub lists this file but does not have it (404)")
                    .hint(format!("look at {page}"))
            }
            StatusCode::NOT_FOUND => {
                let revision = &name.revision;
                let there = match code {
                    "RevisionNotFound" => format!("has no revision {revision:?}"),
                    _ => format!("has no such model, or no revision {revision:?}"),
                };
                Error::file(format!("the hub {there} (404)")).hint(format!(
                    "check the spelling at {page}; if a folder was meant, there is none of this name"
                ))
            }
            _ if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                return Failure::Unreachable(format!("{} answers {status}", self.endpoint));
            }
            _ => Error::file(format!("the hub answers {status}")).hint(format!("look at {page}")),
        };
        Failure::Other(file.into_iter().fold(error, Error::at))
    }

    fn unwelcome(&self, status: StatusCode, gated: bool, page: &str) -> Error {
        let code = status.as_u16();
        let what = match (gated, &self.token) {
            (true, _) => format!("the model is gated ({code}): its makers ask you to accept terms"),
            (false, None) => {
                format!(
                    "the hub lets nobody in without a token ({code}): gated, private, or not there"
                )
            }
            (false, Some(_)) => format!("the hub does not let this token in ({code})"),
        };
        let token = match &self.token {
            None => "then set HF_TOKEN to a token of that account",
            Some(_) => "and see that HF_TOKEN is a valid token of an account with access",
        };
        Error::file(what).hint(format!("check the name and accept the terms at {page}, {token}"))
    }
}

/// Scheme and host of an address.
fn origin(url: &str) -> Option<&str> {
    let start = url.find("://")? + 3;
    let host = url[start..].find(['/', '?', '#', '\\']).map_or(url.len(), |end| start + end);
    Some(&url[..host])
}

/// Where a redirect leads; None where it gives up encryption.
fn target(from: &str, to: &str) -> Option<String> {
    let secure = from.starts_with("https://");
    if to.starts_with("https://") || to.starts_with("http://") && !secure {
        return Some(to.to_owned());
    }
    let within = to.starts_with('/') && !to.starts_with("//");
    within.then(|| Some(format!("{}{to}", origin(from)?)))?
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn read_meta(headers: &HeaderMap) -> Result<Meta> {
    let etag = text(headers, LINKED_ETAG).or_else(|| text(headers, "etag"));
    let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"'));
    let Some(etag) = etag.filter(|etag| is_part(etag)) else {
        return Err(Error::file(format!("the hub calls its content {etag:?}, which is no name")));
    };
    let size = text(headers, "x-linked-size").or_else(|| text(headers, "content-length"));
    match size.and_then(|size| size.trim().parse().ok()) {
        Some(size) => Ok(Meta { etag: etag.to_owned(), size }),
        None => Err(Error::file(format!("the hub says {size:?} where its size should be"))),
    }
}

/// The token of the user, from where the hub's own tools look for it.
fn token() -> Result<Option<String>> {
    let named = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN"));
    let (token, place) = match named {
        Some(token) => (token.to_string_lossy().into_owned(), "HF_TOKEN".to_owned()),
        None => {
            let path = variable("HF_TOKEN_PATH").map(Into::into);
            let Some(path) = path.or_else(|| Some(home().ok()?.join("token"))) else {
                return Ok(None);
            };
            let Ok(token) = std::fs::read_to_string(&path) else { return Ok(None) };
            (token, path.display().to_string())
        }
    };
    let token = token.trim();
    if !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Error::usage("is no token: it has characters that none has").at(place));
    }
    Ok(Some(token.to_owned()).filter(|token| !token.is_empty()))
}

/// The certificates to trust in place of the built-in ones, where a network has its own.
pub(crate) fn certificates() -> Result<Option<RootCerts>> {
    let Some(path) = variable("SSL_CERT_FILE") else { return Ok(None) };
    let place = |e: Error| e.at(path.to_string_lossy()).at("SSL_CERT_FILE");
    let pem =
        std::fs::read(&path).map_err(|e| place(Error::file(format!("can't be read: {e}"))))?;
    let items = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let found: Vec<_> = items.collect();
    if found.is_empty() {
        return Err(place(Error::file("holds no certificate")));
    }
    Ok(Some(RootCerts::new_with_certs(&found)))
}

/// A path as it stands in an address.
fn escaped(path: &str) -> String {
    let mut escaped = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}
