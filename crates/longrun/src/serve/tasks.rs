//! Work that is no request's own: what takes long without a wait, and what goes on when the client has gone.
//!
//! Owns what becomes of a panic there: an error of the request, which says that it is a bug.

use super::error::{ApiError, ApiResult};

/// Runs what takes long without a wait, such as cutting a long text into tokens, beside the server's own threads.
pub(crate) async fn background<T: Send + 'static>(
    work: impl FnOnce() -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::bug("a panic"))?
}

/// Runs `work` to its end, whether somebody waits for it or not.
pub(crate) async fn outlasting<T: Send + 'static>(
    work: impl Future<Output = ApiResult<T>> + Send + 'static,
) -> ApiResult<T> {
    tokio::spawn(work).await.map_err(|_| ApiError::bug("a panic"))?
}
