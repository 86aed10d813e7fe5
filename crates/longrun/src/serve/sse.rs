//! Server-sent events: a task writes, the client reads, and a comment goes out when nothing else does.
//!
//! Owns the shape of the stream on the wire. The headers go at once. What is written waits for a slow client in a queue
//! that holds no more than a request may generate.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::mpsc::{self, UnboundedSender};

/// How often something is on the wire.
const ALIVE: Duration = Duration::from_secs(5);

/// Where a task writes events.
#[derive(Clone)]
pub(crate) struct Writer(UnboundedSender<Event>);

impl Writer {
    /// Sends an event without a name; false if the client has gone.
    pub(crate) fn data(&self, value: &Value) -> bool {
        self.0.send(Event::default().data(value.to_string())).is_ok()
    }

    /// Sends an event with a name.
    pub(crate) fn named(&self, name: &str, value: &Value) -> bool {
        self.0.send(Event::default().event(name).data(value.to_string())).is_ok()
    }

    /// Sends text as it is.
    pub(crate) fn text(&self, text: &str) -> bool {
        self.0.send(Event::default().data(text)).is_ok()
    }

    /// Waits until the client has gone.
    pub(crate) async fn gone(&self) {
        self.0.closed().await;
    }
}

/// A response whose events a task writes.
pub(crate) fn respond<F>(task: impl FnOnce(Writer) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, mut events) = mpsc::unbounded_channel();
    tokio::spawn(task(Writer(sender)));
    let events =
        stream::poll_fn(move |cx| events.poll_recv(cx).map(|event| event.map(Ok::<_, Infallible>)));
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE).text("alive"));
    let mut response = sse.into_response();
    // Proxies must not wait for the end.
    let name = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(name, HeaderValue::from_static("no"));
    response
}
