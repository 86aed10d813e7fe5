//! The ways of writing calls that publishers have, and the templates that show them.
//!
//! Owns a table, tried from above. Refuses to read answers.

use super::calls::{Body, Syntax};
use super::literal::Style;
use super::named::Pick;
use super::objects::Keys;
use super::tagged::Tags;
use super::window::Marker;

/// A marker as the vocabulary at hand has it.
pub(super) type Mark<'a> = &'a dyn Fn(&str) -> Marker;

/// A way of writing calls.
pub(super) struct Known {
    /// Texts that a template which shows it has, all of them.
    pub(super) shown_by: &'static [&'static str],
    /// A token that says so where there is no template.
    pub(super) token: Option<&'static str>,
    pub(super) build: fn(Mark<'_>) -> Vec<Syntax>,
}

const fn known(
    shown_by: &'static [&'static str],
    token: Option<&'static str>,
    build: fn(Mark<'_>) -> Vec<Syntax>,
) -> Known {
    Known { shown_by, token, build }
}

pub(super) const KNOWN: &[Known] = &[
    known(&["<|tool_calls_section_begin|>"], Some("<|tool_calls_section_begin|>"), kimi),
    known(&["<｜tool▁calls▁begin｜>"], Some("<｜tool▁calls▁begin｜>"), deepseek),
    known(&["｜DSML｜"], Some("｜DSML｜"), dsml),
    known(&["<minimax:tool_call>"], Some("<minimax:tool_call>"), minimax),
    known(&["[TOOL_CALLS]"], Some("[TOOL_CALLS]"), mistral),
    known(&["<|tool_call_start|>"], Some("<|tool_call_start|>"), lfm2),
    known(&["<|tool_call>", "call:"], Some("<|tool_call>"), gemma4),
    known(&["<start_function_call>"], Some("<start_function_call>"), function_gemma),
    known(&["<|START_ACTION|>"], Some("<|START_ACTION|>"), |m| {
        vec![objects(m("<|START_ACTION|>"), m("<|END_ACTION|>"))]
    }),
    known(&["<TOOLCALL>"], Some("<TOOLCALL>"), |m| {
        vec![objects(m("<TOOLCALL>"), m("</TOOLCALL>"))]
    }),
    known(&["<|tools_prefix|>"], Some("<|tools_prefix|>"), |m| {
        let body = vec![Body::Objects(Keys::Keyed)];
        vec![section(m("<|tools_prefix|>"), body, m("<|tools_suffix|>"))]
    }),
    known(&["<|action_start|>", "<|plugin|>"], Some("<|action_start|>"), |m| {
        let syntax = objects(m("<|action_start|>"), m("<|action_end|>"));
        vec![Syntax { item_open: Some(m("<|plugin|>")), ..syntax }]
    }),
    known(&["<|function_call|>"], None, |m| vec![open_objects(m("<|function_call|>"), &[])]),
    known(&["<seed:tool_call>"], Some("<seed:tool_call>"), |m| {
        tool_call(m, "<seed:tool_call>", "</seed:tool_call>")
    }),
    known(&["<zyphra_tool_call>"], Some("<zyphra_tool_call>"), |m| {
        tool_call(m, "<zyphra_tool_call>", "</zyphra_tool_call>")
    }),
    known(&["<longcat_tool_call>"], Some("<longcat_tool_call>"), longcat),
    known(&["<tool_calls>"], None, tool_calls),
    known(&["<tool_call>"], Some("<tool_call>"), |m| tool_call(m, "<tool_call>", "</tool_call>")),
    known(&["<|tool_call|>"], Some("<|tool_call|>"), |m| {
        let closes = ["<|/tool_call|>", "<|tool_call_end|>"];
        vec![open_objects(m("<|tool_call|>"), &closes.map(m))]
    }),
    known(&["<function_calls>"], None, |m| {
        let body = vec![Body::Expressions(Style::Python)];
        vec![section(m("<function_calls>"), body, m("</function_calls>"))]
    }),
    known(&["<function=", "<parameter="], None, |m| vec![bare_function(m)]),
    known(&["<function="], None, |m| vec![function_object(m)]),
    known(&["<function name=\"", "<param name=\""], None, |m| vec![function_tag(m)]),
];

/// Calls as JSON that nothing but its place says to be calls.
pub(super) fn bare(mark: Mark<'_>) -> Vec<Syntax> {
    let bodies = vec![Body::Objects(Keys::Named), Body::Expressions(Style::Python)];
    let bare = Syntax {
        open: None,
        item_open: None,
        bodies,
        item_closes: Vec::new(),
        close: None,
        ends_reasoning: false,
    };
    let tagged = Syntax { open: Some(mark("<|python_tag|>")), ..bare.clone() };
    vec![bare, tagged]
}

fn section(open: Marker, bodies: Vec<Body>, close: Marker) -> Syntax {
    Syntax {
        open: Some(open),
        item_open: None,
        bodies,
        item_closes: Vec::new(),
        close: Some(close),
        ends_reasoning: false,
    }
}

fn objects(open: Marker, close: Marker) -> Syntax {
    section(open, vec![Body::Objects(Keys::Named)], close)
}

/// A list or object behind a marker that nothing closes, or what may.
fn open_objects(open: Marker, item_closes: &[Marker]) -> Syntax {
    let bodies = vec![Body::Objects(Keys::Named)];
    Syntax {
        open: Some(open),
        item_open: None,
        bodies,
        item_closes: item_closes.to_vec(),
        close: None,
        ends_reasoning: false,
    }
}

fn kimi(mark: Mark<'_>) -> Vec<Syntax> {
    let body = Body::Named {
        separators: vec![mark("<|tool_call_argument_begin|>")],
        ends: vec![mark("<|tool_call_end|>")],
        pick: Pick::First,
    };
    let (open, close) = (mark("<|tool_calls_section_begin|>"), mark("<|tool_calls_section_end|>"));
    vec![Syntax {
        item_open: Some(mark("<|tool_call_begin|>")),
        item_closes: vec![mark("<|tool_call_end|>")],
        ends_reasoning: true,
        ..section(open, vec![body], close)
    }]
}

fn deepseek(mark: Mark<'_>) -> Vec<Syntax> {
    let fences = ["```json", "```"].map(Marker::spelled);
    let body = Body::Named {
        separators: [&[mark("<｜tool▁sep｜>")], &fences[..]].concat(),
        ends: vec![mark("<｜tool▁call▁end｜>")],
        pick: Pick::Last,
    };
    vec![Syntax {
        item_open: Some(mark("<｜tool▁call▁begin｜>")),
        item_closes: vec![mark("<｜tool▁call▁end｜>")],
        ..section(mark("<｜tool▁calls▁begin｜>"), vec![body], mark("<｜tool▁calls▁end｜>"))
    }]
}

fn dsml(mark: Mark<'_>) -> Vec<Syntax> {
    let tags = Tags {
        name_open: mark("<｜DSML｜invoke name=\""),
        name_close: mark("\">"),
        name_tail: None,
        key_open: mark("<｜DSML｜parameter name=\""),
        key_close: mark("\""),
        value_open: None,
        value_close: mark("</｜DSML｜parameter>"),
        call_close: mark("</｜DSML｜invoke>"),
        says_string: true,
        lines: false,
    };
    let places = [
        ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
        ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
    ];
    let body = || vec![Body::Tagged(Box::new(tags.clone()))];
    places.map(|(open, close)| section(mark(open), body(), mark(close))).into()
}

fn minimax(mark: Mark<'_>) -> Vec<Syntax> {
    let tags = Tags {
        name_open: mark("<invoke name=\""),
        name_close: mark("\">"),
        name_tail: None,
        key_open: mark("<parameter name=\""),
        key_close: mark("\">"),
        value_open: None,
        value_close: mark("</parameter>"),
        call_close: mark("</invoke>"),
        says_string: false,
        lines: true,
    };
    let (open, close) = (mark("<minimax:tool_call>"), mark("</minimax:tool_call>"));
    vec![section(open, vec![Body::Tagged(Box::new(tags))], close)]
}

fn mistral(mark: Mark<'_>) -> Vec<Syntax> {
    let named = Body::Named {
        separators: vec![mark("[CALL_ID]"), mark("[ARGS]")],
        ends: Vec::new(),
        pick: Pick::Separated,
    };
    let bodies = vec![Body::Objects(Keys::Named), named];
    vec![Syntax { bodies, ..open_objects(mark("[TOOL_CALLS]"), &[]) }]
}

fn lfm2(mark: Mark<'_>) -> Vec<Syntax> {
    let bodies = vec![Body::Expressions(Style::Python)];
    vec![section(mark("<|tool_call_start|>"), bodies, mark("<|tool_call_end|>"))]
}

fn gemma4(mark: Mark<'_>) -> Vec<Syntax> {
    let bodies = vec![Body::Expressions(Style::Marked("<|\"|>"))];
    vec![section(mark("<|tool_call>"), bodies, mark("<tool_call|>"))]
}

fn function_gemma(mark: Mark<'_>) -> Vec<Syntax> {
    let bodies = vec![Body::Expressions(Style::Marked("<escape>"))];
    vec![section(mark("<start_function_call>"), bodies, mark("<end_function_call>"))]
}

/// `<parameter=key>value</parameter></function>`
fn function_tags(mark: Mark<'_>, name_open: Marker) -> Tags {
    Tags {
        name_open,
        name_close: mark(">"),
        name_tail: None,
        key_open: mark("<parameter="),
        key_close: mark(">"),
        value_open: None,
        value_close: mark("</parameter>"),
        call_close: mark("</function>"),
        says_string: false,
        lines: true,
    }
}

/// Keys and values behind a name: what `prefix` does to the names of the tags is the publisher's.
fn pairs(mark: Mark<'_>, prefix: &str, close: &str) -> Tags {
    let tag = |name: &str| mark(&name.replace('*', prefix));
    Tags {
        name_open: Marker::spelled(""),
        name_close: Marker::spelled(""),
        name_tail: None,
        key_open: tag("<*arg_key>"),
        key_close: tag("</*arg_key>"),
        value_open: Some(tag("<*arg_value>")),
        value_close: tag("</*arg_value>"),
        call_close: mark(close),
        says_string: false,
        lines: false,
    }
}

/// Objects, tags with names in them, or a name and pairs: the first letter says which.
fn tool_call(mark: Mark<'_>, open: &str, close: &str) -> Vec<Syntax> {
    let bodies = vec![
        Body::Objects(Keys::Named),
        Body::Tagged(Box::new(function_tags(mark, mark("<function=")))),
        Body::Tagged(Box::new(pairs(mark, "", close))),
    ];
    // Some models forget the tag around a function.
    let function = Syntax { item_closes: vec![mark(close)], ..bare_function(mark) };
    vec![section(mark(open), bodies, mark(close)), function]
}

/// Objects, a name and an object in a fence, or a name and pairs; with or without a tag around each.
fn tool_calls(mark: Mark<'_>) -> Vec<Syntax> {
    let fences = ["```json", "```"].map(Marker::spelled);
    let named = Body::Named { separators: fences.into(), ends: Vec::new(), pick: Pick::Separated };
    let tags = pairs(mark, "", "</tool_call>");
    let tags = Tags { name_tail: Some(mark("<tool_sep>")), ..tags };
    let bodies = vec![Body::Objects(Keys::Named), named, Body::Tagged(Box::new(tags))];
    vec![Syntax {
        item_open: Some(mark("<tool_call>")),
        item_closes: vec![mark("</tool_call>")],
        ..section(mark("<tool_calls>"), bodies, mark("</tool_calls>"))
    }]
}

fn longcat(mark: Mark<'_>) -> Vec<Syntax> {
    let (open, close) = ("<longcat_tool_call>", "</longcat_tool_call>");
    let bodies =
        vec![Body::Objects(Keys::Named), Body::Tagged(Box::new(pairs(mark, "longcat_", close)))];
    vec![section(mark(open), bodies, mark(close))]
}

fn bare_function(mark: Mark<'_>) -> Syntax {
    let tags = function_tags(mark, Marker::spelled(""));
    Syntax { bodies: vec![Body::Tagged(Box::new(tags))], ..open_objects(mark("<function="), &[]) }
}

fn function_object(mark: Mark<'_>) -> Syntax {
    let (separators, ends) = (vec![mark(">")], vec![mark("</function>")]);
    let body = Body::Named { separators, ends, pick: Pick::Separated };
    let closes = [mark("</function>")];
    Syntax { bodies: vec![body], ..open_objects(mark("<function="), &closes) }
}

fn function_tag(mark: Mark<'_>) -> Syntax {
    let tags = Tags {
        name_open: Marker::spelled(""),
        name_close: mark("\">"),
        name_tail: None,
        key_open: mark("<param name=\""),
        key_close: mark("\">"),
        value_open: None,
        value_close: mark("</param>"),
        call_close: mark("</function>"),
        says_string: false,
        lines: false,
    };
    Syntax {
        bodies: vec![Body::Tagged(Box::new(tags))],
        ..open_objects(mark("<function name=\""), &[])
    }
}
