//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's words for a conversation that goes on.
//!
//! Owns the two handlers. Versions and betas in headers are accepted and change nothing.

mod error;
mod events;
mod read;

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use self::events::{Fold, Teller};
use self::read::Request;
use super::super::error::ApiResult;
use super::super::fields::Fields;
use super::super::http::{App, REQUEST_ID};
use super::super::sse;
use super::{turn, with_ignored};

pub(crate) use self::error::reshape;

/// Answers a conversation.
pub(crate) async fn messages(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Bytes,
) -> ApiResult<Response> {
    let mut fields = Fields::parse(&body)?;
    let model = fields.string("model")?;
    let served = app.models.writer(model.as_deref()).await?;
    let Request { turn, stream, shows_thinking } = read::answer(&mut fields, served)?;
    let ignored = fields.finish(app.strict)?;
    let ticket = app.admission.enter()?;
    let name = turn.served.name.clone();
    let pieces = turn.start(ticket).await?;
    let request_id = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default();
    let teller = Teller::new(name, pieces.prompt_tokens, shows_thinking, request_id.to_owned());
    let response = if stream {
        sse::respond(move |out| turn::stream(pieces, teller, out))
    } else {
        let mut fold = Fold::default();
        turn::whole(pieces, teller, |event| fold.take(event)).await?;
        Json(fold.message).into_response()
    };
    Ok(with_ignored(response, &ignored))
}

/// Says how many tokens the prompt of such a request has.
pub(crate) async fn count_tokens(State(app): State<Arc<App>>, body: Bytes) -> ApiResult<Response> {
    let mut fields = Fields::parse(&body)?;
    let model = fields.string("model")?;
    let served = app.models.get(model.as_deref()).await?;
    let turn = read::prompt(&mut fields, served)?;
    let ignored = fields.finish(app.strict)?;
    let _ticket = app.admission.enter()?;
    let response = Json(json!({"input_tokens": turn.count().await?})).into_response();
    Ok(with_ignored(response, &ignored))
}
