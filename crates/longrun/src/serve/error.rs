//! What a client is told when something is wrong: a status and OpenAI's error object.
//!
//! Owns the map from the engine's kinds of errors to statuses. Refuses to show more than the message: no traces, no paths
//! that a client did not name.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use longrun_lm::{Error, Kind};
use serde_json::{Value, json};

/// Seconds after which a client that found the server full may try again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// An answer that is an error.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The field of the request that is wrong.
    pub(crate) param: Option<String>,
    /// What programs look at.
    pub(crate) code: Option<&'static str>,
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// The request makes no sense.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field of the request makes no sense.
    pub(crate) fn field(name: &str, message: impl Into<String>) -> Self {
        Self { param: Some(name.to_owned()), ..Self::bad(format!("{name}: {}", message.into())) }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// What the path or the field stands for is not there.
    pub(crate) fn not_supported(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::NOT_IMPLEMENTED, message);
        Self { code: Some("not_supported"), ..error }
    }

    /// The prompt and what is asked for are longer than the context.
    pub(crate) fn too_long(prompt: usize, max_tokens: Option<usize>, context: usize) -> Self {
        let message = match max_tokens {
            Some(max) => format!(
                "This model's maximum context length is {context} tokens. The prompt has {prompt} and {max} more are \
                 asked for."
            ),
            None => format!(
                "This model's maximum context length is {context} tokens. The prompt has {prompt}."
            ),
        };
        let code = Some("context_length_exceeded");
        Self { code, param: Some("messages".into()), ..Self::bad(message) }
    }

    /// So many requests are under way that no more are taken.
    pub(crate) fn busy(most: usize) -> Self {
        let message = format!("{most} requests are under way, which is as many as are taken");
        let busy = Self::new(StatusCode::TOO_MANY_REQUESTS, message);
        Self { code: Some("too_many_requests"), ..busy }
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// Something that can't be has happened.
    pub(crate) fn bug(what: &str) -> Self {
        let what = format!("the server has a bug ({what}); please report it");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, what)
    }

    /// The time that a request may take is over.
    pub(crate) fn too_late(seconds: u64) -> Self {
        let message = format!("the request took longer than the {seconds} s that it may");
        Self { code: Some("timeout"), ..Self::new(StatusCode::GATEWAY_TIMEOUT, message) }
    }

    /// What OpenAI calls the type.
    pub(crate) fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::NOT_IMPLEMENTED => "not_supported_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// The error object.
    pub(crate) fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        }})
    }
}

/// An error of the engine or of what goes before it.
impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            Kind::Usage | Kind::Unsupported => StatusCode::BAD_REQUEST,
            Kind::Limit => StatusCode::SERVICE_UNAVAILABLE,
            Kind::File | Kind::Device | Kind::Bug => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let full = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
        if full.contains(&self.status) {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        // Who writes errors in another shape finds it here.
        response.extensions_mut().insert(self);
        response
    }
}
