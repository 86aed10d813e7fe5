//! `POST /v1/embeddings`: refused by name.
//!
//! Owns the check of the request and the words of the refusal. A vector of a text is a pooled hidden state; rows of the
//! engine give logits, and a checkpoint's word on pooling is not read.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;

use super::super::error::{ApiError, ApiResult};
use super::super::fields::Fields;
use super::super::http::App;

/// Says what is missing.
pub(crate) async fn embeddings(State(app): State<Arc<App>>, body: Bytes) -> ApiResult<()> {
    let mut fields = Fields::parse(&body)?;
    let model = fields.string("model")?;
    let served = app.models.get(model.as_deref()).await?;
    fields.required("input")?;
    let what = format!(
        "{} makes no embeddings: rows give logits and no hidden states, and how to pool them is not read from its files",
        served.name
    );
    Err(ApiError { code: Some("no_embeddings"), ..ApiError::bad(what) })
}
