//! Errors as Anthropic writes them.
//!
//! Owns the types of errors and the shape of the object, for every answer below `/v1/messages`, whoever it is from.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::super::super::error::ApiError;

/// What Anthropic calls the type.
fn kind(error: &ApiError) -> &'static str {
    match error.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    }
}

/// The error object.
pub(super) fn body(error: &ApiError, request_id: &str) -> Value {
    // Clients know a prompt that has to be made shorter by these words.
    let message = match error.code {
        Some("context_length_exceeded") => format!("prompt is too long: {}", error.message),
        _ => error.message.clone(),
    };
    json!({
        "type": "error",
        "error": {"type": kind(error), "message": message},
        "request_id": request_id,
    })
}

/// An answer that is an error, in this shape; any other as it is.
pub(crate) fn reshape(mut response: Response, request_id: &str) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let (parts, _) = response.into_parts();
    let mut reshaped = (parts.status, Json(body(&error, request_id))).into_response();
    for (name, value) in parts.headers {
        if let Some(name) = name.filter(|name| !reshaped.headers().contains_key(name)) {
            reshaped.headers_mut().insert(name, value);
        }
    }
    reshaped
}
