//! The server as its clients see it: the real binary, over HTTP.

mod adapters;
mod cases;
mod chat;
mod document;
mod echo;
mod embeddings;
mod examples;
mod faults;
mod forms;
mod kept;
mod life;
mod llama;
mod malformed;
mod messages;
mod openapi;
mod packaging;
mod page;
mod responses;
mod schema;
mod server;
mod soak;
mod talk;
