//! JSON in and out of templates.
//!
//! Owns the look of `tojson`, which is that of Python's `json.dumps`. Refuses values nested too
//! deep: a template can nest without end.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Deepest value that is written.
const MAX_DEPTH: usize = 128;

/// A JSON value as templates see it; key order is kept.
pub(super) fn to_value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => {
            Value::from(items.iter().map(to_value).collect::<Vec<Value>>())
        }
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), to_value(value))))
        }
    }
}

/// The options of `json.dumps` that templates give.
pub(super) struct Style {
    indent: Option<usize>,
    comma: String,
    colon: String,
    ascii: bool,
    sort: bool,
}

impl Style {
    pub(super) fn read(options: &Kwargs) -> Result<Self, Error> {
        let indent: Option<usize> = options.get("indent")?;
        let separators: Option<Vec<String>> = options.get("separators")?;
        let comma = if indent.is_some() { "," } else { ", " };
        let (comma, colon) = match separators.as_deref() {
            Some([comma, colon]) => (comma.clone(), colon.clone()),
            Some(_) => return Err(bad("separators are two strings")),
            None => (comma.to_owned(), ": ".to_owned()),
        };
        if indent.is_some_and(|indent| indent > 16) || comma.len() + colon.len() > 64 {
            return Err(bad("indent or separators too long"));
        }
        let flag = |name| options.get::<Option<bool>>(name).map(Option::unwrap_or_default);
        Ok(Self { indent, comma, colon, ascii: flag("ensure_ascii")?, sort: flag("sort_keys")? })
    }
}

/// Writes a value, paid for by the fuel of the render.
pub(super) fn write(state: &State, value: &Value, style: &Style) -> Result<String, Error> {
    let mut writer = Writer { state, style, out: String::new(), paid: 0 };
    writer.value(value, 0)?;
    Ok(writer.out)
}

fn bad(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

struct Writer<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    style: &'a Style,
    out: String,
    paid: usize,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(bad("tojson: nested too deep"));
        }
        self.pay()?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked();
                self.list(('[', ']'), items, depth, |writer, item| writer.value(&item, depth + 1))?;
            }
            ValueKind::Map => self.map(value, depth)?,
            _ => return Err(bad("tojson: a value that JSON does not have")),
        }
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys = Vec::new();
        for key in value.try_iter()?.checked() {
            keys.push(key?);
            self.state.consume_fuel(1)?;
        }
        if self.style.sort {
            keys.sort();
        }
        self.list(('{', '}'), keys.into_iter().map(Ok), depth, |writer, key| {
            match key.as_str() {
                Some(text) => writer.string(text),
                None => writer.string(&key.to_string()),
            }
            writer.out.push_str(&writer.style.colon);
            writer.value(&value.get_item(&key)?, depth + 1)
        })
    }

    fn list(
        &mut self,
        (open, close): (char, char),
        items: impl Iterator<Item = Result<Value, Error>>,
        depth: usize,
        mut item: impl FnMut(&mut Self, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        let mut empty = true;
        for next in items {
            if !empty {
                self.out.push_str(&self.style.comma);
            }
            empty = false;
            self.line(depth + 1);
            item(self, next?)?;
        }
        if !empty {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    /// A float keeps its point; what JSON cannot say is written as Python does.
    fn number(&mut self, value: &Value) {
        let float = if value.is_integer() { None } else { f64::try_from(value.clone()).ok() };
        match float {
            Some(float) if float.is_nan() => self.out.push_str("NaN"),
            Some(float) if float.is_infinite() => {
                self.out.push_str(if float > 0.0 { "Infinity" } else { "-Infinity" });
            }
            Some(float) => self.out.push_str(&format!("{float:?}")),
            None => self.out.push_str(&value.to_string()),
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.style.ascii && !c.is_ascii()) => self.escape(c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String does not fail.
            let _ = write!(self.out, "\\u{unit:04x}");
        }
    }

    fn pay(&mut self) -> Result<(), Error> {
        let cost = 1 + (self.out.len() - self.paid) / 16;
        self.paid = self.out.len();
        self.state.consume_fuel(cost as u64)
    }
}
