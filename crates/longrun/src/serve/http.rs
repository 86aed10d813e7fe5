//! The door: routes, keys, request ids, a log line for every answer.
//!
//! Owns what is true of every request whatever it asks. Keys are compared in constant time; a panic in a handler is a
//! 500 and no more.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::json;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{Any as AnyOrigin, CorsLayer};

use super::admission::Admission;
use super::api::{self, Route};
use super::error::{ApiError, ApiResult};
use super::fields::Fields;
use super::metrics::Metrics;
use super::models::Models;
use super::{page, wire};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// All that handlers share.
pub(crate) struct App {
    pub(crate) models: Arc<Models>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) metrics: Arc<Metrics>,
    /// Unknown fields are errors.
    pub(crate) strict: bool,
    /// Empty: nobody has to show one.
    pub(crate) keys: Vec<String>,
    /// Bytes of a body at most.
    pub(crate) body_limit: usize,
    /// Origins that browsers may call from.
    pub(crate) cors: Vec<HeaderValue>,
}

/// Every route, behind what is true of all.
pub(crate) fn router(app: Arc<App>) -> Router {
    let (mut open, mut keyed) = (page::routes(), Router::new());
    for Route { path, handler, is_open, .. } in api::all() {
        let router = if is_open { &mut open } else { &mut keyed };
        *router = std::mem::take(router).route(path, handler);
    }
    let keyed = keyed.layer(middleware::from_fn_with_state(Arc::clone(&app), check_key));
    let limit = DefaultBodyLimit::max(app.body_limit);
    let router = open.merge(keyed).fallback(nothing).method_not_allowed_fallback(wrong_method);
    let router = router.layer(limit).layer(CatchPanicLayer::custom(panicked));
    let router = router.layer(middleware::from_fn_with_state(Arc::clone(&app), tell));
    let router = match cors(&app.cors) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router.with_state(app)
}

fn cors(origins: &[HeaderValue]) -> Option<CorsLayer> {
    let layer =
        CorsLayer::new().allow_methods([Method::GET, Method::POST]).allow_headers(AnyOrigin);
    match origins {
        [] => None,
        [any] if any == "*" => Some(layer.allow_origin(AnyOrigin)),
        some => Some(layer.allow_origin(some.to_vec())),
    }
}

/// Lets a request in that shows a key, if there are keys.
async fn check_key(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.keys.is_empty() || request.method() == Method::OPTIONS {
        return next.run(request).await;
    }
    let headers = request.headers();
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
    let shown = bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()));
    let known = shown.is_some_and(|shown| {
        // All are looked at, whichever fits.
        app.keys.iter().fold(false, |known, key| known | same(key.as_bytes(), shown.as_bytes()))
    });
    if known {
        return next.run(request).await;
    }
    let error = ApiError::new(StatusCode::UNAUTHORIZED, "Incorrect API key provided");
    ApiError { code: Some("invalid_api_key"), ..error }.into_response()
}

/// Whether two texts are the same, in a time that depends on the length of the second only.
fn same(key: &[u8], shown: &[u8]) -> bool {
    let mut difference = u8::from(key.len() != shown.len());
    for (i, byte) in shown.iter().enumerate() {
        difference |= byte ^ key.get(i).copied().unwrap_or(!byte);
    }
    std::hint::black_box(difference) == 0
}

/// Gives each request an id, and tells of it when its answer begins.
async fn tell(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = request.headers().get(REQUEST_ID).cloned();
    let id = id.or_else(|| HeaderValue::from_str(&wire::new_id("req_")).ok());
    if let Some(id) = &id {
        request.headers_mut().insert(REQUEST_ID, id.clone());
    }
    let is_messages = request.uri().path().starts_with("/v1/messages");
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = route.unwrap_or_else(|| "none".to_owned());
    let mut response = too_large(next.run(request).await);
    let status = response.status();
    app.metrics.http(&route, status.as_u16());
    let milliseconds = began.elapsed().as_secs_f64() * 1e3;
    let shown = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
    let status = status.as_u16();
    // Who watches asks each second.
    if ["/health", "/metrics"].contains(&route.as_str()) {
        tracing::debug!(id = shown, %method, route, status, milliseconds, "answered");
    } else {
        tracing::info!(id = shown, %method, route, status, milliseconds, "answered");
    }
    if is_messages {
        response = wire::messages::reshape(response, shown);
    }
    if let Some(id) = id {
        if is_messages {
            response.headers_mut().insert("request-id", id.clone());
        }
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// The extractor's own answer to a body that is too large, in the shape of all errors.
fn too_large(response: Response) -> Response {
    if response.status() != StatusCode::PAYLOAD_TOO_LARGE {
        return response;
    }
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than is taken").into_response()
}

fn panicked(_: Box<dyn Any + Send + 'static>) -> Response<Body> {
    tracing::error!("a handler panicked; please report this");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the server has a bug; please report it")
        .into_response()
}

async fn nothing(request: Request) -> ApiError {
    ApiError::not_found(format!("there is no {} {}", request.method(), request.uri().path()))
}

async fn wrong_method(request: Request) -> ApiError {
    let what = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, what)
}

/// Whether the engines can serve: 503 once one of them can't.
pub(super) async fn health(State(app): State<Arc<App>>) -> ApiResult<Response> {
    for served in app.models.loaded() {
        if served.look().await.is_none() {
            let what = format!("the engine of {} has stopped", served.name);
            return Err(ApiError::unavailable(what));
        }
    }
    if app.admission.is_closed() {
        return Err(ApiError::unavailable("the server is shutting down"));
    }
    Ok(Json(json!({"status": "ok"})).into_response())
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    for served in app.models.loaded() {
        if let Some(view) = served.look().await {
            app.metrics.engine(&served, &view);
        }
    }
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, app.metrics.text()).into_response()
}

pub(super) async fn models(State(app): State<Arc<App>>) -> Response {
    Json(json!({"object": "list", "data": app.models.objects()})).into_response()
}

pub(super) async fn model(
    State(app): State<Arc<App>>,
    axum::extract::Path(name): axum::extract::Path<String>,
) -> ApiResult<Response> {
    Ok(Json(app.models.object(&name)?).into_response())
}

pub(super) async fn load(State(app): State<Arc<App>>, body: Bytes) -> ApiResult<Response> {
    let name = named(&body, &app)?;
    app.models.ask_for(&name).await?;
    Ok(Json(app.models.object(&name)?).into_response())
}

pub(super) async fn unload(State(app): State<Arc<App>>, body: Bytes) -> ApiResult<Response> {
    let name = named(&body, &app)?;
    app.models.let_go(&name).await?;
    Ok(Json(app.models.object(&name)?).into_response())
}

/// The name in a body `{"model": "NAME"}`.
fn named(body: &[u8], app: &App) -> ApiResult<String> {
    let mut fields = Fields::parse(body)?;
    let name = fields.string("model")?;
    fields.finish(app.strict)?;
    name.ok_or_else(|| ApiError::field("model", "it is missing"))
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn keys_are_the_same_or_not() {
        assert!(same(b"secret", b"secret"));
        for shown in ["secre", "secrets", "Secret", "", "secret\0"] {
            assert!(!same(b"secret", shown.as_bytes()), "{shown}");
        }
        assert!(!same(b"", b"x"));
    }
}
