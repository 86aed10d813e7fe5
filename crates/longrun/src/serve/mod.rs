//! `longrun serve`: engines behind HTTP.
//!
//! Owns the server's life: models are loaded, the door opens, and on a signal it closes, what is under way ends, and what
//! texts began with is saved. Requests flow in as rows, pieces of text flow out; one stream of events, several wire
//! formats.

mod admission;
mod answering;
mod api;
mod error;
mod fields;
mod form;
mod http;
#[cfg(feature = "leak-lab")]
mod lab;
mod loaded;
mod loras;
mod metrics;
mod models;
mod page;
mod prompt;
mod served;
mod sse;
mod tasks;
mod wire;
mod work;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use longrun_lm::{Error, Kind, Result};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use self::admission::Admission;
pub(crate) use self::http::App;
use self::metrics::Metrics;
use self::models::Models;
use crate::args::{LogFormat, ServeArgs};
use crate::show;

/// Threads for what takes long: prompts, grammars, models that come and go.
const BLOCKING: usize = 16;

/// How long requests that were cut off have to let go of a model.
const LETTING_GO: Duration = Duration::from_secs(10);

/// Serves until it is told to stop.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode> {
    logs(args);
    let (keys, cors) = (keys(args)?, cors(args)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // Prompts are made there: more threads than cores only take memory.
        .max_blocking_threads(BLOCKING)
        .enable_all()
        .build()
        .map_err(|e| Error::new(Kind::Device, format!("no threads for the server: {e}")))?;
    // The door is taken before the model is loaded: a port in use is known at once.
    let listener = runtime.block_on(bind(args))?;
    let app = Arc::new(App { keys, cors, ..open(args)? });
    if let Some(seconds) = args.idle_unload {
        let models = Arc::clone(&app.models);
        runtime.spawn(models.unload_idle(Duration::from_secs(seconds)));
    }
    runtime.block_on(serve(listener, Arc::clone(&app), args))?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    close(&app)
}

/// Loads the models that `args` name, behind no door yet.
pub(crate) fn open(args: &ServeArgs) -> Result<App> {
    let bug = |e: prometheus::Error| Error::new(Kind::Bug, format!("metrics: {e}"));
    let metrics = Arc::new(Metrics::new().map_err(bug)?);
    Ok(App {
        models: Arc::new(Models::open(args.clone(), Arc::clone(&metrics))?),
        admission: Admission::new(args.max_requests),
        metrics,
        strict: args.strict,
        keys: Vec::new(),
        body_limit: args.max_body,
        cors: Vec::new(),
    })
}

/// What clients get who send `body` to `/v1/chat/completions`, without a socket.
pub(crate) async fn chat(app: Arc<App>, body: Bytes) -> Response {
    wire::chat::chat(State(app), body).await.into_response()
}

async fn bind(args: &ServeArgs) -> Result<TcpListener> {
    let address = SocketAddr::new(args.host, args.port);
    let listener = TcpListener::bind(address).await;
    listener.map_err(|e| {
        Error::usage(format!("can't listen at {address}: {e}"))
            .at("--host, --port")
            .hint("choose another port, or 0 for any")
    })
}

async fn serve(listener: TcpListener, app: Arc<App>, args: &ServeArgs) -> Result<()> {
    let failed = |e: std::io::Error| Error::new(Kind::Device, format!("the server failed: {e}"));
    let address = listener.local_addr().map_err(failed)?;
    let open = !address.ip().is_loopback() && app.keys.is_empty();
    if open {
        show::note("anybody who reaches this address can use the model: give it an --api-key");
    }
    show::out(&format!("serving at http://{address}\n"))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let admission = Arc::clone(&app.admission);
    let told = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        show::note("shutting down: no new requests; those under way end first");
        admission.close();
    };
    let (closing, closed) = tokio::sync::oneshot::channel();
    let server = axum::serve(listener, http::router(Arc::clone(&app)));
    let server = server.with_graceful_shutdown(async move {
        told.await;
        _ = closing.send(());
    });
    let drain = async {
        if closed.await.is_err() {
            return;
        }
        let most = Duration::from_secs(args.drain);
        if tokio::time::timeout(most, app.admission.empty()).await.is_err() {
            show::note(&format!("{} requests are cut off", app.admission.out()));
        } else {
            // What is in the sockets' queues still goes out.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        served = server.into_future() => served.map_err(failed),
        () = drain => Ok(()),
    }
}

/// Ends the engines, and saves what later texts may begin with.
fn close(app: &App) -> Result<ExitCode> {
    for mut loaded in app.models.take_all() {
        // What was cut off lets go of its model when its task is dropped.
        let until = Instant::now() + LETTING_GO;
        let loaded = loop {
            match Arc::try_unwrap(loaded) {
                Ok(loaded) => break loaded,
                Err(held) if Instant::now() < until => loaded = held,
                Err(held) => {
                    let what = format!("{}: requests hold on to it", held.name);
                    let hint = "what its texts began with is not saved";
                    return Err(Error::new(Kind::Limit, what).hint(hint));
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        loaded.close()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn logs(args: &ServeArgs) {
    let builder = tracing_subscriber::fmt()
        .with_max_level(args.log_level.level())
        .with_target(false)
        .with_writer(std::io::stderr);
    // A second start in one process is a test's; the first one's logs will do.
    let _ = match args.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}

/// Keys of `--api-key` and of the file that `--api-key-file` names, a line each.
fn keys(args: &ServeArgs) -> Result<Vec<String>> {
    let mut keys = args.api_key.clone();
    if let Some(file) = &args.api_key_file {
        let place = |e: Error| e.at(file.display()).at("--api-key-file");
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|e| place(Error::file(format!("can't be read: {e}"))))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        keys.extend(lines.map(str::to_owned));
        if keys.is_empty() {
            return Err(place(Error::file("it holds no key")));
        }
    }
    if keys.iter().any(String::is_empty) {
        return Err(Error::usage("a key is empty").at("--api-key"));
    }
    Ok(keys)
}

fn cors(args: &ServeArgs) -> Result<Vec<HeaderValue>> {
    let value = |origin: &String| {
        HeaderValue::from_str(origin)
            .map_err(|_| Error::usage(format!("{origin:?} is no origin")).at("--cors"))
    };
    args.cors.iter().map(value).collect()
}
