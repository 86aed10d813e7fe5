//! One request in the engine: rows in, pieces of text out, as they come.
//!
//! Owns what becomes of tokens on their way to a client: text, cut at stop strings, taken apart into reasoning, content
//! and calls. A task of its own reads the engine's events, however slow the client is; it ends when the client has
//! gone, which cancels the rows. It knows no wire format.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longrun_lm::answer::{Delta, Ended, Format, LoopDetector, Outcome, Parser, ToolSchema};
use longrun_lm::engine::{Event, FinishReason, Mask, Priority, Request, RowId, Score};
use longrun_lm::prefix::Miss;
use longrun_lm::sample::{Choice, SamplingParams};
use longrun_lm::text::CompletionText;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::admission::Ticket;
use super::error::{ApiError, ApiResult};
use super::served::Served;

/// What a request comes to, whatever its wire format.
pub(crate) struct Ask {
    pub(crate) prompt: Vec<u32>,
    /// See [`Request::boundaries`].
    pub(crate) boundaries: Vec<usize>,
    /// Tokens of each choice at most; as many as the context holds if nothing is said.
    pub(crate) max_tokens: Option<usize>,
    /// Texts that are wanted.
    pub(crate) choices: usize,
    pub(crate) params: SamplingParams,
    pub(crate) stop: Vec<String>,
    pub(crate) reading: Reading,
    /// The text ends where it repeats itself.
    pub(crate) loops: Option<LoopDetector>,
    pub(crate) mask: Option<Mask>,
    pub(crate) priority: Priority,
    /// Texts are not ended by the model's own ids.
    pub(crate) ignore_eos: bool,
    /// The prompt's own tokens are scored, too.
    pub(crate) score: Option<Score>,
}

/// How the text of a choice is understood.
#[derive(Clone)]
pub(crate) enum Reading {
    /// All of it is content.
    Plain,
    /// It holds reasoning and calls; a single one if more are not wanted.
    Answer { format: Arc<Format>, tools: Arc<[ToolSchema]>, in_reasoning: bool, single: bool },
}

/// What ended a text beside the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// One of the texts that were to end it.
    Text(String),
    /// It had its call.
    Call,
    /// It repeated itself.
    Loop,
}

/// Why a choice has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

/// What happened to a request.
pub(crate) enum Piece {
    /// The first choice has got its place.
    Started { cached: usize, miss: Option<Miss> },
    /// More of the prompt was read.
    Progress { done: usize, total: usize },
    /// The next tokens of the prompt were scored: all that are asked for, before any choice has a token or an end.
    Scored(Vec<Choice>),
    /// A choice has one more token.
    Token { choice: usize, token: Token },
    /// A choice is done.
    Ended { choice: usize, deltas: Vec<Delta>, finish: Finish, cause: Option<Cause> },
    /// All are done.
    Done { timings: Timings },
    /// Nothing more comes.
    Failed(ApiError),
}

/// One token of a choice, and the text that can be shown because of it.
pub(crate) struct Token {
    pub(crate) chosen: Choice,
    pub(crate) deltas: Vec<Delta>,
    /// It belongs to the reasoning.
    pub(crate) is_reasoning: bool,
}

/// When things happened, in seconds since the request came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timings {
    pub(crate) queued: f64,
    pub(crate) first_token: f64,
    pub(crate) total: f64,
}

/// The pieces of a request. Dropping them cancels it.
pub(crate) struct Pieces {
    pieces: UnboundedReceiver<Piece>,
    pub(crate) prompt_tokens: usize,
}

impl Pieces {
    pub(crate) async fn next(&mut self) -> Option<Piece> {
        self.pieces.recv().await
    }
}

/// Hands a request to the engine.
pub(crate) fn start(served: &Arc<Served>, ask: Ask, ticket: Ticket) -> ApiResult<Pieces> {
    let prompt_tokens = ask.prompt.len();
    let request = request(served, &ask)?;
    let readers = (0..ask.choices).map(|_| Reader::new(served, &ask));
    let choices: Vec<Reader> = readers.collect::<ApiResult<_>>()?;
    let (out, pieces) = mpsc::unbounded_channel();
    let (events_in, events) = mpsc::unbounded_channel();
    let mut rows = Rows { served: Arc::clone(served), events: events_in, live: Vec::new() };
    if request.max_tokens > 0 || request.score.is_some() {
        rows.submit(0, request.clone())?;
    }
    let job = Job {
        rows,
        request,
        choices,
        out,
        timings: Timings::default(),
        came: Instant::now(),
        _ticket: ticket,
    };
    tokio::spawn(job.run(events));
    Ok(Pieces { pieces, prompt_tokens })
}

fn request(served: &Served, ask: &Ask) -> ApiResult<Request> {
    let (prompt, context) = (ask.prompt.len(), served.context);
    let room = context.saturating_sub(prompt);
    let max_tokens = ask.max_tokens.unwrap_or(room);
    // A prompt may be tried without a token of an answer, or scored without one.
    let scored = ask.score.is_some() && ask.max_tokens == Some(0) && prompt <= context;
    if (room == 0 && !scored) || max_tokens > room {
        return Err(ApiError::too_long(prompt, ask.max_tokens, context));
    }
    let stop_ids = if ask.ignore_eos { Arc::from([]) } else { Arc::clone(&served.source.eos) };
    let boundary_ids = served.reasoning.as_ref().filter(|tags| tags.is_exact);
    let boundary_ids = boundary_ids.map_or_else(|| Arc::from([]), |tags| Arc::clone(&tags.close));
    let request = Request {
        params: ask.params.clone(),
        stop_ids,
        priority: ask.priority,
        adapter: served.slot(),
        boundaries: ask.boundaries.clone(),
        boundary_ids,
        mask: ask.mask.clone(),
        score: ask.score,
        ..Request::new(ask.prompt.clone(), max_tokens)
    };
    let least = Request { max_tokens: max_tokens.max(usize::from(!scored)), ..request };
    least.validate(context, served.vocab)?;
    Ok(Request { max_tokens, ..least })
}

/// The rows of a request. Dropping them cancels those that are not done.
struct Rows {
    served: Arc<Served>,
    events: UnboundedSender<(usize, Event)>,
    live: Vec<(usize, RowId)>,
}

impl Rows {
    fn submit(&mut self, choice: usize, request: Request) -> ApiResult<()> {
        let events = self.events.clone();
        let sink = Box::new(move |event| events.send((choice, event)).is_ok());
        let row = self.served.engine()?.submit_to(request, sink)?;
        self.live.push((choice, row));
        Ok(())
    }

    /// The choice needs its row no more.
    fn end(&mut self, choice: usize, cancel: bool) {
        for (_, row) in self.live.extract_if(.., |(of, _)| *of == choice) {
            if cancel && let Ok(engine) = self.served.engine() {
                engine.cancel(row);
            }
        }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        if let Ok(engine) = self.served.engine() {
            self.live.iter().for_each(|(_, row)| engine.cancel(*row));
        }
    }
}

/// The task of one request.
struct Job {
    rows: Rows,
    request: Request,
    choices: Vec<Reader>,
    out: UnboundedSender<Piece>,
    timings: Timings,
    came: Instant,
    _ticket: Ticket,
}

impl Job {
    async fn run(mut self, mut events: UnboundedReceiver<(usize, Event)>) {
        let limit = self.rows.served.timeout;
        let late = tokio::time::sleep(limit.unwrap_or(Duration::from_secs(1 << 30)));
        tokio::pin!(late);
        if self.request.max_tokens == 0 && self.request.score.is_none() {
            for choice in 0..self.choices.len() {
                let (deltas, finish) = self.choices[choice].finish(FinishReason::Length, None);
                let _ = self.out.send(Piece::Ended { choice, deltas, finish, cause: None });
            }
            return self.done();
        }
        loop {
            let event = tokio::select! {
                biased;
                () = self.out.closed() => return self.count("cancelled"),
                () = &mut late => {
                    let seconds = limit.map_or(0, |limit| limit.as_secs());
                    return self.fail(ApiError::too_late(seconds));
                }
                event = events.recv() => event,
            };
            let Some((choice, event)) = event else {
                return self.fail(ApiError::unavailable("the engine has stopped"));
            };
            if let Err(error) = self.take(choice, event) {
                return self.fail(error);
            }
            if self.choices.iter().all(|choice| choice.ended) {
                return self.done();
            }
        }
    }

    fn done(mut self) {
        self.timings.total = self.came.elapsed().as_secs_f64();
        self.count("finished");
        let _ = self.out.send(Piece::Done { timings: self.timings });
    }

    fn fail(self, error: ApiError) {
        self.count("failed");
        tracing::warn!(error = %error.message, "a request failed");
        let _ = self.out.send(Piece::Failed(error));
    }

    fn count(&self, outcome: &'static str) {
        let served = &self.rows.served;
        let tokens = self.choices.iter().map(|choice| choice.tokens).sum();
        let timings = Timings { total: self.came.elapsed().as_secs_f64(), ..self.timings };
        served.metrics.request(&served.name, outcome, tokens, timings);
    }

    fn take(&mut self, choice: usize, event: Event) -> ApiResult<()> {
        let piece = match event {
            Event::Started { cached, miss, .. } if choice == 0 => {
                self.timings.queued = self.came.elapsed().as_secs_f64();
                Piece::Started { cached, miss }
            }
            Event::Progress { done, total, .. } if choice == 0 => Piece::Progress { done, total },
            Event::Scored { scores, .. } if choice == 0 => Piece::Scored(scores),
            Event::Started { .. } | Event::Progress { .. } | Event::Scored { .. } => return Ok(()),
            Event::Token { choice: chosen, .. } => return self.token(choice, chosen),
            Event::Finished { reason, .. } => {
                self.rows.end(choice, false);
                return self.finished(choice, reason);
            }
            Event::Failed { error, .. } => return Err(error.into()),
        };
        let _ = self.out.send(piece);
        Ok(())
    }

    fn token(&mut self, choice: usize, chosen: Choice) -> ApiResult<()> {
        if self.choices[choice].ended {
            return Ok(());
        }
        if choice == 0 && self.choices[0].tokens == 0 {
            self.timings.first_token = self.came.elapsed().as_secs_f64();
            // The others find the prompt read.
            for other in 1..self.choices.len() {
                let mut request = Request { score: None, ..self.request.clone() };
                request.params.seed =
                    request.params.seed.map(|seed| seed.wrapping_add(other as u64));
                self.rows.submit(other, request)?;
            }
        }
        let (token, cause) = self.choices[choice].push(chosen);
        let _ = self.out.send(Piece::Token { choice, token });
        match cause {
            Some(cause) => {
                self.rows.end(choice, true);
                self.end(choice, FinishReason::Stop, Some(cause))
            }
            None => Ok(()),
        }
    }

    fn finished(&mut self, choice: usize, reason: FinishReason) -> ApiResult<()> {
        if self.request.max_tokens > 0 {
            return self.end(choice, reason, None);
        }
        // One row has read the prompt for all choices.
        self.timings.first_token = self.came.elapsed().as_secs_f64();
        (0..self.choices.len()).try_for_each(|choice| self.end(choice, reason, None))
    }

    fn end(&mut self, choice: usize, reason: FinishReason, cause: Option<Cause>) -> ApiResult<()> {
        let reader = &mut self.choices[choice];
        if reader.ended {
            return Ok(());
        }
        let (deltas, finish) = reader.finish(reason, cause.as_ref());
        let _ = self.out.send(Piece::Ended { choice, deltas, finish, cause });
        Ok(())
    }
}

/// The text of one choice.
struct Reader {
    text: Option<CompletionText>,
    parser: Option<Parser>,
    stops: Vec<String>,
    /// A call ends the text.
    single: bool,
    loops: Option<LoopDetector>,
    tokens: usize,
    ended: bool,
}

impl Reader {
    fn new(served: &Served, ask: &Ask) -> ApiResult<Self> {
        let (parser, single) = match &ask.reading {
            Reading::Plain => (None, false),
            Reading::Answer { format, tools, in_reasoning, single } => {
                let parser = Parser::new(Arc::clone(format), Arc::clone(tools), *in_reasoning);
                (Some(parser), *single)
            }
        };
        let text = match &served.source.tokenizer {
            Some(tokenizer) => {
                let text = CompletionText::new(Arc::clone(tokenizer), &ask.stop)?;
                Some(if parser.is_some() { text.showing(&served.visible) } else { text })
            }
            None => None,
        };
        let (stops, loops) = (ask.stop.clone(), ask.loops.clone());
        Ok(Self { text, parser, stops, single, loops, tokens: 0, ended: false })
    }

    /// Takes a token. Says why it is the last one, if it is.
    fn push(&mut self, chosen: Choice) -> (Token, Option<Cause>) {
        self.tokens += 1;
        let (new, stop) = match &mut self.text {
            Some(text) => {
                let (new, stop) = text.push(chosen.id);
                (new.to_owned(), stop)
            }
            None => (format!(" {}", chosen.id), None),
        };
        let marks = self.text.as_ref().map_or(&[][..], CompletionText::marks);
        let mut deltas = Vec::new();
        let mut is_reasoning = false;
        match &mut self.parser {
            Some(parser) => {
                is_reasoning = parser.in_reasoning();
                parser.push_marked(&new, marks, &mut deltas);
            }
            None if new.is_empty() => {}
            None => deltas.push(Delta::Content(new)),
        }
        let stop = stop.and_then(|i| self.stops.get(i).cloned()).map(Cause::Text);
        let called = deltas.iter().any(|delta| matches!(delta, Delta::CallEnd { .. }));
        let called = (self.single && called).then_some(Cause::Call);
        let looped = self.loops.as_mut().and_then(|loops| loops.push(chosen.id));
        let cause = stop.or(called).or(looped.map(|_| Cause::Loop));
        (Token { chosen, deltas, is_reasoning }, cause)
    }

    /// Gives the text that was held back.
    fn finish(&mut self, reason: FinishReason, cause: Option<&Cause>) -> (Vec<Delta>, Finish) {
        self.ended = true;
        let rest = match &mut self.text {
            Some(text) if !matches!(cause, Some(Cause::Text(_) | Cause::Call)) => text.finish(),
            _ => String::new(),
        };
        let mut deltas = Vec::new();
        let ended = match reason {
            FinishReason::Stop => Ended::Stop,
            FinishReason::Length => Ended::Length,
        };
        let finish = match reason {
            FinishReason::Stop => Finish::Stop,
            FinishReason::Length => Finish::Length,
        };
        let Some(parser) = &mut self.parser else {
            if !rest.is_empty() {
                deltas.push(Delta::Content(rest));
            }
            return (deltas, finish);
        };
        let marks = self.text.as_ref().map_or(&[][..], CompletionText::marks);
        parser.push_marked(&rest, marks, &mut deltas);
        let outcome = parser.finish(ended, &mut deltas);
        let finish = if outcome == Outcome::Calls { Finish::ToolCalls } else { finish };
        (deltas, finish)
    }
}
