//! `POST /v1/completions`: text that goes on with a prompt, as it is.
//!
//! Owns the older endpoint's words. A prompt is a text, ids, or a list of either; each has `n` choices.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use longrun_lm::answer::Delta;
use longrun_lm::engine::{Mask, Score};
use serde_json::{Value, json};

use super::super::answering::{self, Ask, Cause, Finish, Piece, Pieces, Reading};
use super::super::error::{ApiError, ApiResult};
use super::super::fields::{Fields, id, kind};
use super::super::form::Form;
use super::super::http::App;
use super::super::prompt::encode;
use super::super::served::Served;
use super::super::sse;
use super::super::tasks::background;
use super::chat::finish_reason;
use super::echo::{self, Echo};
use super::logprobs::Lists;
use super::{Common, Tally, alternatives, new_id, now, progress_object, stop_reason, with_ignored};

/// The most prompts of one request.
const MOST_PROMPTS: usize = 64;

/// Goes on with prompts.
pub(crate) async fn completions(State(app): State<Arc<App>>, body: Bytes) -> ApiResult<Response> {
    let mut fields = Fields::parse(&body)?;
    let model = fields.string("model")?;
    let served = app.models.writer(model.as_deref()).await?;
    let prompts = prompts(fields.required("prompt")?)?;
    let mut common = Common::read(&mut fields, &served)?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    let top = fields.count("logprobs")?;
    common.params.logprobs = top.map(|top| alternatives("logprobs", top)).transpose()?;
    let score = top.filter(|_| echo);
    let choices = common.choices;
    let ignored = fields.finish(app.strict)?;
    let form = Form { answer: common.format.take(), ..Form::default() };
    let (served, prompts, mask) = background(move || {
        // All prompts are known to be right before the first one is read.
        let read = prompts.into_iter().map(|prompt| prompt.read(&served, echo, score));
        let read = read.collect::<ApiResult<Vec<Read>>>()?;
        if let Some(top) = score {
            echo::check(read.iter().map(|read| read.ids.len()).sum(), choices, top)?;
        }
        let mask = form.answer(&served)?;
        Ok((served, read, mask))
    })
    .await?;
    let mut answers = Vec::with_capacity(prompts.len());
    for (i, read) in prompts.into_iter().enumerate() {
        answers.push(Answer::start(&app, &served, &common, read, mask.clone(), i * choices)?);
    }
    let head = Head { id: new_id("cmpl-"), created: now(), served };
    let response = if common.stream {
        sse::respond(move |out| stream(head, answers, out, common))
    } else {
        Json(whole(head, answers).await?).into_response()
    };
    Ok(with_ignored(response, &ignored))
}

enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// A prompt as the engine reads it, and what its choices begin with: a text, or one whose tokens are scored.
struct Read {
    ids: Vec<u32>,
    before: String,
    scored: Option<(Echo, Score)>,
}

impl Prompt {
    fn read(self, served: &Served, echo: bool, score: Option<usize>) -> ApiResult<Read> {
        let written = matches!(self, Self::Text(_));
        let (ids, text) = match self {
            Self::Text(text) if text.is_empty() => (Vec::new(), text),
            Self::Text(text) => (encode(served, &text, true)?, text),
            Self::Ids(ids) => {
                let text = text(served, &ids);
                (ids, text)
            }
        };
        if ids.is_empty() {
            return Err(ApiError::field("prompt", "it has no tokens"));
        }
        Ok(match score {
            Some(top) => {
                let echo = Echo::new(served, &ids, text, written)?;
                Read { ids, before: String::new(), scored: Some((echo, Echo::score(top))) }
            }
            None => Read { ids, before: if echo { text } else { String::new() }, scored: None },
        })
    }
}

fn prompts(value: Value) -> ApiResult<Vec<Prompt>> {
    let wrong = |what: String| ApiError::field("prompt", what);
    let ids = |values: &[Value]| values.iter().map(id).collect::<Option<Vec<u32>>>();
    let prompts = match &value {
        Value::String(text) => vec![Prompt::Text(text.clone())],
        Value::Array(values) if values.first().is_some_and(Value::is_number) => {
            vec![Prompt::Ids(ids(values).ok_or_else(|| wrong("an id is no token id".into()))?)]
        }
        Value::Array(values) => {
            let one = |value: &Value| match value {
                Value::String(text) => Some(Prompt::Text(text.clone())),
                Value::Array(values) => ids(values).map(Prompt::Ids),
                _ => None,
            };
            let all: Option<Vec<Prompt>> = values.iter().map(one).collect();
            all.ok_or_else(|| wrong("one of them is neither text nor ids".into()))?
        }
        other => return Err(wrong(format!("{} is neither text nor ids", kind(other)))),
    };
    match prompts.len() {
        0 => Err(wrong("there is none".into())),
        n if n > MOST_PROMPTS => Err(wrong(format!("{n} are more than {MOST_PROMPTS}"))),
        _ => Ok(prompts),
    }
}

fn text(served: &Served, ids: &[u32]) -> String {
    served.source.tokenizer.as_ref().map_or_else(String::new, |t| t.decode(ids, false))
}

/// What all chunks begin with.
struct Head {
    id: String,
    created: u64,
    served: Arc<Served>,
}

impl Head {
    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.served.name,
            "system_fingerprint": self.served.fingerprint(),
            "choices": choices,
        })
    }
}

#[derive(Default)]
struct Choice {
    text: String,
    /// Characters of it so far, the echo included.
    characters: usize,
    lists: Lists,
    finish: Option<(Finish, Option<Cause>)>,
}

/// The choices of one prompt.
struct Answer {
    served: Arc<Served>,
    pieces: Pieces,
    logprobs: bool,
    /// The prompt, until all of it is scored.
    echo: Option<Echo>,
    choices: Vec<Choice>,
    /// How much of the prompt was read, and all of it, if that is new.
    progress: Option<(usize, usize)>,
    /// The index of its first choice among those of all prompts.
    first: usize,
    tally: Tally,
}

impl Answer {
    fn start(
        app: &App,
        served: &Arc<Served>,
        common: &Common,
        read: Read,
        mask: Option<Mask>,
        first: usize,
    ) -> ApiResult<Self> {
        let Read { ids, before, scored } = read;
        let (echo, score) = scored.unzip();
        let tally = Tally::new(ids.len());
        let characters = before.chars().count();
        let choice = || Choice { text: before.clone(), characters, ..Choice::default() };
        let choices = std::iter::repeat_with(choice).take(common.choices).collect();
        let logprobs = common.params.logprobs.is_some();
        let ask = Ask {
            prompt: ids,
            boundaries: Vec::new(),
            max_tokens: common.max_tokens,
            choices: common.choices,
            params: common.params.clone(),
            stop: common.stop.clone(),
            reading: Reading::Plain,
            loops: common.loops.clone(),
            mask,
            priority: common.priority,
            ignore_eos: common.ignore_eos,
            score,
        };
        let pieces = answering::start(served, ask, app.admission.enter()?)?;
        let (served, progress) = (Arc::clone(served), None);
        Ok(Self { served, pieces, logprobs, echo, choices, progress, first, tally })
    }

    /// Gives the scored prompt to all choices, which have nothing else yet.
    fn say_echo(&mut self) {
        let Some(mut echo) = self.echo.take() else { return };
        echo.begin(&self.served);
        let characters = echo.text.chars().count();
        for choice in &mut self.choices {
            choice.text.clone_from(&echo.text);
            choice.lists = echo.lists.clone();
            choice.characters = characters;
        }
    }

    /// The next choice that has something new.
    async fn next(&mut self) -> ApiResult<Option<usize>> {
        while let Some(piece) = self.pieces.next().await {
            self.tally.take(&piece);
            if matches!(piece, Piece::Token { .. } | Piece::Ended { .. }) {
                self.say_echo();
            }
            let (i, deltas) = match piece {
                Piece::Token { choice, token } => {
                    let of = &mut self.choices[choice];
                    if self.logprobs {
                        of.lists.push(&self.served, &token.chosen, of.characters);
                    }
                    (choice, token.deltas)
                }
                Piece::Ended { choice, deltas, finish, cause } => {
                    self.choices[choice].finish = Some((finish, cause));
                    (choice, deltas)
                }
                Piece::Progress { done, total } => {
                    self.progress = Some((done, total));
                    return Ok(Some(0));
                }
                Piece::Scored(scores) => {
                    self.echo.iter_mut().for_each(|echo| echo.push(&self.served, &scores));
                    continue;
                }
                Piece::Failed(error) => return Err(error),
                Piece::Started { .. } | Piece::Done { .. } => continue,
            };
            for delta in deltas {
                if let Delta::Content(text) = delta {
                    self.choices[i].characters += text.chars().count();
                    self.choices[i].text += &text;
                }
            }
            return Ok(Some(i));
        }
        Ok(None)
    }

    /// What a choice has that was not taken yet.
    fn take(&mut self, i: usize) -> Value {
        let choice = &mut self.choices[i];
        let logprobs = self.logprobs.then(|| choice.lists.take());
        json!({
            "index": self.first + i,
            "text": std::mem::take(&mut choice.text),
            "logprobs": logprobs,
            "finish_reason": choice.finish.as_ref().map(|(finish, _)| finish_reason(*finish)),
            "stop_reason": stop_reason(choice.finish.as_ref().and_then(|(_, cause)| cause.as_ref())),
        })
    }
}

async fn whole(head: Head, mut answers: Vec<Answer>) -> ApiResult<Value> {
    let (mut choices, mut all) = (Vec::new(), Tally::default());
    for answer in &mut answers {
        while answer.next().await?.is_some() {}
        choices.extend((0..answer.choices.len()).map(|i| answer.take(i)));
        all.add(&answer.tally);
    }
    let mut object = head.object(choices.into());
    object["usage"] = all.usage();
    object["longrun"] = all.own();
    object["timings"] = all.timings();
    Ok(object)
}

async fn stream(head: Head, mut answers: Vec<Answer>, out: sse::Writer, common: Common) {
    let mut all = Tally::default();
    for answer in &mut answers {
        for i in 0..answer.choices.len() {
            if !answer.choices[i].text.is_empty() {
                out.data(&head.object(json!([answer.take(i)])));
            }
        }
        loop {
            let next = tokio::select! {
                biased;
                () = out.gone() => return,
                next = answer.next() => next,
            };
            match next {
                Ok(Some(i)) => {
                    let progress = answer.progress.take().filter(|_| common.include_progress);
                    if let Some((done, total)) = progress {
                        let mut chunk = head.object(json!([]));
                        chunk["prompt_progress"] = progress_object(&answer.tally, done, total);
                        out.data(&chunk);
                    }
                    let choice = &answer.choices[i];
                    let news = !choice.text.is_empty()
                        || choice.finish.is_some()
                        || !choice.lists.is_empty();
                    if news && !out.data(&head.object(json!([answer.take(i)]))) {
                        return;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    out.data(&error.body());
                    return;
                }
            }
        }
        all.add(&answer.tally);
    }
    if common.include_usage {
        let mut chunk = head.object(json!([]));
        chunk["usage"] = all.usage();
        chunk["longrun"] = all.own();
        chunk["timings"] = all.timings();
        out.data(&chunk);
    }
    out.text("[DONE]");
}
