//! One answer, as it comes.
//!
//! Owns how it looks: reasoning is dim, and on a terminal only; figures come behind it. Ctrl-C ends it, and what has come
//! stays.

use std::io::IsTerminal;
use std::time::Instant;

use longrun_lm::{Error, Kind, Result};
use serde_json::Value;
use tokio::signal::unix::Signal;

use super::backend::Events;
use crate::show;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Where it is shown.
pub(super) struct Screen {
    /// Somebody types and reads.
    pub(super) is_terminal: bool,
    colours: bool,
}

impl Screen {
    pub(super) fn new(is_terminal: bool) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { is_terminal, colours: is_terminal && wanted && std::io::stderr().is_terminal() }
    }

    /// What was asked for, to standard output.
    pub(super) fn say(&self, text: &str) -> Result<bool> {
        show::out(text)
    }

    /// Text of a model: what would tell a terminal to do something is shown as a box.
    fn text(&self, text: &str) -> Result<bool> {
        if self.is_terminal { show::out(&tamed(text)) } else { show::out(text) }
    }

    /// What is beside it, to standard error.
    pub(super) fn note(&self, text: &str) {
        show::note(&if self.colours { format!("{DIM}{text}{PLAIN}") } else { text.to_owned() });
    }
}

fn tamed(text: &str) -> String {
    let tame = |c: char| if c.is_control() && !"\n\t".contains(c) { '\u{fffd}' } else { c };
    text.chars().map(tame).collect()
}

/// An answer that has ended.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) content: String,
    pub(super) prompt: u64,
    pub(super) cached: u64,
    pub(super) generated: u64,
    /// By Ctrl-C.
    pub(super) was_stopped: bool,
    finish: Option<String>,
    has_usage: bool,
    /// Tokens a second, if the server says so.
    rate: Option<f64>,
    /// When the first and the last piece came, and how many did.
    pieces: Option<(Instant, Instant)>,
    count: u64,
    /// The last piece was reasoning.
    in_reasoning: bool,
}

impl Answer {
    /// Shows an answer until it ends or Ctrl-C ends it.
    ///
    /// # Errors
    /// The server's, if it did not come whole.
    pub(super) async fn show(
        mut events: Events,
        screen: &Screen,
        interrupts: &mut Signal,
    ) -> Result<Self> {
        let mut answer = Self::default();
        loop {
            let event = tokio::select! {
                biased;
                _ = interrupts.recv() => {
                    answer.was_stopped = true;
                    break;
                }
                event = events.recv() => event,
            };
            let Some(event) = event else { break };
            if !answer.take(&event?, screen)? {
                answer.was_stopped = true;
                break;
            }
        }
        answer.ends_reasoning(screen)?;
        if !answer.content.ends_with('\n') {
            screen.say("\n")?;
        }
        if answer.finish.is_none() && !answer.was_stopped {
            let what = "the answer broke off before its end";
            return Err(Error::new(Kind::Device, what).hint("is the server still there?"));
        }
        Ok(answer)
    }

    /// Takes a chunk. False if nobody reads any more.
    fn take(&mut self, event: &Value, screen: &Screen) -> Result<bool> {
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            let count = |value: &Value| value.as_u64().unwrap_or(0);
            self.has_usage = true;
            self.prompt = count(&usage["prompt_tokens"]);
            self.generated = count(&usage["completion_tokens"]);
            self.cached = count(&usage["prompt_tokens_details"]["cached_tokens"]);
        }
        self.rate = event["longrun"]["tokens_per_second"].as_f64().or(self.rate);
        let choice = &event["choices"][0];
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish = Some(reason.to_owned());
        }
        let delta = &choice["delta"];
        let reasoning = delta["reasoning_content"].as_str().or(delta["reasoning"].as_str());
        let text = |piece: Option<&str>| piece.filter(|piece| !piece.is_empty()).map(str::to_owned);
        let mut is_read = true;
        if let Some(piece) = text(reasoning) {
            self.came();
            if screen.is_terminal {
                if screen.colours && !self.in_reasoning {
                    screen.say(DIM)?;
                }
                is_read = screen.text(&piece)?;
            }
            self.in_reasoning = true;
        }
        if let Some(piece) = text(delta["content"].as_str()) {
            self.came();
            self.ends_reasoning(screen)?;
            is_read = screen.text(&piece)?;
            self.content += &piece;
        }
        Ok(is_read)
    }

    fn came(&mut self) {
        let now = Instant::now();
        self.count += 1;
        self.pieces = Some((self.pieces.map_or(now, |(first, _)| first), now));
    }

    fn ends_reasoning(&mut self, screen: &Screen) -> Result<()> {
        if std::mem::take(&mut self.in_reasoning) && screen.is_terminal {
            screen.say(if screen.colours { PLAIN } else { "" })?;
            screen.say("\n\n")?;
        }
        Ok(())
    }

    /// What there is to say of it.
    pub(super) fn figures(&self) -> String {
        let tokens = if self.has_usage { self.generated } else { self.count };
        let seconds = self.pieces.map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        let own =
            (self.count > 1 && seconds > 0.0).then(|| tokens.saturating_sub(1) as f64 / seconds);
        let mut said =
            vec![if tokens == 1 { "1 token".into() } else { format!("{tokens} tokens") }];
        if self.was_stopped {
            said.push("stopped".into());
        }
        if let Some(rate) = self.rate.filter(|rate| *rate > 0.0).or(own) {
            said.push(format!("{rate:.1} tokens/s"));
        }
        if self.has_usage {
            said.push(format!("prompt {} tokens, {} from the cache", self.prompt, self.cached));
        }
        if self.finish.as_deref() == Some("length") {
            said.push("cut at the most tokens".into());
        }
        format!("[{}]", said.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_terminal_is_told_nothing_by_a_model() {
        let told = tamed("a\x1b]0;title\x07\tb\r\n\u{9b}31mé");
        assert_eq!(told, "a\u{fffd}]0;title\u{fffd}\tb\u{fffd}\n\u{fffd}31mé");
    }

    #[test]
    fn what_other_servers_send_is_counted() {
        let screen = Screen { is_terminal: false, colours: false };
        let mut answer = Answer::default();
        let chunk = |delta: Value, finish: Option<&str>| {
            let choice = json!({"delta": delta, "finish_reason": finish});
            json!({"choices": [choice]})
        };
        for _ in 0..3 {
            answer.take(&chunk(json!({"reasoning": "x"}), None), &screen).unwrap();
        }
        answer.take(&chunk(json!({}), Some("length")), &screen).unwrap();
        answer.take(&json!({"choices": [], "usage": null}), &screen).unwrap();
        assert!(answer.content.is_empty());
        let figures = answer.figures();
        assert!(
            figures.starts_with("[3 tokens; ") && figures.ends_with("most tokens]"),
            "{figures}"
        );
        assert!(!figures.contains("cache"), "{figures}");
    }
}
