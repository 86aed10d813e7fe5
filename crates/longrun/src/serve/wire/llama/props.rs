//! What llama-server tells of itself: `/props`, `/slots`, and the endpoints that are not there.
//!
//! Owns the names that clients look for. A slot is a row of the engine; which request has which row is not shown.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use longrun_lm::text::ChatTemplate;
use serde_json::{Value, json};

use super::super::super::error::{ApiError, ApiResult};
use super::super::super::fields::Fields;
use super::super::super::http::App;
use super::super::super::served::Served;
use super::super::logprobs;
use super::fields::Wish;

/// `GET /props`.
pub(crate) async fn props(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let served = app.models.get(None).await?;
    let (wish, _) = Wish::read(&mut Fields::of(json!({}), "")?, &served)?;
    let mut params = wish.settings();
    // The one that a request draws, which is not known before.
    params["seed"] = served.source.defaults.params.seed.map_or(json!(-1), Value::from);
    let tokenizer = served.source.tokenizer.as_ref();
    let text = |id: Option<u32>| id.map(|id| logprobs::text(&served, id)).unwrap_or_default();
    let props = json!({
        "default_generation_settings": {"n_ctx": served.context, "params": params},
        "total_slots": served.room.rows,
        "model_alias": served.name,
        "model_path": served.path,
        "modalities": {"vision": false, "audio": false, "video": false},
        "endpoint_slots": true,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "chat_template": served.source.template.as_ref().map_or("", ChatTemplate::text),
        "bos_token": text(tokenizer.and_then(|t| t.bos())),
        "eos_token": text(tokenizer.and_then(|t| t.eos())),
        "build_info": served.fingerprint(),
        "is_sleeping": false,
    });
    Ok(Json(props).into_response())
}

/// `POST /props`.
pub(crate) async fn set_props() -> ApiError {
    ApiError::not_supported("what is the same for all requests is set when the server starts")
}

/// `GET /slots`.
pub(crate) async fn slots(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let served = app.models.get(None).await?;
    let view = look(&served).await?;
    let slot = |id: usize| {
        json!({
            "id": id,
            "n_ctx": served.context,
            "speculative": served.room.drafts > 0,
            "is_processing": id < view,
        })
    };
    Ok(Json((0..served.room.rows).map(slot).collect::<Value>()).into_response())
}

/// Rows in service.
async fn look(served: &Served) -> ApiResult<usize> {
    let view = served.look().await;
    let stopped = || ApiError::unavailable(format!("the engine of {} has stopped", served.name));
    Ok(view.ok_or_else(stopped)?.running)
}

/// `POST /infill`.
pub(crate) async fn infill() -> ApiError {
    ApiError::not_supported(
        "filling in is not supported; send /completion the text with the model's own marks for it",
    )
}

/// `POST /rerank` and its other names.
pub(crate) async fn rerank() -> ApiError {
    ApiError::not_supported("ranking is not supported: no model here has a head for it")
}
