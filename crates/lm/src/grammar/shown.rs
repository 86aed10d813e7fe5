//! How a model writes calls, as its chat template shows it.
//!
//! Owns a small conversation with two calls, and what can be read off its text. Refuses to guess: a shape in which
//! calls are not read as those calls again is none.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{CallBody, CallShape};
use crate::answer::{Delta, Ended, Format, Outcome, Parser, ToolSchema};
use crate::text::{ChatInput, ChatTemplate};

const NAMES: [&str; 2] = ["zeta_tool", "omega_tool"];
const KEY: &str = "kappa";
const VALUES: [&str; 2] = ["first value", "second value"];
/// What ids of calls look like: most models never show them, some want nine characters, some name the call by it.
const IDS: [[&str; 2]; 2] =
    [["abcdefg01", "abcdefg02"], ["functions.zeta_tool:0", "functions.omega_tool:1"]];
const SAID: &str = "plain words";

impl CallShape {
    /// The shape that `template` shows, if calls of it are read in `format`. None if it shows no calls, or writes them
    /// in a way that is none of [`CallBody`]'s.
    pub fn shown_by(template: &ChatTemplate, format: &Arc<Format>) -> Option<Self> {
        // Some templates refuse more than one call.
        let ways = [2, 1].into_iter().flat_map(|n| IDS.iter().map(move |ids| &ids[..n]));
        ways.flat_map(|ids| [(ids, false), (ids, true)])
            .filter_map(|(ids, as_text)| Some((ids.len(), shown(template, ids, as_text)?)))
            .filter_map(|(n, text)| Self::read(behind(&text, format.reasoning_end()), n))
            .find(|shape| shape.is_read(format))
    }

    /// Two calls as a model writes them, each with one argument.
    fn written(&self) -> String {
        let call = |i: usize| {
            let (tool, value) = (NAMES[i], VALUES[i]);
            let body = match &self.body {
                CallBody::Json { name, arguments } => {
                    let arguments = format!("\"{arguments}\": {{\"{KEY}\": \"{value}\"}}");
                    format!("{{\"{name}\": \"{tool}\", {arguments}}}")
                }
                CallBody::Named { before, number, arguments } => {
                    let number = number.as_ref().map_or(String::new(), |text| format!("{text}{i}"));
                    format!("{before}{tool}{number}{arguments}{{\"{KEY}\": \"{value}\"}}")
                }
                CallBody::Tags => {
                    format!(
                        "<function={tool}>\n<parameter={KEY}>\n{value}\n</parameter>\n</function>"
                    )
                }
            };
            format!("{}{body}{}", self.begin, self.end)
        };
        let more = if self.single { String::new() } else { self.between.clone() + &call(1) };
        format!("{}{}{more}{}", self.open, call(0), self.close)
    }

    fn is_read(&self, format: &Arc<Format>) -> bool {
        let parameters = json!({"type": "object"});
        let tool =
            |name: &str| ToolSchema { name: name.to_owned(), parameters: parameters.clone() };
        let mut parser = Parser::new(Arc::clone(format), NAMES.map(tool).into(), false);
        let mut deltas = Vec::new();
        parser.push(&self.written(), &mut deltas);
        let outcome = parser.finish(Ended::Stop, &mut deltas);
        let mut calls = [const { String::new() }; 2];
        for delta in deltas {
            match delta {
                Delta::CallStart { index, name } if NAMES.get(index) == Some(&name.as_str()) => {}
                Delta::CallArguments { index, json } if index < 2 => calls[index] += &json,
                Delta::CallEnd { .. } => {}
                _ => return false,
            }
        }
        let read = calls.map(|text| serde_json::from_str::<Value>(&text).unwrap_or_default());
        let mut wanted = VALUES.map(|value| json!({ KEY: value }));
        if self.single {
            wanted[1] = Value::Null;
        }
        outcome == Outcome::Calls && read == wanted
    }

    /// The shape of `count` calls.
    fn read(text: &str, count: usize) -> Option<Self> {
        let (first, body) = read_body(text, 0)?;
        if count == 1 {
            let (open, close) = (text[..first.from].to_owned(), text[first.to..].to_owned());
            return Some(Self { open, body, close, single: true, ..Self::default() });
        }
        let (second, again) = read_body(text, 1)?;
        // The head of a call, up to what its body begins with, and what stands between calls and behind them.
        let (head, between) = (&text[..first.from], &text[first.to..second.from]);
        let tail = &text[second.to..];
        let end = whole_tags(common_prefix(between, tail), true);
        let rest = &between[end.len()..];
        let begin = whole_tags(common_suffix(rest, head), false);
        let shape = Self {
            open: head.strip_suffix(begin)?.to_owned(),
            begin: begin.to_owned(),
            body,
            end: end.to_owned(),
            between: rest.strip_suffix(begin)?.to_owned(),
            close: tail[end.len()..].to_owned(),
            single: false,
        };
        let same = format!("{:?}", shape.body) == format!("{again:?}");
        same.then_some(shape)
    }
}

/// Where the body of a call is.
struct Place {
    from: usize,
    to: usize,
}

/// Reads the body of a call.
fn read_body(text: &str, i: usize) -> Option<(Place, CallBody)> {
    let from = if i == 0 { 0 } else { text.find(VALUES[0])? };
    let name = from + text[from..].find(NAMES[i])?;
    let behind = name + NAMES[i].len();
    let tagged = format!(">\n<parameter={KEY}>\n{}\n</parameter>\n</function>", VALUES[i]);
    if let (true, true) =
        (text[behind..].starts_with(&tagged), text[..name].ends_with("<function="))
    {
        let place = Place { from: name - "<function=".len(), to: behind + tagged.len() };
        return Some((place, CallBody::Tags));
    }
    let written = [": ", ":"].map(|colon| format!("{{\"{KEY}\"{colon}\"{}\"}}", VALUES[i]));
    let found = |json: &String| Some((behind + text[behind..].find(json.as_str())?, json.len()));
    let (arguments, length) = written.iter().find_map(found)?;
    let (gap, end) = (&text[behind..arguments], arguments + length);
    if let Some((place, body)) = read_object(text, name, gap, end) {
        return Some((place, body));
    }
    let counted = gap.find(&i.to_string()).filter(|_| gap.starts_with(':'));
    let (number, rest) = match counted {
        Some(at) => (Some(gap[..at].to_owned()), &gap[at + 1..]),
        None => (None, gap),
    };
    let plain = !rest.contains(['{', '}', '"']) && !rest.contains(KEY);
    let body = CallBody::Named { before: String::new(), number, arguments: rest.to_owned() };
    plain.then_some((Place { from: name, to: end }, body))
}

/// `{"name": "f", "arguments": {..}}`
fn read_object(text: &str, name: usize, gap: &str, end: usize) -> Option<(Place, CallBody)> {
    let before = text[..name].strip_suffix('"')?.trim_end().strip_suffix(':')?.trim_end();
    let (before, name_key) = before.strip_suffix('"')?.rsplit_once('"')?;
    let from = before.trim_end().strip_suffix('{')?.len();
    let key = gap.strip_prefix('"')?.trim_start().strip_prefix(',')?.trim_start();
    let (arguments, colon) = key.strip_prefix('"')?.split_once('"')?;
    let rest = text[end..].trim_start();
    let to = text.len() - rest.strip_prefix('}')?.len();
    let body = CallBody::Json { name: name_key.to_owned(), arguments: arguments.to_owned() };
    (colon.trim() == ":").then_some((Place { from, to }, body))
}

/// The answer that consists of a call for each of `ids`, without the marks of its turn.
fn shown(template: &ChatTemplate, ids: &[&str], as_text: bool) -> Option<String> {
    let tools: Value = NAMES.iter().map(|name| tool(name)).collect();
    let calls: Value = (0..ids.len())
        .map(|i| {
            let arguments = json!({ KEY: VALUES[i] });
            let arguments = if as_text { arguments.to_string().into() } else { arguments };
            let function = json!({"name": NAMES[i], "arguments": arguments});
            json!({"id": ids[i], "type": "function", "function": function})
        })
        .collect();
    let user = json!({"role": "user", "content": "Hi"});
    let render = |last: Option<Value>| {
        let messages: Value = [user.clone()].into_iter().chain(last.clone()).collect();
        let input = ChatInput {
            tools: Some(&tools),
            add_generation_prompt: last.is_none(),
            ..ChatInput::new(&messages)
        };
        template.render(&input).ok()
    };
    let prompt = render(None)?;
    let said = render(Some(json!({"role": "assistant", "content": SAID})))?;
    let turn_end = &said[said.rfind(SAID)? + SAID.len()..];
    let text = render(Some(json!({"role": "assistant", "content": "", "tool_calls": calls})))?;
    let answer = &text[whole_tags(common_prefix(&text, &prompt), true).len()..];
    let same = whole_tags(common_suffix(answer, turn_end), false).len();
    Some(answer[..answer.len() - same].trim_start().to_owned())
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": "A tool.", "parameters": {
        "type": "object", "properties": {KEY: {"type": "string", "description": "Words."}}, "required": [KEY]}}})
}

fn behind<'a>(text: &'a str, end: Option<&str>) -> &'a str {
    let at = end.and_then(|end| Some(text.rfind(end)? + end.len())).unwrap_or(0);
    text[at..].trim_start()
}

fn common_prefix<'a>(a: &'a str, b: &str) -> &'a str {
    let same = a.char_indices().zip(b.chars()).find(|((_, x), y)| x != y);
    let at = same.map_or(a.len().min(b.len()), |((at, _), _)| at);
    &a[..at]
}

fn common_suffix<'a>(a: &'a str, b: &str) -> &'a str {
    let same = a.char_indices().rev().zip(b.chars().rev()).take_while(|((_, x), y)| x == y);
    let at = same.last().map_or(a.len(), |((at, _), _)| at);
    &a[at..]
}

/// What stands around tags.
const OPEN: [char; 2] = ['<', '['];
const CLOSE: [char; 2] = ['>', ']'];

/// The part of `text`, from its beginning or its end, that cuts no tag in two.
fn whole_tags(text: &str, from_start: bool) -> &str {
    if from_start {
        let open = text.rfind(OPEN).filter(|&at| !text[at..].contains(CLOSE));
        return &text[..open.unwrap_or(text.len())];
    }
    let close = text.find(CLOSE).filter(|&at| !text[..at].contains(OPEN));
    &text[close.map_or(0, |at| at + 1)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(template: &str) -> CallShape {
        let format = Format::detect(Some(template), &|_| true, "");
        let template = ChatTemplate::new(template).unwrap();
        CallShape::shown_by(&template, &format.into()).expect("a shape")
    }

    fn written(shape: &CallShape) -> [&str; 5] {
        [&shape.open, &shape.begin, &shape.end, &shape.between, &shape.close].map(String::as_str)
    }

    /// A template with `before`, calls, something between them and `after`.
    fn template(before: &str, call: &str, between: &str, after: &str) -> String {
        format!(
            "{{% for m in messages %}}<|{{{{ m.role }}}}|>{{{{ m.content }}}}{{% if m.tool_calls %}}{before}\
             {{% for c in m.tool_calls %}}{call}{{% if not loop.last %}}{between}{{% endif %}}{{% endfor %}}{after}\
             {{% endif %}}<|end|>{{% endfor %}}{{% if add_generation_prompt %}}<|assistant|>{{% endif %}}"
        )
    }

    #[test]
    fn shapes_are_read_off_templates() {
        let object = r#"{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}"#;
        let hermes = format!("<tool_call>\n{object}\n</tool_call>");
        let read = shape(&template("", &hermes, "{{ '\\n' }}", ""));
        assert_eq!(written(&read), ["", "<tool_call>\n", "\n</tool_call>", "\n", ""]);
        assert!(
            matches!(&read.body, CallBody::Json { name, arguments } if name == "name" && arguments == "arguments")
        );

        let read = shape(&template("[TOOL_CALLS][", object, ", ", "]"));
        assert_eq!(written(&read), ["[TOOL_CALLS][", "", "", ", ", "]"]);

        let kimi = "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}\
                    <|tool_call_end|>";
        let [open, close] = ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"];
        let read = shape(&template(open, kimi, "", close));
        let begin = "<|tool_call_begin|>functions.";
        assert_eq!(written(&read), [open, begin, "<|tool_call_end|>", "", close]);
        let CallBody::Named { number, arguments, .. } = &read.body else { panic!("{read:?}") };
        assert_eq!(
            (number.as_deref(), arguments.as_str()),
            (Some(":"), "<|tool_call_argument_begin|>")
        );

        let tags = "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}\
                    <parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>";
        let read = shape(&template("", tags, "{{ '\\n' }}", ""));
        assert_eq!(written(&read), ["", "<tool_call>\n", "\n</tool_call>", "\n", ""]);
        assert!(matches!(read.body, CallBody::Tags));
    }

    #[test]
    fn what_is_not_understood_is_none() {
        for text in [
            template(
                "",
                "call {{ c.function.name }} with {{ c.function.arguments | length }}",
                "",
                "",
            ),
            "{% for m in messages %}{{ m.content }}{% endfor %}".to_owned(),
        ] {
            let format = Format::detect(Some(&text), &|_| true, "");
            let template = ChatTemplate::new(&text).unwrap();
            assert!(CallShape::shown_by(&template, &format.into()).is_none(), "{text}");
        }
    }
}
