//! Calls of tools as models write them, as a grammar.
//!
//! Owns how names, arguments and markers stand one behind the other. Refuses to read an answer, and to know which model
//! writes how: a [`CallShape`] says it.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::vocabulary::Vocabulary;
use super::{literal, schema};
use crate::error::{Error, Result};

/// Tools of a request at most.
const MOST_TOOLS: usize = 512;
/// Bytes of all tools as a grammar at most.
const MOST_BYTES: usize = 4 << 20;

/// How a model writes calls: `open`, then a call, then more of them with `between` before each, then `close`; a call is
/// `begin`, its body and `end`. In these texts that of a special token means that token; all of it is written as it
/// stands here, so take it from the model's template, line breaks and all.
#[derive(Clone, Debug, Default)]
pub struct CallShape {
    /// Before the first call.
    pub open: String,
    /// Before each call.
    pub begin: String,
    /// What a call says.
    pub body: CallBody,
    /// Behind each call.
    pub end: String,
    /// Between calls.
    pub between: String,
    /// Behind the last call.
    pub close: String,
    /// There is never more than one call.
    pub single: bool,
}

/// Where a call has its name and its arguments.
#[derive(Clone, Debug)]
pub enum CallBody {
    /// One JSON object with both, the name first: `{"name": "f", "arguments": {..}}`.
    Json {
        /// The key of the name.
        name: String,
        /// The key of the arguments.
        arguments: String,
    },
    /// The name, something between, and the arguments as a JSON object: `functions.f:0<|args|>{..}`.
    Named {
        /// Before the name.
        before: String,
        /// Between the name and a number that counts calls, if there is one.
        number: Option<String>,
        /// Before the arguments.
        arguments: String,
    },
    /// Tags: `<function=f>`, then `<parameter=key>`, a line with the value, and `</parameter>` for each argument, then
    /// `</function>`. Arguments that the schema names come in its order; those that are not text are JSON.
    Tags,
}

impl Default for CallBody {
    fn default() -> Self {
        Self::Json { name: "name".into(), arguments: "arguments".into() }
    }
}

/// A tool that may be called.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The schema of its arguments.
    pub parameters: Value,
    /// Whether what the schema says and a grammar can't hold is an error. Else it is left out.
    pub strict: bool,
}

/// Whether tools are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Text, or text and calls, as the model likes.
    Auto,
    /// At least one call, and no text.
    Required,
    /// As `Required`, of the tool of this name.
    Named(String),
}

#[derive(Clone, Debug)]
pub(super) struct Calls {
    pub(super) shape: CallShape,
    pub(super) tools: Vec<Tool>,
    pub(super) choice: Choice,
    pub(super) parallel: bool,
}

impl Calls {
    /// The grammar, in Lark's notation.
    ///
    /// # Errors
    /// There is no such tool, a schema is not supported, or all of it is too large; or `Auto`, and nothing tells a call
    /// from text.
    pub(super) fn lark(&self, vocabulary: &Vocabulary) -> Result<String> {
        let CallShape { open, begin, body, end, between, close, single } = &self.shape;
        let [close, end, between, first] =
            [close, end, between, begin].map(|text| Piece::written(vocabulary, text));
        let start = match self.choice {
            Choice::Auto => auto(&Piece::of(vocabulary, &[&open[..], begin].concat()))?,
            Choice::Required | Choice::Named(_) => {
                format!("start: {} {first} body more", Piece::written(vocabulary, open))
            }
        };
        let again = match self.parallel && !single {
            true => format!("({between} {first} body {end})*"),
            false => String::new(),
        };
        let mut lark = format!("{start}\nmore: {end} {again} {close}\n");
        let _ = writeln!(lark, "WS: /[\\x20\\x0A\\x0D\\x09]{{1,{}}}/", schema::WHITESPACE);
        let mut bodies = Vec::new();
        for (i, tool) in self.tools()?.into_iter().enumerate() {
            let written = write_body(body, tool, i, vocabulary, &mut lark);
            written.map_err(|error| error.at(format!("`{}`", tool.name)))?;
            bodies.push(format!("body_{i}"));
            if lark.len() > MOST_BYTES {
                return Err(Error::usage(format!("the tools are more than {MOST_BYTES} bytes")));
            }
        }
        let _ = writeln!(lark, "body: {}", bodies.join(" | "));
        Ok(lark)
    }

    /// Those that may be called.
    fn tools(&self) -> Result<Vec<&Tool>> {
        let named = |tool: &&Tool| match &self.choice {
            Choice::Named(name) => tool.name == *name,
            Choice::Auto | Choice::Required => true,
        };
        let tools: Vec<&Tool> = self.tools.iter().filter(named).collect();
        if tools.len() > MOST_TOOLS {
            return Err(Error::usage(format!("more than {MOST_TOOLS} tools")));
        }
        match &self.choice {
            Choice::Named(name) if tools.is_empty() => {
                Err(Error::usage(format!("there is no tool `{name}`"))
                    .hint("name one of the request's tools"))
            }
            _ if tools.is_empty() => Err(Error::usage("there are no tools to call")),
            _ if tools.iter().any(|tool| tool.name.is_empty()) => {
                Err(Error::usage("a tool without a name"))
            }
            _ => Ok(tools),
        }
    }
}

/// The rule `body_i`: what a call of a tool says.
fn write_body(
    body: &CallBody,
    tool: &Tool,
    i: usize,
    vocabulary: &Vocabulary,
    lark: &mut String,
) -> Result<()> {
    match body {
        CallBody::Json { name, arguments } => {
            let [key, value, next] = [name, &tool.name, arguments]
                .map(|text| literal(&Value::from(text.as_str()).to_string()));
            let head =
                [r#""{""#, &key, r#"":""#, &value, r#"",""#, &next, r#"":" WS?"#].join(" WS? ");
            let schema = object_rule(&tool.parameters, tool.strict)?;
            let _ = writeln!(lark, "HEAD_{i}: {head}\nTAIL_{i}: WS? \"}}\"");
            let _ = writeln!(lark, "body_{i}: HEAD_{i} args_{i} TAIL_{i}\nargs_{i}: {schema}");
        }
        CallBody::Named { before, number, arguments } => {
            let mut head = Piece::written(vocabulary, &[&before[..], &tool.name].concat());
            if let Some(number) = number {
                let _ = write!(head, " {} /[0-9]{{1,4}}/", Piece::written(vocabulary, number));
            }
            let arguments = Piece::written(vocabulary, arguments);
            let schema = object_rule(&tool.parameters, tool.strict)?;
            let _ = writeln!(lark, "body_{i}: {head} {arguments} args_{i}\nargs_{i}: {schema}");
        }
        CallBody::Tags => write_tags(tool, i, lark)?,
    }
    Ok(())
}

/// `body_i` in tags: one for each argument.
fn write_tags(tool: &Tool, i: usize, lark: &mut String) -> Result<()> {
    // The bounds are those of the whole schema, and so is what is not supported.
    schema::checked(&tool.parameters, tool.strict)?;
    let mut body = literal(&format!("<function={}>\n", tool.name));
    let none = Map::new();
    let fields = tool.parameters.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let required = tool.parameters.get("required").and_then(Value::as_array);
    if fields.is_empty() {
        let _ = writeln!(lark, "value_{i}[lazy]: /(?s:.*)\\n<\\/parameter>\\n/");
        let _ = write!(body, " (\"<parameter=\" /[^>\\n]{{1,64}}/ \">\\n\" value_{i})*");
    }
    for (j, (name, field)) in fields.iter().enumerate() {
        let is_required = required.is_some_and(|r| r.iter().any(|r| r.as_str() == Some(name)));
        let optional = if is_required { "" } else { "?" };
        let tag = literal(&format!("<parameter={name}>\n"));
        let _ = write!(body, " ({tag} value_{i}_{j}){optional}");
        let is_text = field.get("type").and_then(Value::as_str) == Some("string");
        match field.get("enum").and_then(Value::as_array) {
            Some(texts) if is_text => {
                let texts: Vec<String> =
                    texts.iter().filter_map(Value::as_str).map(literal).collect();
                let texts = texts.join(" | ");
                let _ = writeln!(lark, "value_{i}_{j}: ({texts}) \"\\n</parameter>\\n\"");
            }
            // What else is said of a text is not held.
            _ if is_text || field.get("type").is_none() && field.get("$ref").is_none() => {
                let _ = writeln!(lark, "value_{i}_{j}[lazy]: /(?s:.*)\\n<\\/parameter>\\n/");
            }
            _ => {
                let rule = json_rule(&within(field, &tool.parameters), tool.strict)?;
                let _ = writeln!(lark, "value_{i}_{j}: {rule} \"\\n</parameter>\\n\"");
            }
        }
    }
    let _ = writeln!(lark, "body_{i}: {body} \"</function>\"");
    Ok(())
}

/// A field's schema with the definitions of the schema that it stands in.
fn within(field: &Value, whole: &Value) -> Value {
    let mut field = field.clone();
    if let Value::Object(fields) = &mut field {
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = whole.get(name) {
                fields.insert(name.into(), definitions.clone());
            }
        }
    }
    field
}

/// JSON of a schema, or of any object where there is none.
fn object_rule(schema: &Value, strict: bool) -> Result<String> {
    let mut schema = schema.clone();
    match &mut schema {
        Value::Null => schema = json!({"type": "object"}),
        Value::Object(fields) if !fields.contains_key("type") && !fields.contains_key("$ref") => {
            fields.insert("type".into(), "object".into());
        }
        _ => {}
    }
    json_rule(&schema, strict)
}

fn json_rule(schema: &Value, strict: bool) -> Result<String> {
    Ok(format!("%json {}", schema::checked(schema, strict)?))
}

/// Text, and calls once `first` is there.
fn auto(first: &[Piece]) -> Result<String> {
    let after = |pieces: &[Piece]| Piece::join(pieces);
    match first {
        [Piece::Special(_), ..] => {
            let calls = after(first);
            Ok(format!("start: TEXT? | TEXT? {calls} body more\nTEXT: /(?s:.+)/"))
        }
        [Piece::Text(text), rest @ ..] if !text.trim().is_empty() => {
            let (mark, white) = (literal(text.trim()), &text[text.trim_end().len()..]);
            let (white, rest) = (literal(white), after(rest));
            Ok(format!(
                "start: TEXT? | before {white} {rest} body more\nbefore[lazy]: BEFORE\n\
                 ANY: /(?s:.*)/\nBEFORE: ANY {mark}\nTEXT: /(?s:.+)/ & ~(ANY {mark} ANY)"
            ))
        }
        _ => Err(Error::usage("nothing tells a call of this model from text")
            .hint("require a call, or none")),
    }
}

/// A part of a marker.
enum Piece {
    Special(u32),
    Text(String),
}

impl Piece {
    /// A marker's special tokens and what is between them.
    fn of(vocabulary: &Vocabulary, marker: &str) -> Vec<Self> {
        let (mut pieces, mut text, mut rest) = (Vec::new(), String::new(), marker);
        while let Some(first) = rest.chars().next() {
            match vocabulary.special_at(rest.as_bytes()) {
                Some((id, length)) if rest.is_char_boundary(length) => {
                    if !text.is_empty() {
                        pieces.push(Self::Text(std::mem::take(&mut text)));
                    }
                    pieces.push(Self::Special(id));
                    rest = &rest[length..];
                }
                _ => {
                    text.push(first);
                    rest = &rest[first.len_utf8()..];
                }
            }
        }
        if !text.is_empty() {
            pieces.push(Self::Text(text));
        }
        pieces
    }

    fn join(pieces: &[Self]) -> String {
        let written = pieces.iter().map(|piece| match piece {
            Self::Special(id) => format!("<[{id}]>"),
            Self::Text(text) => literal(text),
        });
        written.collect::<Vec<_>>().join(" ")
    }

    /// A marker as Lark writes it.
    fn written(vocabulary: &Vocabulary, marker: &str) -> String {
        Self::join(&Self::of(vocabulary, marker))
    }
}
