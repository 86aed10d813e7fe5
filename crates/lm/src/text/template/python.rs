//! What templates expect of Python and the engine does not have: methods, tests, the look of plain values, and the shape
//! in which messages come.
//!
//! Owns the differences, one by one. Refuses methods that change a value, as the sandbox of the original does.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use serde_json::{Map, Value as Json};

use super::{Rendered, json};

/// The names of a message's reasoning; templates read the first, or the second.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Adds tests and filters.
pub(super) fn extend(env: &mut Environment<'static>) {
    env.set_formatter(format_value);
    env.set_unknown_method_callback(method);
    env.add_filter("string", |value: &Value| python_str(value));
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    // Whatever has a length and items by index.
    env.add_test("sequence", |value: &Value| {
        let kinds = [ValueKind::Seq, ValueKind::String, ValueKind::Map, ValueKind::Undefined];
        kinds.contains(&value.kind())
    });
}

/// The messages as templates are written for: fields without a value are left out, and reasoning is there by the names
/// that templates know.
pub(super) fn messages(list: &Json) -> Value {
    let Some(list) = list.as_array() else { return json::to_value(list) };
    list.iter().map(message).collect()
}

fn message(json: &Json) -> Value {
    let Some(fields) = json.as_object() else { return json::to_value(json) };
    let get = |name: &&str| fields.get(*name).filter(|value| !value.is_null());
    let reasoning = REASONING.iter().find_map(get);
    let mut found = Map::new();
    if let Some(reasoning) = reasoning {
        found.insert("thinking".into(), reasoning.clone());
    }
    let given = fields.iter().filter(|(_, value)| !value.is_null());
    found.extend(given.map(|(name, value)| (name.clone(), value.clone())));
    if let Some(reasoning) = reasoning {
        found.insert("reasoning_content".into(), reasoning.clone());
    }
    json::to_value(&Json::Object(found))
}

/// Python's methods; a `format` with a width could ask for any amount of memory.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Rendered<Value> {
    match (name, value.as_str()) {
        ("format", Some(text)) if text.contains(':') => {
            let what = "`format` is served without format specifications";
            Err(Error::new(ErrorKind::InvalidOperation, what))
        }
        ("rsplit", Some(text)) => rsplit(state, text, args),
        ("index", Some(text)) => {
            let (part,): (&str,) = from_args(args)?;
            let at = text.find(part).map(|at| text[..at].chars().count());
            at.map(Value::from).ok_or_else(|| absent("substring"))
        }
        ("index", None) if value.kind() == ValueKind::Seq => {
            let (item,): (&Value,) = from_args(args)?;
            for (at, found) in value.try_iter()?.checked().enumerate() {
                state.consume_fuel(1)?;
                if found? == *item {
                    return Ok(Value::from(at));
                }
            }
            Err(absent("item"))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn absent(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("`index` found no such {what}"))
}

/// `str.rsplit(sep=None, maxsplit=-1)`
fn rsplit(state: &State, text: &str, args: &[Value]) -> Rendered<Value> {
    let (separator, most, named): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.map_or_else(|| named.get("sep"), |value| Ok(Some(value)))?;
    let most = most.map_or_else(|| named.get("maxsplit"), |most| Ok(Some(most)))?.unwrap_or(-1);
    named.assert_all_used()?;
    state.consume_fuel(text.len() as u64 / 64)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = match separator.filter(|value| !value.is_none()) {
        None => {
            let (mut rest, mut parts) = (text.trim(), Vec::new());
            while let Some(at) = rest.rfind(char::is_whitespace).filter(|_| parts.len() < most) {
                let space = rest[at..].chars().next().map_or(1, char::len_utf8);
                parts.push(&rest[at + space..]);
                rest = rest[..at].trim_end();
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
            parts
        }
        Some(value) => match value.as_str() {
            Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
            Some(separator) => text.rsplitn(most.saturating_add(1), separator).collect(),
            None => {
                return Err(Error::new(ErrorKind::InvalidOperation, "a separator is a string"));
            }
        },
    };
    state.consume_fuel(parts.len() as u64)?;
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Prints as Python does: `True`, `False`, `None`.
fn python_name(value: &Value) -> Option<&'static str> {
    match value.kind() {
        ValueKind::None => Some("None"),
        ValueKind::Bool => Some(if value.is_true() { "True" } else { "False" }),
        _ => None,
    }
}

fn python_str(value: &Value) -> Value {
    match python_name(value) {
        Some(name) => Value::from(name),
        None if value.kind() == ValueKind::String => value.clone(),
        None => Value::from(value.to_string()),
    }
}

fn format_value(out: &mut Output, state: &mut State, value: &Value) -> Rendered<()> {
    match python_name(value) {
        Some(name) => out.write_str(name).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    }
}
