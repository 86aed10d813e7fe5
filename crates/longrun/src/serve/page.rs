//! The page at `/`: a conversation and live figures, for people.
//!
//! Owns the files, which are inside of the binary, and the headers that keep the page to itself: it loads nothing from
//! and tells nothing to any other host. It needs no key; what it asks the server for does.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::IntoResponse;
use axum::routing::get;

use super::http::App;

/// Scripts, styles and answers come from here and nowhere else, nothing is written into the page as code, and nobody may
/// put it into a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// The page and its parts.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(async || file(HTML, include_str!("page/index.html"))))
        .route("/page/page.css", get(async || file(CSS, include_str!("page/page.css"))))
        .route("/page/page.js", get(async || file(JS, include_str!("page/page.js"))))
        .route("/page/prose.js", get(async || file(JS, include_str!("page/prose.js"))))
        .route("/page/charts.js", get(async || file(JS, include_str!("page/charts.js"))))
}

fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    let headers: [(HeaderName, HeaderValue); 5] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // Another version of the server has another page.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, text)
}
