//! `longrun chat`: a conversation at a terminal, or by a script.
//!
//! Owns the conversation: what was said, how it goes on, and what is forgotten. A model in this process answers as a
//! server would, by the same code and without a socket; so what can be asked for is the same here and there.

mod answer;
mod backend;
mod command;
mod input;
#[cfg(feature = "hub")]
mod remote;

use std::path::Path;
use std::process::ExitCode;

use longrun_lm::{Error, Kind, Result};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::answer::{Answer, Screen};
use self::backend::Backend;
use self::command::Command;
use self::input::{Input, Typed};
use crate::args::{ChatArgs, SamplingArgs};
use crate::show;

/// The largest file that a conversation is read from.
const MOST_FILE: u64 = 64 << 20;

pub(crate) fn run(mut args: ChatArgs) -> Result<ExitCode> {
    let failed = |e: std::io::Error| Error::new(Kind::Device, format!("no threads: {e}"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(failed)?;
    // The editor of lines takes Ctrl-C for itself, so it goes first: who comes later hears of it, too.
    let input = Input::new()?;
    let interrupts = {
        let _inside = runtime.enter();
        signal(SignalKind::interrupt()).map_err(failed)?
    };
    let system = args.system.take().filter(|text| !text.is_empty());
    let settings = settings(&args.sampling, args.max_tokens);
    let backend = Backend::open(args)?;
    let screen = Screen::new(input.is_terminal());
    let mut talk = Talk {
        runtime,
        interrupts,
        backend,
        screen,
        said: Said { system, settings, messages: Vec::new() },
        totals: Totals::default(),
    };
    let code = talk.run(input);
    // A thread that still waits for standard input or for a server ends with the process.
    talk.runtime.shutdown_background();
    code
}

/// Flags in the words of requests.
fn settings(sampling: &SamplingArgs, max_tokens: Option<usize>) -> Map<String, Value> {
    let SamplingArgs { stop, logit_bias, .. } = sampling;
    let bias: Map<_, _> = logit_bias.iter().map(|(id, x)| (id.to_string(), json!(x))).collect();
    let all = json!({
        "temperature": sampling.temp,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": sampling.seed,
        "max_tokens": max_tokens,
        "stop": Some(stop).filter(|all| !all.is_empty()),
        "logit_bias": Some(bias).filter(|all| !all.is_empty()),
    });
    match all {
        Value::Object(all) => all.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        _ => Map::new(),
    }
}

/// A conversation as it is sent and saved.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    system: Option<String>,
    /// Fields of the request.
    settings: Map<String, Value>,
    messages: Vec<Value>,
}

impl Said {
    /// The body of a request that has it go on.
    fn body(&self) -> Value {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> = system.chain(self.messages.iter().cloned()).collect();
        let mut body = self.settings.clone();
        body.insert("messages".into(), messages.into());
        body.insert("stream".into(), true.into());
        body.insert("stream_options".into(), json!({"include_usage": true}));
        body.into()
    }

    fn last_is(&self, role: &str) -> bool {
        self.messages.last().is_some_and(|message| message["role"] == role)
    }

    /// Takes the last answer back, if there is one. Whether there is something to answer then.
    fn without_answer(&mut self) -> bool {
        if self.last_is("assistant") {
            self.messages.pop();
        }
        self.last_is("user")
    }

    fn save(&self, file: &Path) -> Result<()> {
        let Self { system, settings, messages } = self;
        let all = json!({"system": system, "settings": settings, "messages": messages});
        show::write(file, &show::json(&all)?)
    }

    /// Reads what [`save`](Self::save) wrote, or a bare list of messages.
    fn load(file: &Path) -> Result<Self> {
        use std::io::Read;
        let place = |what: String| Error::file(what).at(file.display());
        let mut text = String::new();
        let open = std::fs::File::open(file);
        open.and_then(|open| open.take(MOST_FILE).read_to_string(&mut text))
            .map_err(|e| place(format!("can't be read: {e}")))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|e| place(format!("is no conversation: {e}")))?;
        let mut said = match value {
            Value::Array(messages) => Self { messages, ..Self::default() },
            mut object => {
                let messages = object.get_mut("messages").map(Value::take);
                let Some(Value::Array(messages)) = messages else {
                    return Err(place("is no conversation: it has no list of messages".into()));
                };
                let system = object["system"].as_str().map(str::to_owned);
                let settings = object["settings"].as_object().cloned().unwrap_or_default();
                Self { system, settings, messages }
            }
        };
        let role = |message: &Value| message["role"].as_str().map(str::to_owned);
        if said.messages.first().and_then(role).as_deref() == Some("system") {
            said.system = said.messages.remove(0)["content"].as_str().map(str::to_owned);
        }
        match said.messages.iter().find(|message| role(message).is_none()) {
            Some(message) => Err(place(format!("is no conversation: {message} has no role"))),
            None => Ok(said),
        }
    }
}

/// What was counted since the start.
#[derive(Default)]
struct Totals {
    answers: usize,
    prompt: u64,
    cached: u64,
    generated: u64,
}

struct Talk {
    runtime: Runtime,
    interrupts: Signal,
    backend: Backend,
    screen: Screen,
    said: Said,
    totals: Totals,
}

impl Talk {
    fn run(&mut self, mut input: Input) -> Result<ExitCode> {
        if self.screen.is_terminal {
            self.screen.note(&format!("{}; /help says what else there is", self.backend.name()));
        }
        loop {
            let done = match input.next(&self.runtime, &mut self.interrupts)? {
                Typed::End => return Ok(ExitCode::SUCCESS),
                // As a shell says of a program that Ctrl-C has ended.
                Typed::Interrupted => return Ok(ExitCode::from(130)),
                Typed::Text(text) if text.trim().is_empty() => Ok(true),
                Typed::Text(text) if text.starts_with('/') => self.command(&text),
                Typed::Text(text) => {
                    self.said.messages.push(json!({"role": "user", "content": text}));
                    self.answer()
                }
            };
            match done {
                Ok(true) => {}
                Ok(false) => return Ok(ExitCode::SUCCESS),
                Err(error) if self.screen.is_terminal => self.screen.note(&error.to_string()),
                // A script that went wrong does not go on.
                Err(error) => return Err(error),
            }
        }
    }

    /// Has the conversation go on. What led to no answer is taken back.
    fn answer(&mut self) -> Result<bool> {
        let body = self.said.body();
        let shown = self.runtime.block_on(async {
            let events = self.backend.start(body);
            Answer::show(events, &self.screen, &mut self.interrupts).await
        });
        let answer = match shown {
            Ok(answer) => answer,
            Err(error) => {
                self.said.messages.pop();
                return Err(error);
            }
        };
        self.totals.answers += 1;
        self.totals.prompt += answer.prompt;
        self.totals.cached += answer.cached;
        self.totals.generated += answer.generated;
        self.screen.note(&answer.figures());
        if answer.content.is_empty() && answer.was_stopped {
            self.said.messages.pop();
            self.screen.note("nothing was said yet: your message is taken back");
        } else {
            let content = answer.content;
            self.said.messages.push(json!({"role": "assistant", "content": content}));
        }
        Ok(true)
    }

    fn command(&mut self, text: &str) -> Result<bool> {
        match Command::parse(text)? {
            Command::Help => _ = self.screen.say(command::HELP)?,
            Command::Exit => return Ok(false),
            Command::Clear => self.said.messages.clear(),
            Command::System(None) => {
                let system = self.said.system.as_deref().unwrap_or("there is no system message");
                self.screen.say(&format!("{system}\n"))?;
            }
            Command::System(Some(text)) => {
                self.said.system = Some(text).filter(|text| !text.is_empty());
            }
            Command::Retry if self.said.without_answer() => return self.answer(),
            Command::Undo if self.said.without_answer() => _ = self.said.messages.pop(),
            Command::Retry | Command::Undo => {
                return Err(Error::usage("nothing was said yet").hint("write something first"));
            }
            Command::Save(file) => self.said.save(&file)?,
            Command::Load(file) => {
                self.said = Said::load(&file)?;
                self.screen.note(&format!("{} messages", self.said.messages.len()));
            }
            Command::Set(None) => {
                let lines = self.said.settings.iter().map(|(name, x)| format!("{name} {x}\n"));
                self.screen.say(&lines.collect::<String>())?;
            }
            Command::Set(Some((name, Value::Null))) => _ = self.said.settings.shift_remove(&name),
            Command::Set(Some((name, value))) => _ = self.said.settings.insert(name, value),
            Command::Stats => {
                let Totals { answers, prompt, cached, generated } = self.totals;
                self.screen.say(&format!(
                    "{} messages; {answers} answers of {generated} tokens, to {prompt} prompt tokens, of which {cached} \
                     from the cache\n",
                    self.said.messages.len()
                ))?;
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_come_back_from_files() {
        let folder = std::env::temp_dir().join(format!("longrun-chat-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("said.json");
        let said = Said {
            system: Some("Be brief.".into()),
            settings: json!({"temperature": 0.5}).as_object().unwrap().clone(),
            messages: vec![json!({"role": "user", "content": "a\nb"})],
        };
        said.save(&file).unwrap();
        assert_eq!(Said::load(&file).unwrap(), said);
        let bare = r#"[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]"#;
        std::fs::write(&file, bare).unwrap();
        let read = Said::load(&file).unwrap();
        assert_eq!((read.system.as_deref(), read.messages.len()), (Some("s"), 1));
        for bad in ["", "{}", "5", r#"{"messages": 1}"#, r#"[{"content": "x"}]"#, "[5]", "null"] {
            std::fs::write(&file, bad).unwrap();
            assert_eq!(Said::load(&file).unwrap_err().kind(), Kind::File, "{bad}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(Said::load(&file).is_err());
    }
}
