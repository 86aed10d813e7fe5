//! The table of routes. A new one is a line here; its schemas go into `requests` and `answers`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::handler::Handler;
use axum::response::{IntoResponse, Response};
use axum::routing;

use super::super::http::{self, App};
use super::super::wire::llama::{self, props, tokens};
use super::super::wire::{chat, completions, embeddings, messages, responses};
use super::{Answer, Facts, Operation, Route, document};

/// All routes.
pub(crate) fn all() -> Vec<Route> {
    [open(), openai(), anthropic(), llama()].into_iter().flatten().collect()
}

async fn openapi(State(app): State<Arc<App>>) -> Response {
    Json(document(&Facts::of(&app))).into_response()
}

fn open() -> Vec<Route> {
    let health = |path| Route {
        is_open: true,
        ..get(path, http::health, "Whether the engines can serve", Answer::Json("Health"))
    };
    let openapi = get("/openapi.json", openapi, "This document", Answer::Json("Document"));
    vec![health("/health"), health("/v1/health"), Route { is_open: true, ..openapi }]
}

fn openai() -> Vec<Route> {
    let models = |path| get(path, http::models, "All models", Answer::Json("Models"));
    let chat = |path| {
        let answer = Answer::Stream("ChatCompletion");
        post(path, chat::chat, "Goes on with a conversation", "ChatRequest", answer)
    };
    let embeddings = |path| {
        let answer = Answer::Json("Embeddings");
        post(path, embeddings::embeddings, "Vectors of texts", "EmbeddingsRequest", answer)
    };
    vec![
        chat("/v1/chat/completions"),
        chat("/chat/completions"),
        post(
            "/v1/responses",
            responses::responses,
            "Goes on with a conversation, in items",
            "ResponsesRequest",
            Answer::Stream("Response"),
        ),
        post(
            "/v1/completions",
            completions::completions,
            "Goes on with texts",
            "CompletionsRequest",
            Answer::Stream("Completions"),
        ),
        embeddings("/v1/embeddings"),
        embeddings("/embeddings"),
        models("/v1/models"),
        models("/models"),
        change("/v1/models/load", http::load, "Loads a model"),
        change("/v1/models/unload", http::unload, "Unloads a model once it has answered"),
        get("/v1/models/{*name}", http::model, "A model by its name", Answer::Json("Model")),
        get("/metrics", http::metrics, "Numbers for Prometheus", Answer::Text),
    ]
}

fn anthropic() -> Vec<Route> {
    vec![
        post(
            "/v1/messages",
            messages::messages,
            "Goes on with a conversation, in blocks",
            "MessagesRequest",
            Answer::Stream("Message"),
        ),
        post(
            "/v1/messages/count_tokens",
            messages::count_tokens,
            "The tokens of a conversation",
            "CountRequest",
            Answer::Json("Count"),
        ),
    ]
}

/// A change of what is loaded.
fn change<T: 'static>(
    path: &'static str,
    handler: impl Handler<T, Arc<App>>,
    summary: &'static str,
) -> Route {
    post(path, handler, summary, "NameRequest", Answer::Json("Model"))
}

fn llama() -> Vec<Route> {
    let completion = |path| {
        let answer = Answer::Stream("LlamaCompletion");
        post(path, llama::completion, "Goes on with texts", "LlamaRequest", answer)
    };
    let tokenize = |path| {
        let answer = Answer::Json("Tokens");
        post(path, tokens::tokenize, "The ids of a text", "TokenizeRequest", answer)
    };
    let detokenize = |path| {
        let answer = Answer::Json("Detokenized");
        post(path, tokens::detokenize, "The text of ids", "DetokenizeRequest", answer)
    };
    let template = |path| {
        let answer = Answer::Json("Prompt");
        let summary = "The prompt of a conversation";
        post(path, tokens::apply_template, summary, "TemplateRequest", answer)
    };
    let rerank = |path| refused(path, props::rerank, "Refused: no ranking");
    let mut props = get("/props", props::props, "The server's settings", Answer::Json("Props"));
    let set = refused("/props", self::props::set_props, "Refused: settings are given at the start");
    props.handler = props.handler.merge(set.handler);
    props.operations.extend(set.operations);
    vec![
        completion("/completion"),
        completion("/completions"),
        tokenize("/tokenize"),
        tokenize("/v1/tokenize"),
        detokenize("/detokenize"),
        detokenize("/v1/detokenize"),
        template("/apply-template"),
        template("/v1/apply-template"),
        props,
        get("/slots", self::props::slots, "The rows of the engine", Answer::Json("Slots")),
        refused("/infill", self::props::infill, "Refused: no filling in"),
        rerank("/rerank"),
        rerank("/reranking"),
        rerank("/v1/rerank"),
        rerank("/v1/reranking"),
    ]
}

fn route(path: &'static str, handler: routing::MethodRouter<Arc<App>>, does: Operation) -> Route {
    Route { path, handler, is_open: false, operations: vec![does] }
}

fn get<T: 'static>(
    path: &'static str,
    handler: impl Handler<T, Arc<App>>,
    summary: &'static str,
    answer: Answer,
) -> Route {
    let does = Operation { method: "GET", summary, body: None, answer };
    route(path, routing::get(handler), does)
}

fn post<T: 'static>(
    path: &'static str,
    handler: impl Handler<T, Arc<App>>,
    summary: &'static str,
    body: &'static str,
    answer: Answer,
) -> Route {
    let does = Operation { method: "POST", summary, body: Some(body), answer };
    route(path, routing::post(handler), does)
}

/// What llama-server has and this server has not.
fn refused<T: 'static>(
    path: &'static str,
    handler: impl Handler<T, Arc<App>>,
    summary: &'static str,
) -> Route {
    let does = Operation { method: "POST", summary, body: None, answer: Answer::Refused(501) };
    route(path, routing::post(handler), does)
}
