//! `POST /v1/responses`: OpenAI's newer words for a conversation that goes on.
//!
//! Owns the handler. Nothing is stored: what would need an earlier response is refused by name.

mod events;
mod items;
mod read;

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use self::events::{Entry, Teller};
use self::read::Request;
use super::super::error::ApiResult;
use super::super::fields::Fields;
use super::super::http::App;
use super::super::sse;
use super::{logprobs, turn, with_ignored};

/// Answers a conversation.
pub(crate) async fn responses(State(app): State<Arc<App>>, body: Bytes) -> ApiResult<Response> {
    let mut fields = Fields::parse(&body)?;
    let model = fields.string("model")?;
    let served = app.models.writer(model.as_deref()).await?;
    let Request { turn, stream, logprobs, echo } = read::request(&mut fields, served)?;
    let ignored = fields.finish(app.strict)?;
    let ticket = app.admission.enter()?;
    let served = Arc::clone(&turn.served);
    let pieces = turn.start(ticket).await?;
    let entry: Option<Entry> = logprobs.then(|| {
        let entry: Entry = Box::new(move |chosen| logprobs::entry(&served, chosen));
        entry
    });
    let teller = Teller::new(echo, pieces.prompt_tokens, entry);
    let response = if stream {
        sse::respond(move |out| turn::stream(pieces, teller, out))
    } else {
        let mut last = Value::Null;
        turn::whole(pieces, teller, |mut event| last = event["response"].take()).await?;
        Json(last).into_response()
    };
    Ok(with_ignored(response, &ignored))
}
