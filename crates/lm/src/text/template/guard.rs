//! Makes a template from anywhere safe to run: nothing in it can nest without end.
//!
//! Owns the rewriting of the source before it is compiled, and the thread that it then runs on.
//! The engine recurses over nested values and expressions when it compiles, compares, prints and
//! drops them, so depth is stack. Only a namespace keeps what a loop builds: what is assigned to
//! one is copied, up to a depth, which also makes a namespace inside of itself impossible. All
//! other nesting is written out in the source, whose length bounds it. Refuses what it cannot
//! follow: the tags are found exactly as the engine's lexer finds them.

use std::thread;

use minijinja::value::ValueKind;
use minijinja::{ErrorKind, State, Value};

use super::Rendered;
use crate::{Error, Kind, Result};

/// Longest template text that is read.
pub(super) const MAX_SOURCE: usize = 256 << 10;
/// Longest tag, not counting strings and spaces: expressions nest within one.
const MAX_TAG: usize = 2048;
/// Deepest value that a namespace holds.
const MAX_DEPTH: usize = 32;
/// The filter that is put behind assignments to a namespace.
pub(super) const FILTER: &str = "copied_to_namespace";
/// Stack of a render, and what each byte of source may add: a nested value takes two bytes to
/// write and up to 3 KiB to print. The pages are touched only if they are needed.
const STACK: usize = 32 << 20;
const STACK_PER_BYTE: usize = 2048;

/// Runs `work` on a stack that a template of `length` bytes cannot exhaust.
pub(super) fn on_deep_stack<T: Send>(
    length: usize,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let size = STACK + STACK_PER_BYTE * length.min(MAX_SOURCE);
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("chat-template".to_owned())
            .stack_size(size)
            .spawn_scoped(scope, work)
            .map_err(|error| Error::new(Kind::Limit, format!("no thread: {error}")))?;
        thread.join().map_err(|_| Error::new(Kind::Bug, "the template engine panicked"))?
    })
}

/// A copy of plain data, without anything that could change or grow later.
pub(super) fn copied(state: &State, value: &Value) -> Rendered<Value> {
    copy(state, value, 0)
}

fn copy(state: &State, value: &Value, depth: usize) -> Rendered<Value> {
    state.consume_fuel(1)?;
    let bad = |what: &'static str| Err(minijinja::Error::new(ErrorKind::InvalidOperation, what));
    if depth > MAX_DEPTH {
        return bad("a namespace holds no value nested so deep");
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.checked().map(|item| copy(state, &item?, depth + 1));
            items.collect::<Rendered<Vec<Value>>>().map(Value::from)
        }
        ValueKind::Map => {
            let pairs = value.try_iter()?.checked().map(|key| {
                let key = key?;
                let item = value.get_item(&key)?;
                Ok((copy(state, &key, depth + 1)?, copy(state, &item, depth + 1)?))
            });
            pairs.collect::<Rendered<Vec<_>>>().map(Value::from_pairs)
        }
        ValueKind::Plain | ValueKind::Invalid => bad("a namespace holds data only"),
        _ => Ok(value.clone()),
    }
}

/// The source with every assignment to a namespace copied, and with `generation` blocks, which
/// mark the model's words for training, as plain ones.
pub(super) fn rewritten(source: &str) -> Result<String> {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((start, marker)) = next_marker(rest) {
        let mut open = start + 2;
        if rest[open..].starts_with(['-', '+']) {
            open += 1;
        }
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let end = match marker {
            b'#' => rest.find("#}").ok_or_else(unfinished)?,
            b'%' => match raw_block(rest)? {
                Some((body, end)) => {
                    out.push_str(&rest[..body]);
                    // The original keeps the line's end behind this tag; the engine takes one away.
                    let marked = rest[..body].ends_with("-%}") || rest[..body].ends_with("+%}");
                    if !marked && rest[body..].starts_with(['\r', '\n']) {
                        out.push('\n');
                    }
                    rest = &rest[body..];
                    end - body
                }
                None => {
                    let end = tag_end(rest, "%}")?;
                    out.push_str(&statement(&rest[..end]));
                    rest = &rest[end..];
                    continue;
                }
            },
            _ => tag_end(rest, "}}")?,
        };
        out.push_str(&rest[..end]);
        rest = &rest[end..];
        // The closing mark must not be read as an opening one.
        let mark = rest.len().min(2);
        out.push_str(&rest[..mark]);
        rest = &rest[mark..];
    }
    Ok(out + rest)
}

fn unfinished() -> Error {
    Error::file("syntax error: a tag without an end")
}

/// The first `{{`, `{%` or `{#`: where, and its second byte.
fn next_marker(text: &str) -> Option<(usize, u8)> {
    let bytes = text.as_bytes();
    let pairs = bytes.iter().zip(bytes.iter().skip(1)).enumerate();
    pairs
        .filter(|(_, (first, _))| **first == b'{')
        .find(|(_, (_, second))| matches!(second, b'{' | b'%' | b'#'))
        .map(|(at, (_, second))| (at, *second))
}

/// For the inside of a `raw` tag, the place behind it, and that of the `%}` that ends its `endraw` tag.
fn raw_block(inside: &str) -> Result<Option<(usize, usize)>> {
    let Some(body) = basic_tag(inside, "raw") else { return Ok(None) };
    let mut at = body;
    while let Some(open) = inside[at..].find("{%") {
        at += open + 2;
        let skip = usize::from(inside[at..].starts_with(['-', '+']));
        if let Some(length) = basic_tag(&inside[at + skip..], "endraw") {
            return Ok(Some((body, at + skip + length - 2)));
        }
    }
    Err(unfinished())
}

/// The length of a tag that is only a name, with its `%}`.
fn basic_tag(inside: &str, name: &str) -> Option<usize> {
    let space = |c: char| c.is_ascii_whitespace();
    let rest = inside.trim_start_matches(space).strip_prefix(name)?.trim_start_matches(space);
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).strip_prefix("%}")?;
    Some(inside.len() - rest.len())
}

/// Where a tag ends: at `close` outside of strings and brackets.
fn tag_end(inside: &str, close: &str) -> Result<usize> {
    let bytes = inside.as_bytes();
    let mut open = 0usize;
    let mut weight = 0;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if open == 0 && bytes[at..].starts_with(close.as_bytes()) {
            return Ok(at);
        }
        weight += usize::from(!byte.is_ascii_whitespace());
        if weight > MAX_TAG {
            return Err(Error::file(format!("a tag of more than {MAX_TAG} characters")));
        }
        match byte {
            b'\'' | b'"' => at = string_end(bytes, at)?,
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => {
                open = open.checked_sub(1).ok_or_else(|| {
                    Error::file("syntax error: a bracket closes that never opened")
                })?;
            }
            _ => {}
        }
        at += 1;
    }
    Err(unfinished())
}

/// The place of the quote that ends the string which starts at `start`.
fn string_end(bytes: &[u8], start: usize) -> Result<usize> {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 1,
            _ if byte == bytes[start] => return Ok(at),
            _ => {}
        }
        at += 1;
    }
    Err(Error::file("syntax error: a string without an end"))
}

/// The inside of one `{% %}`, rewritten.
fn statement(tag: &str) -> String {
    let space = |c: char| c.is_ascii_whitespace();
    // A mark for whitespace that belongs to the end of the tag.
    let body = tag.strip_suffix(['-', '+']).unwrap_or(tag);
    let mark = &tag[body.len()..];
    match body.trim_matches(space) {
        "generation" => return format!(" if true {mark}"),
        "endgeneration" => return format!(" endif {mark}"),
        _ => {}
    }
    let target = body.trim_start_matches(space).strip_prefix("set");
    let Some(target) = target.filter(|t| t.starts_with(|c: char| space(c) || c == '(')) else {
        return tag.to_owned();
    };
    let name = target.split(['=', '|']).next().unwrap_or_default();
    if !name.contains('.') {
        return tag.to_owned();
    }
    match target[name.len()..].strip_prefix('=') {
        Some(value) => format!(" set{name}= ({value})|{FILTER} {mark}"),
        None => format!("{body}|{FILTER} {mark}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_to_namespaces_are_copied() {
        let cases = [
            ("{% set a = 1 %}", "{% set a = 1 %}"),
            ("{%- set ns.a=b -%}x", "{%- set ns.a= (b )|copied_to_namespace -%}x"),
            ("{%set(ns.a)=')%}'%}", "{% set(ns.a)= (')%}')|copied_to_namespace %}"),
            ("{% set ns.a %}b", "{% set ns.a |copied_to_namespace %}b"),
            ("{% set ns.a|f('=') %}", "{% set ns.a|f('=') |copied_to_namespace %}"),
            ("{{ '{% set ns.a = 1 %}' }}", "{{ '{% set ns.a = 1 %}' }}"),
            ("{{ {'a': {}} }}{# {% \" #}", "{{ {'a': {}} }}{# {% \" #}"),
            (
                "{% raw %}{% \" {%- endraw %}{% set n.x = 1 %}\"",
                "{% raw %}{% \" {%- endraw %}{% set n.x = ( 1 )|copied_to_namespace %}\"",
            ),
            ("{% raw %}\n{{ {% endraw %}", "{% raw %}\n\n{{ {% endraw %}"),
            ("{% raw -%}\na{% endraw %}", "{% raw -%}\na{% endraw %}"),
            ("{%- generation -%}a{% endgeneration %}", "{%- if true -%}a{% endif %}"),
            ("{#}{% set n.x = 1 %}#}{", "{#}{% set n.x = 1 %}#}{"),
        ];
        for (source, wanted) in cases {
            assert_eq!(rewritten(source).unwrap(), wanted, "{source}");
        }
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        let long = format!("{{{{ {} }}}}", "-".repeat(MAX_TAG + 1));
        for source in [
            "{% set ns.a = 1), (ns %}",
            "{{ a",
            "{% 'a %}",
            "{% 'a\\' %}",
            "{% raw %}{% end %}",
            "{# a",
            "{{ (a }}",
            &long,
        ] {
            assert!(rewritten(source).is_err(), "{source}");
        }
    }
}
