//! `POST /v1/embeddings`: a vector for each text, of a model whose files say how to pool.
//!
//! Owns OpenAI's words for it: texts or ids, floats or base64, fewer dimensions. A client that has gone takes its texts
//! with it. Texts that are longer than the context are refused, not cut.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use longrun_lm::embed::{JobId, shortened};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::oneshot;

use super::super::answering::Timings;
use super::super::error::{ApiError, ApiResult};
use super::super::fields::{Fields, id, kind};
use super::super::http::App;
use super::super::prompt::encode;
use super::super::served::Served;
use super::super::tasks::background;
use super::with_ignored;

/// The most texts of one request.
const MOST_TEXTS: usize = 2048;

/// Answers with vectors.
pub(crate) async fn embeddings(State(app): State<Arc<App>>, body: Bytes) -> ApiResult<Response> {
    let mut fields = Fields::parse(&body)?;
    let model = fields.string("model")?;
    let served = app.models.get(model.as_deref()).await?;
    let inputs = inputs(fields.required("input")?)?;
    let is_base64 = match fields.string("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let what = format!("{other:?} is neither float nor base64");
            return Err(ApiError::field("encoding_format", what));
        }
    };
    let dimensions = fields.count("dimensions")?;
    let ignored = fields.finish(app.strict)?;
    let width = dimensions_of(dimensions, served.embedder()?.width())?;
    let ticket = app.admission.enter()?;
    let (served, texts) = background(move || {
        let texts = inputs.into_iter().map(|(place, input)| input.ids(&served, &place));
        let texts = texts.collect::<ApiResult<Vec<_>>>()?;
        Ok((served, texts))
    })
    .await?;
    let tokens = texts.iter().map(Vec::len).sum();
    let vectors = vectors(&served, texts).await?;
    let response = background(move || whole(&served.name, vectors, width, is_base64, tokens)).await;
    drop(ticket);
    Ok(with_ignored(response?, &ignored))
}

/// How many numbers are wanted, if that is fewer than there are.
fn dimensions_of(wanted: Option<usize>, width: usize) -> ApiResult<Option<usize>> {
    match wanted {
        Some(wanted) if !(1..=width).contains(&wanted) => {
            let what = format!("{wanted} is not 1 to {width}, the size of this model's vectors");
            Err(ApiError::field("dimensions", what))
        }
        wanted => Ok(wanted.filter(|wanted| *wanted < width)),
    }
}

#[derive(Debug, PartialEq)]
enum Input {
    Text(String),
    Ids(Vec<u32>),
}

impl Input {
    /// Its ids, which the model can read.
    fn ids(self, served: &Served, place: &str) -> ApiResult<Vec<u32>> {
        let ids = match self {
            Self::Text(text) => encode(served, &text, true)?,
            Self::Ids(ids) => ids,
        };
        let wrong = |what: String| ApiError::field("input", format!("{place} {what}"));
        if ids.is_empty() {
            return Err(wrong("has no tokens".into()));
        }
        if ids.len() > served.context {
            let (tokens, context) = (ids.len(), served.context);
            let error = wrong(format!("has {tokens} tokens, the model's context is {context}"));
            return Err(ApiError { code: Some("context_length_exceeded"), ..error });
        }
        match ids.iter().find(|id| **id as usize >= served.vocab) {
            Some(id) => {
                let what = format!("has token {id}, which is not in the vocabulary");
                Err(wrong(format!("{what} of {}", served.vocab)))
            }
            None => Ok(ids),
        }
    }
}

/// The texts of a request, each with what messages call it.
fn inputs(value: Value) -> ApiResult<Vec<(String, Input)>> {
    let wrong = |what: String| ApiError::field("input", what);
    let one = |place: String, value: Value| match value {
        Value::String(text) if text.is_empty() => Err(wrong(format!("{place} is empty"))),
        Value::String(text) => Ok((place, Input::Text(text))),
        Value::Array(values) if values.is_empty() => Err(wrong(format!("{place} has no tokens"))),
        Value::Array(values) => match values.iter().map(id).collect() {
            Some(ids) => Ok((place, Input::Ids(ids))),
            None => Err(wrong(format!("{place} has what is no token id"))),
        },
        other => Err(wrong(format!("{place} is {}, neither text nor ids", kind(&other)))),
    };
    let all = match value {
        Value::Array(all) if !all.first().is_some_and(Value::is_number) => all,
        value => return Ok(vec![one("it".into(), value)?]),
    };
    match all.len() {
        0 => Err(wrong("there is none".into())),
        n if n > MOST_TEXTS => Err(wrong(format!("{n} texts are more than {MOST_TEXTS}"))),
        _ => {
            let all = all.into_iter().enumerate();
            all.map(|(i, value)| one(format!("text {i}"), value)).collect()
        }
    }
}

/// A job under way. Dropping it ends it.
struct UnderWay {
    served: Arc<Served>,
    job: JobId,
    came: Instant,
    outcome: &'static str,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Self { served, job, came, outcome } = self;
        if let Ok(embedder) = served.embedder() {
            embedder.cancel(*job);
        }
        let timings = Timings { total: came.elapsed().as_secs_f64(), ..Timings::default() };
        served.metrics.request(&served.name, outcome, 0, timings);
    }
}

async fn vectors(served: &Arc<Served>, texts: Vec<Vec<u32>>) -> ApiResult<Vec<Vec<f32>>> {
    let (sender, answer) = oneshot::channel();
    let job = served.embedder()?.submit(texts, Box::new(move |told| _ = sender.send(told)))?;
    let (served, came) = (Arc::clone(served), Instant::now());
    let mut under_way = UnderWay { served, job, came, outcome: "cancelled" };
    let told = match under_way.served.timeout {
        Some(limit) => tokio::time::timeout(limit, answer).await,
        None => Ok(answer.await),
    };
    under_way.outcome = "failed";
    let limit = under_way.served.timeout.map_or(0, |limit| limit.as_secs());
    let told = told.map_err(|_| ApiError::too_late(limit))?;
    let vectors = told.map_err(|_| ApiError::unavailable("the embedder has stopped"))??;
    under_way.outcome = "finished";
    Ok(vectors)
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Item>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Item {
    object: &'static str,
    index: usize,
    embedding: Numbers,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    Floats(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

fn whole(
    model: &str,
    vectors: Vec<Vec<f32>>,
    width: Option<usize>,
    is_base64: bool,
    tokens: usize,
) -> ApiResult<Response> {
    let item = |(index, vector): (usize, Vec<f32>)| {
        let vector = match width {
            Some(width) => shortened(&vector, width),
            None => vector,
        };
        let embedding = if is_base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            Numbers::Base64(base64(&bytes))
        } else {
            Numbers::Floats(vector)
        };
        Item { object: "embedding", index, embedding }
    };
    let data = vectors.into_iter().enumerate().map(item).collect();
    let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
    let text = serde_json::to_vec(&List { object: "list", data, model, usage });
    let text = text.map_err(|_| ApiError::bug("vectors that can't be written"))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
    }

    #[test]
    fn an_input_is_a_text_ids_or_a_list_of_either() {
        let read = |value: Value| {
            let all = inputs(value)?;
            Ok::<_, ApiError>(all.into_iter().map(|(_, input)| input).collect::<Vec<_>>())
        };
        let text = |text: &str| Input::Text(text.into());
        for (value, wanted) in [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![Input::Ids(vec![1, 2])]),
            (json!([[1], [2, 3]]), vec![Input::Ids(vec![1]), Input::Ids(vec![2, 3])]),
            (json!(["a", [1]]), vec![text("a"), Input::Ids(vec![1])]),
        ] {
            assert_eq!(read(value.clone()).unwrap(), wanted, "{value}");
        }
        for bad in [
            json!(""),
            json!([]),
            json!([""]),
            json!(["a", ""]),
            json!([[]]),
            json!([1, "a"]),
            json!([-1]),
            json!([1.5]),
            json!({}),
            json!(7),
            json!([null]),
            json!(vec!["a"; MOST_TEXTS + 1]),
        ] {
            assert_eq!(read(bad.clone()).unwrap_err().param.as_deref(), Some("input"), "{bad}");
        }
    }
}
