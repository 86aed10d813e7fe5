//! Chat templates: messages to prompt text, by the Jinja template of a checkpoint.
//!
//! Owns the environment that templates of the wild expect (Python's methods, `tojson`,
//! `strftime_now`, `raise_exception`) and the bounds on what one may do. Refuses includes, files
//! and anything else outside of the template itself.

mod clock;
mod guard;
mod json;
mod python;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, ErrorKind, State, UndefinedBehavior, Value};
use serde_json::Map;

use crate::{Error, Kind, Result};

/// Work that every render may do (instructions, or 64 bytes made), and the most for large inputs.
const BASE_FUEL: u64 = 200_000;
const MAX_FUEL: u64 = 8_000_000;
/// Output that every render may make, beside a multiple of its input.
const BASE_OUTPUT: usize = 4 << 20;
/// What the engine's callbacks return.
type Rendered<T> = std::result::Result<T, minijinja::Error>;

/// Name under which the template for requests with tools is stored.
const TOOL_USE: &str = "tool_use";
const DEFAULT: &str = "default";
/// Marks the error of `raise_exception`.
const RAISED: &str = "\u{1}raised\u{1}";

/// The chat template of a checkpoint.
///
/// ```
/// # use longrun_lm::text::{ChatInput, ChatTemplate};
/// let template = ChatTemplate::new(
///     "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}\
///      {% if add_generation_prompt %}<|assistant|>{% endif %}",
/// )?
/// .with_token("eos_token", "</s>");
/// let messages = serde_json::json!([{"role": "user", "content": "Hi"}]);
/// let prompt = template.render(&ChatInput::new(&messages))?;
/// assert_eq!(prompt, "<|user|>Hi</s><|assistant|>");
/// # Ok::<(), longrun_lm::Error>(())
/// ```
pub struct ChatTemplate {
    env: Environment<'static>,
    tokens: BTreeMap<String, String>,
    /// As they were given, one after the other.
    text: String,
    /// Bytes of the longest template.
    length: usize,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.env.templates().map(|(name, _)| name).collect();
        f.debug_struct("ChatTemplate").field("templates", &names).finish_non_exhaustive()
    }
}

/// What a template is run on.
#[derive(Clone, Copy, Debug)]
pub struct ChatInput<'a> {
    /// The conversation: a list of objects with `role`, `content` and what else a model knows. A field that is null
    /// counts as absent, and reasoning may be called `reasoning_content`, `thinking` or `reasoning`.
    pub messages: &'a serde_json::Value,
    /// Whether the prompt ends where the model's answer begins.
    pub add_generation_prompt: bool,
    /// The tools that the model may call.
    pub tools: Option<&'a serde_json::Value>,
    /// Further variables of the template, such as `enable_thinking`.
    pub extra: Option<&'a Map<String, serde_json::Value>>,
}

impl<'a> ChatInput<'a> {
    /// These messages, with a generation prompt, no tools and nothing extra.
    pub fn new(messages: &'a serde_json::Value) -> Self {
        Self { messages, add_generation_prompt: true, tools: None, extra: None }
    }
}

impl ChatTemplate {
    /// Compiles one template: the text of `chat_template.jinja` or `tokenizer.chat_template`.
    ///
    /// # Errors
    /// A syntax error, with its line; more than 256 KiB of text.
    pub fn new(source: &str) -> Result<Self> {
        let mut env = environment();
        add(&mut env, DEFAULT, source)?;
        let (text, length) = (source.to_owned(), source.len());
        Ok(Self { env, tokens: BTreeMap::new(), text, length })
    }

    /// Reads `chat_template`, `bos_token`, `eos_token` and their like of `tokenizer_config.json`.
    ///
    /// `chat_template` is a text, or a list of `{name, template}`: `tool_use` is then used where a
    /// request has tools and `default` elsewhere. None where there is no template.
    ///
    /// # Errors
    /// As [`ChatTemplate::new`]; a field of the wrong type; a list without `default`.
    pub fn from_config(config: &serde_json::Value) -> Result<Option<Self>> {
        let template = match config.get("chat_template") {
            None | Some(serde_json::Value::Null) => return Ok(None),
            Some(serde_json::Value::String(source)) => Self::new(source)?,
            Some(serde_json::Value::Array(list)) => Self::from_list(list)?,
            Some(_) => return Err(bad_field("neither a string nor a list")),
        };
        Ok(Some(template.with_tokens_of(config)))
    }

    fn from_list(list: &[serde_json::Value]) -> Result<Self> {
        let mut env = environment();
        let (mut all, mut length) = (String::new(), 0);
        for entry in list {
            let text = |field: &str| entry.get(field).and_then(serde_json::Value::as_str);
            let (Some(name), Some(source)) = (text("name"), text("template")) else {
                return Err(bad_field("an entry of the list lacks `name` or `template`"));
            };
            if let Some(known) = [DEFAULT, TOOL_USE].into_iter().find(|&known| known == name) {
                add(&mut env, known, source)?;
                all += source;
                length = length.max(source.len());
            }
        }
        if env.get_template(DEFAULT).is_err() {
            return Err(bad_field("the list has no template named `default`"));
        }
        Ok(Self { env, tokens: BTreeMap::new(), text: all, length })
    }

    /// Takes the `*_token` texts of a `tokenizer_config.json`, whose template may be elsewhere.
    #[must_use]
    pub fn with_tokens_of(mut self, config: &serde_json::Value) -> Self {
        for (name, value) in config.as_object().into_iter().flatten() {
            let text = value.as_str().or_else(|| value.get("content").and_then(|c| c.as_str()));
            if let Some(text) = text.filter(|_| name.ends_with("_token")) {
                self.tokens.insert(name.clone(), text.to_owned());
            }
        }
        self
    }

    /// Names a special token for the template: `bos_token`, `eos_token`.
    #[must_use]
    pub fn with_token(mut self, name: &str, text: &str) -> Self {
        self.tokens.insert(name.to_owned(), text.to_owned());
        self
    }

    /// Names the special tokens that `other` names.
    #[must_use]
    pub fn with_tokens_like(mut self, other: &Self) -> Self {
        self.tokens.clone_from(&other.tokens);
        self
    }

    /// What it was compiled from: all of its templates, one after the other.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Replaces the clock behind `strftime_now`: seconds since 1970, UTC.
    #[must_use]
    pub fn with_clock(mut self, now: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        self.env.add_function("strftime_now", move |format: &str| clock::strftime(format, now()));
        self
    }

    /// The prompt.
    ///
    /// # Errors
    /// `Usage` where the template refuses the messages or fails on them; `Limit` where it works or
    /// writes more than its input warrants.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String> {
        let size = json_size(input.messages)
            .saturating_add(input.tools.map_or(0, json_size))
            .saturating_add(input.extra.map_or(0, |e| e.values().map(json_size).sum()));
        let mut env = self.env.clone();
        env.set_fuel(Some(BASE_FUEL.saturating_add(4 * size as u64).min(MAX_FUEL)));
        let wants_tools = input.tools.is_some_and(|tools| !tools.is_null());
        let tool_use = wants_tools && env.get_template(TOOL_USE).is_ok();
        let name = if tool_use { TOOL_USE } else { DEFAULT };
        let out = guard::on_deep_stack(self.length, || {
            let context = self.context(input)?;
            let limit = BASE_OUTPUT.saturating_add(4 * size);
            let mut out = Bounded { text: Vec::new(), limit };
            env.get_template(name)
                .and_then(|template| template.render_captured_to(context, &mut out).map(|_| ()))
                .map_err(|error| failure(&error).at("chat template"))?;
            Ok(out.text)
        })?;
        String::from_utf8(out).map_err(|_| Error::new(Kind::Bug, "a template made no UTF-8"))
    }

    fn context(&self, input: &ChatInput<'_>) -> Result<Value> {
        let none = Value::from(());
        let tools = input.tools.filter(|tools| !tools.is_null());
        let mut context: BTreeMap<&str, Value> = BTreeMap::new();
        context.insert("documents", none.clone());
        for (name, text) in &self.tokens {
            context.insert(name, Value::from(text.as_str()));
        }
        let own = [
            ("messages", python::messages(input.messages)),
            ("tools", tools.map_or(none, json::to_value)),
            ("add_generation_prompt", Value::from(input.add_generation_prompt)),
        ];
        for (name, value) in input.extra.into_iter().flatten() {
            if own.iter().any(|(own, _)| own == name) {
                return Err(Error::usage(format!("`{name}` is no extra variable"))
                    .at("chat_template_kwargs")
                    .hint("give it as a field of the request"));
            }
            context.insert(name, json::to_value(value));
        }
        context.extend(own);
        Ok(Value::from(context))
    }
}

/// The environment that Hugging Face templates are written for.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    // Statically valid: the default delimiters do not clash.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        env.set_syntax(syntax);
    }
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    python::extend(&mut env);
    env.add_filter("tojson", tojson);
    env.add_filter(guard::FILTER, guard::copied);
    env.add_function("strftime_now", |format: &str| clock::strftime(format, clock::now()));
    env.add_function("raise_exception", |message: &str| -> Rendered<Value> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
    });
    env
}

fn add(env: &mut Environment<'static>, name: &'static str, source: &str) -> Result<()> {
    if source.len() > guard::MAX_SOURCE {
        let what = format!("{} bytes, limit {}", source.len(), guard::MAX_SOURCE);
        return Err(Error::file(what).at("chat template"));
    }
    let source = guard::rewritten(source).map_err(|error| error.at("chat template"))?;
    guard::on_deep_stack(source.len(), || {
        env.add_template_owned(name, source)
            .map_err(|error| Error::file(error.to_string()).at("chat template"))
    })
}

fn tojson(state: &State, value: &Value, options: Kwargs) -> Rendered<Value> {
    let style = json::Style::read(&options)?;
    options.assert_all_used()?;
    json::write(state, value, &style).map(Value::from)
}

fn failure(error: &minijinja::Error) -> Error {
    let raised = error.detail().and_then(|detail| detail.strip_prefix(RAISED));
    match (error.kind(), raised) {
        (_, Some(message)) => Error::usage(message),
        (ErrorKind::OutOfFuel, _) => Error::new(Kind::Limit, "it does more work than it may"),
        (ErrorKind::WriteFailure, _) => Error::new(Kind::Limit, "it writes more than it may"),
        _ => Error::usage(error.to_string()),
    }
}

fn bad_field(what: &str) -> Error {
    Error::file(what).at("chat_template").at("tokenizer_config.json")
}

/// About the bytes of a value: texts, and something for each node.
fn json_size(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len() + 16,
        serde_json::Value::Array(items) => 16 + items.iter().map(json_size).sum::<usize>(),
        serde_json::Value::Object(map) => {
            16 + map.iter().map(|(key, value)| key.len() + json_size(value)).sum::<usize>()
        }
        _ => 16,
    }
}

/// Output up to a limit.
struct Bounded {
    text: Vec<u8>,
    limit: usize,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.text.len() {
            return Err(io::Error::other("too much output"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
