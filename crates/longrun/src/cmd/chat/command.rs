//! What is typed with a slash in front.
//!
//! Owns the names of the commands and what they take. Refuses names that are not known, with those that are.

use std::path::PathBuf;

use longrun_lm::{Error, Result};
use serde_json::Value;

pub(super) const HELP: &str = "\
/retry              another answer to the last message
/undo               take the last message and its answer back
/clear              forget what was said; the system message stays
/system [TEXT]      the system message: show it, or set it (\"\" for none)
/set [NAME [VALUE]] how answers are made: show all, set one, or leave it to the model again
/save FILE          write the conversation as JSON
/load FILE          go on with one
/stats              what was counted so far
/exit               leave; so does Ctrl-D
Ctrl-C stops an answer. A \\ at the end of a line, or \"\"\" before and after, makes a message of several lines.
";

/// What `/set` takes: fields of a request.
const SETTINGS: [&str; 16] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "xtc_probability",
    "xtc_threshold",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "max_tokens",
    "stop",
    "reasoning_effort",
    "chat_template_kwargs",
    "response_format",
];

#[derive(Debug, PartialEq)]
pub(super) enum Command {
    Help,
    Clear,
    /// Without a text it is shown.
    System(Option<String>),
    Retry,
    Undo,
    Save(PathBuf),
    Load(PathBuf),
    /// A value of null takes the setting away.
    Set(Option<(String, Value)>),
    Stats,
    Exit,
}

impl Command {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        let file = || match rest {
            "" => Err(Error::usage("a file is needed").at(name)),
            path => Ok(PathBuf::from(path)),
        };
        Ok(match name {
            "/help" | "/?" => Self::Help,
            "/clear" => Self::Clear,
            "/system" if rest.is_empty() => Self::System(None),
            "/system" if rest == "\"\"" => Self::System(Some(String::new())),
            "/system" => Self::System(Some(rest.to_owned())),
            "/retry" => Self::Retry,
            "/undo" => Self::Undo,
            "/save" => Self::Save(file()?),
            "/load" => Self::Load(file()?),
            "/set" if rest.is_empty() => Self::Set(None),
            "/set" => Self::Set(Some(setting(rest)?)),
            "/stats" => Self::Stats,
            "/exit" | "/quit" | "/bye" => Self::Exit,
            other => {
                let what = format!("there is no command {other:?}");
                return Err(Error::usage(what).hint("/help names them all"));
            }
        })
    }
}

fn setting(text: &str) -> Result<(String, Value)> {
    let (name, value) = text.split_once([' ', '=']).unwrap_or((text, ""));
    if !SETTINGS.contains(&name) {
        let what = format!("{name:?} can't be set");
        return Err(Error::usage(what).hint(format!("there are {}", SETTINGS.join(", "))));
    }
    let value = match value.trim() {
        "" => Value::Null,
        value => serde_json::from_str(value).unwrap_or_else(|_| value.into()),
    };
    Ok((name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn commands_are_read_or_refused() {
        let set = |name: &str, value| Command::Set(Some((name.to_owned(), value)));
        for (text, command) in [
            ("/clear", Command::Clear),
            ("/clear  ", Command::Clear),
            ("/system Be brief.\nAnd kind.", Command::System(Some("Be brief.\nAnd kind.".into()))),
            ("/system", Command::System(None)),
            ("/system \"\"", Command::System(Some(String::new()))),
            ("/save a file.json", Command::Save("a file.json".into())),
            ("/set", Command::Set(None)),
            ("/set temperature 0.7", set("temperature", json!(0.7))),
            ("/set top_k=5", set("top_k", json!(5))),
            ("/set stop END", set("stop", json!("END"))),
            ("/set stop [\"a\", \"b\"]", set("stop", json!(["a", "b"]))),
            ("/set temperature", set("temperature", Value::Null)),
        ] {
            assert_eq!(Command::parse(text).unwrap(), command, "{text}");
        }
        for text in ["/", "/no", "/save", "/load ", "/set messages 1", "/CLEAR"] {
            assert!(Command::parse(text).is_err(), "{text}");
        }
    }
}
