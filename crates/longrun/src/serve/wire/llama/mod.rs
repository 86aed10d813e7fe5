//! `POST /completion`: text that goes on with prompts, in llama-server's words.
//!
//! Owns its objects: a chunk for what is new, and a last one that says how it went. Several prompts or choices are
//! numbered through, and make a list.

mod fields;
pub(crate) mod props;
pub(crate) mod samplers;
pub(crate) mod tokens;

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use longrun_lm::answer::Delta;
use longrun_lm::engine::{Mask, Priority};
use serde_json::{Map, Value, json};

use self::fields::Wish;
use super::super::answering::{self, Ask, Cause, Finish, Piece, Pieces, Reading, Token};
use super::super::error::{ApiError, ApiResult};
use super::super::fields::Fields;
use super::super::http::App;
use super::super::served::Served;
use super::super::sse;
use super::super::tasks::background;
use super::{Speed, logprobs, with_ignored};

/// Goes on with prompts.
pub(crate) async fn completion(State(app): State<Arc<App>>, body: Bytes) -> ApiResult<Response> {
    let mut fields = Fields::parse(&body)?;
    let model = fields.string("model")?;
    let served = app.models.writer(model.as_deref()).await?;
    let prompts = tokens::prompts(fields.required("prompt")?)?;
    let (wish, form) = Wish::read(&mut fields, &served)?;
    let wish = Arc::new(wish);
    let ignored = fields.finish(app.strict)?;
    let model = Arc::clone(&served);
    let (prompts, mask) = background(move || {
        let ids = prompts.iter().map(|parts| tokens::ids(&model, ("prompt", parts), true, true));
        let ids = ids.collect::<ApiResult<Vec<Vec<u32>>>>()?;
        Ok((ids, form.answer(&model)?))
    })
    .await?;
    for ids in &prompts {
        check(ids, &served)?;
    }
    let mut answers = Vec::with_capacity(prompts.len());
    for (i, ids) in prompts.into_iter().enumerate() {
        let mask = mask.clone();
        answers.push(Answer::start(&app, &served, &wish, mask, ids, i * wish.choices)?);
    }
    let response = if wish.stream {
        sse::respond(move |out| async move {
            join_all(answers.into_iter().map(|answer| answer.stream(out.clone()))).await;
        })
    } else {
        let wholes = join_all(answers.into_iter().map(Answer::whole)).await;
        let wholes: Vec<Vec<Value>> = wholes.into_iter().collect::<ApiResult<_>>()?;
        let mut all: Vec<Value> = wholes.into_iter().flatten().collect();
        let one = if all.len() == 1 { all.pop() } else { None };
        Json(one.unwrap_or_else(|| all.into())).into_response()
    };
    Ok(with_ignored(response, &ignored))
}

fn check(ids: &[u32], served: &Served) -> ApiResult<()> {
    if ids.is_empty() {
        return Err(ApiError::field("prompt", "it has no tokens"));
    }
    if ids.len() >= served.context {
        let what = format!(
            "a prompt of {} tokens exceeds the available context size of {} tokens; shorten it",
            ids.len(),
            served.context
        );
        let code = Some("context_length_exceeded");
        return Err(ApiError { code, ..ApiError::field("prompt", what) });
    }
    Ok(())
}

/// A text, as far as it has come.
#[derive(Default)]
struct Text {
    /// What was not taken yet.
    content: String,
    tokens: Vec<u32>,
    probabilities: Vec<Value>,
    predicted: usize,
    has_new_line: bool,
    first_token: Option<Instant>,
    end: Option<End>,
}

/// How a text has ended.
struct End {
    kind: &'static str,
    word: String,
    at: Instant,
}

/// What is new.
enum News {
    Progress { done: usize, total: usize },
    More(usize),
    Ended(usize),
}

/// The texts of one prompt.
struct Answer {
    served: Arc<Served>,
    wish: Arc<Wish>,
    pieces: Pieces,
    prompt: Vec<u32>,
    texts: Vec<Text>,
    /// The index of its first text among those of all prompts.
    first: usize,
    /// Tokens at most.
    most: usize,
    cached: usize,
    came: Instant,
}

impl Answer {
    fn start(
        app: &App,
        served: &Arc<Served>,
        wish: &Arc<Wish>,
        mask: Option<Mask>,
        prompt: Vec<u32>,
        first: usize,
    ) -> ApiResult<Self> {
        let room = served.context - prompt.len();
        let most = wish.n_predict.map_or(room, |n| n.min(room));
        let ask = Ask {
            prompt: prompt.clone(),
            boundaries: Vec::new(),
            // A prompt is read by asking for a token, which nobody sees.
            max_tokens: Some(most.max(1)),
            choices: wish.choices,
            params: wish.params.clone(),
            stop: wish.stop.clone(),
            reading: Reading::Plain,
            loops: None,
            mask,
            priority: Priority::default(),
            ignore_eos: wish.ignore_eos,
            score: None,
        };
        let pieces = answering::start(served, ask, app.admission.enter()?)?;
        let texts = std::iter::repeat_with(Text::default).take(wish.choices).collect();
        let (served, wish) = (Arc::clone(served), Arc::clone(wish));
        let came = Instant::now();
        Ok(Self { served, wish, pieces, prompt, texts, first, most, cached: 0, came })
    }

    /// The next thing that is new, until all texts have ended.
    async fn next(&mut self) -> ApiResult<Option<News>> {
        while self.texts.iter().any(|text| text.end.is_none()) {
            if let Some(late) = self.late() {
                self.texts[late].end =
                    Some(End { kind: "limit", word: String::new(), at: Instant::now() });
                return Ok(Some(News::Ended(late)));
            }
            let Some(piece) = self.pieces.next().await else { break };
            match piece {
                Piece::Started { cached, .. } => self.cached = cached,
                Piece::Progress { done, total } => return Ok(Some(News::Progress { done, total })),
                Piece::Token { choice, token } => {
                    if self.texts[choice].end.is_none() && self.most > 0 {
                        self.push(choice, token);
                        return Ok(Some(News::More(choice)));
                    }
                }
                Piece::Ended { choice, deltas, finish, cause } => {
                    if self.texts[choice].end.is_none() {
                        let word = match cause {
                            Some(Cause::Text(text)) => Some(text),
                            Some(Cause::Call | Cause::Loop) | None => None,
                        };
                        self.end(choice, deltas, finish, word);
                        return Ok(Some(News::Ended(choice)));
                    }
                }
                Piece::Failed(error) => return Err(error),
                Piece::Scored(_) | Piece::Done { .. } => {}
            }
        }
        Ok(None)
    }

    fn push(&mut self, choice: usize, token: Token) {
        let text = &mut self.texts[choice];
        text.predicted += 1;
        text.first_token.get_or_insert_with(Instant::now);
        text.tokens.push(token.chosen.id);
        if self.wish.params.logprobs.is_some() {
            text.probabilities.push(logprobs::entry(&self.served, &token.chosen));
        }
        text.add(token.deltas);
    }

    fn end(&mut self, choice: usize, deltas: Vec<Delta>, finish: Finish, word: Option<String>) {
        let text = &mut self.texts[choice];
        if self.most > 0 {
            text.add(deltas);
        }
        let kind = match (finish, &word) {
            _ if self.most == 0 => "limit",
            (Finish::Length, _) => "limit",
            (Finish::Stop | Finish::ToolCalls, Some(_)) => "word",
            (Finish::Stop | Finish::ToolCalls, None) => "eos",
        };
        text.end = Some(End { kind, word: word.unwrap_or_default(), at: Instant::now() });
    }

    /// A text of more than one line that has taken longer than it may.
    fn late(&self) -> Option<usize> {
        let most = self.wish.most_time?;
        self.texts.iter().position(|text| {
            let is_late = text.first_token.is_some_and(|first| first.elapsed() > most);
            is_late && text.has_new_line && text.end.is_none()
        })
    }

    fn speed(&self, text: &Text) -> Speed {
        let first = text.first_token.or(text.end.as_ref().map(|end| end.at));
        let first = first.unwrap_or_else(Instant::now);
        let last = text.end.as_ref().map_or_else(Instant::now, |end| end.at);
        Speed {
            cached: self.cached,
            prompt: self.prompt.len() - self.cached,
            // A wait for a place is part of it: that the wait is over is known when the first step is.
            prompt_seconds: first.duration_since(self.came).as_secs_f64(),
            predicted: text.predicted,
            predicted_seconds: last.duration_since(first).as_secs_f64(),
        }
    }

    /// What chunks and wholes begin with.
    fn object(&mut self, i: usize, tokens: bool) -> Map<String, Value> {
        let text = &mut self.texts[i];
        let ids = std::mem::take(&mut text.tokens);
        let mut object = Map::new();
        object.insert("index".into(), (self.first + i).into());
        object.insert("content".into(), std::mem::take(&mut text.content).into());
        object.insert("tokens".into(), if tokens { ids.into() } else { json!([]) });
        object.insert("id_slot".into(), (-1).into());
        object.insert("stop".into(), text.end.is_some().into());
        object.insert("tokens_predicted".into(), text.predicted.into());
        object.insert("tokens_evaluated".into(), self.prompt.len().into());
        let probabilities = std::mem::take(&mut text.probabilities);
        if !probabilities.is_empty() {
            object.insert("completion_probabilities".into(), probabilities.into());
        }
        object
    }

    fn chunk(&mut self, i: usize) -> Value {
        let mut object = self.object(i, true);
        if self.wish.timings_per_token {
            object.insert("timings".into(), self.speed(&self.texts[i]).object());
        }
        object.into()
    }

    /// The last object of a text.
    fn last(&mut self, i: usize) -> Value {
        let mut object = self.object(i, self.wish.stream || self.wish.return_tokens);
        let text = &self.texts[i];
        let (kind, word) = match &text.end {
            Some(end) => (end.kind, end.word.as_str()),
            None => ("none", ""),
        };
        let asked = self.wish.n_predict;
        let full = self.prompt.len() + text.predicted == self.served.context;
        let truncated = kind == "limit" && full && asked.is_none_or(|asked| asked > self.most);
        let tokenizer = self.served.source.tokenizer.as_ref();
        let read = self.prompt.len() + text.predicted.saturating_sub(1);
        let mut more = json!({
            "model": self.served.name,
            "generation_settings": self.wish.settings(),
            "prompt": tokenizer.map_or_else(String::new, |t| t.decode(&self.prompt, false)),
            "has_new_line": text.has_new_line,
            "truncated": truncated,
            "stop_type": kind,
            "stopping_word": word,
            "tokens_cached": read,
            "timings": self.speed(text).object(),
        });
        if let Value::Object(more) = &mut more {
            object.append(more);
        }
        picked(object, &self.wish.response_fields)
    }

    async fn whole(mut self) -> ApiResult<Vec<Value>> {
        while self.next().await?.is_some() {}
        Ok((0..self.texts.len()).map(|i| self.last(i)).collect())
    }

    async fn stream(mut self, out: sse::Writer) {
        loop {
            let news = tokio::select! {
                biased;
                () = out.gone() => return,
                news = self.next() => news,
            };
            let goes_on = match news {
                Ok(Some(News::Progress { done, total })) if self.wish.return_progress => {
                    let mut chunk = self.chunk(0);
                    let time_ms = self.came.elapsed().as_secs_f64() * 1e3;
                    chunk["prompt_progress"] = json!({
                        "total": total,
                        "cache": self.cached,
                        "processed": done,
                        "time_ms": time_ms,
                    });
                    out.data(&chunk)
                }
                Ok(Some(News::Progress { .. })) => true,
                Ok(Some(News::More(i))) => {
                    let text = &self.texts[i];
                    let news = !text.content.is_empty() || !text.probabilities.is_empty();
                    !news || out.data(&self.chunk(i))
                }
                Ok(Some(News::Ended(i))) => out.data(&self.last(i)),
                Ok(None) => return,
                Err(error) => {
                    out.data(&error.body());
                    return;
                }
            };
            if !goes_on {
                return;
            }
        }
    }
}

impl Text {
    fn add(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            if let Delta::Content(text) = delta {
                self.has_new_line |= text.contains('\n');
                self.content += &text;
            }
        }
    }
}

/// Only the wanted fields, under their paths.
fn picked(object: Map<String, Value>, wanted: &[String]) -> Value {
    let object = Value::from(object);
    if wanted.is_empty() {
        return object;
    }
    let field = |path: &String| {
        let found = path.split('/').try_fold(&object, |value, name| value.get(name))?;
        Some((path.clone(), found.clone()))
    };
    wanted.iter().filter_map(field).collect::<Map<_, _>>().into()
}
