//! Text to token ids and back: tokenizers, incremental decoding, stop strings, chat templates.
//!
//! Owns every byte of text between a request and the engine. Refuses to know models, caches or
//! sockets: ids go in and come out as integers.
//!
//! How text flows:
//!
//! ```text
//! messages --ChatTemplate::render--> prompt text --Tokenizer::encode--> ids --> engine
//! engine --> id --Detokenizer::push--> whole code points --StopMatcher::push--> text to send
//! ```
//!
//! - [`Tokenizer`] reads `tokenizer.json` or the vocabulary of a GGUF file ([`GgufVocab`]). Both
//!   answer the same questions, among them the raw bytes of one token ([`Tokenizer::token_bytes`]).
//! - [`Detokenizer`] turns ids into text one at a time in constant memory: only whole code points
//!   leave it, and what it said in all equals [`Tokenizer::decode`] of the same ids.
//! - [`StopMatcher`] holds back what might become a stop string, so that no part of one leaks.
//! - [`ChatTemplate`] runs the Jinja template of a checkpoint, with bounds on its work and output.
//!
//! A rendered chat template already holds its special tokens as text: encode it with
//! `special = true`; a beginning-of-text token that the text starts with is not doubled.

mod completion;
mod detokenizer;
mod gguf_bpe;
mod hf;
mod spm;
mod stop;
mod template;
mod tokenizer;
mod vocab;

pub use completion::CompletionText;
pub use detokenizer::Detokenizer;
pub use stop::StopMatcher;
pub use template::{ChatInput, ChatTemplate};
pub use tokenizer::Tokenizer;
pub use vocab::GgufVocab;
