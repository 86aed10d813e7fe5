//! Calls of tools in the ways that models write them.

use longrun_lm::grammar::{CallBody, CallShape, Choice, Grammar, Tool};
use serde_json::{Value, json};

use crate::valid::wrong;
use crate::world::{DEMO, World, small};

fn tool(name: &str, parameters: Value) -> Tool {
    Tool { name: name.into(), parameters, strict: true }
}

fn tools() -> Vec<Tool> {
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer",
        "maximum": 9, "minimum": 1}, "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["city"],
        "additionalProperties": false});
    let flag = json!({"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
        "additionalProperties": false});
    vec![
        tool("get_weather", city),
        tool("set", flag),
        tool("now", json!({"type": "object", "properties": {}})),
    ]
}

fn json_body(arguments: &str) -> CallBody {
    CallBody::Json { name: "name".into(), arguments: arguments.into() }
}

/// JSON between two tags.
fn tagged() -> CallShape {
    CallShape {
        begin: "<tool_call>\n".into(),
        body: json_body("arguments"),
        end: "\n</tool_call>".into(),
        between: "\n".into(),
        ..CallShape::default()
    }
}

/// A list behind one marker.
fn listed() -> CallShape {
    CallShape {
        open: "[TOOL_CALLS] [".into(),
        between: ", ".into(),
        close: "]".into(),
        ..CallShape::default()
    }
}

/// Names with numbers, arguments behind a marker, all in a section.
fn numbered() -> CallShape {
    CallShape {
        open: "<|calls|>".into(),
        begin: "<|call|>".into(),
        body: CallBody::Named {
            before: "functions.".into(),
            number: Some(":".into()),
            arguments: "<|args|>".into(),
        },
        end: "<|call_end|>".into(),
        close: "<|calls_end|>".into(),
        ..CallShape::default()
    }
}

/// One marker, then a name, another, then arguments.
fn named() -> CallShape {
    let body = CallBody::Named { before: String::new(), number: None, arguments: "[ARGS]".into() };
    CallShape { begin: "[TOOL_CALLS]".into(), body, ..CallShape::default() }
}

fn bare() -> CallShape {
    CallShape { body: json_body("parameters"), between: "; ".into(), ..CallShape::default() }
}

fn in_tags() -> CallShape {
    CallShape { body: CallBody::Tags, ..tagged() }
}

/// Asserts what each shape admits, in the order of the cases.
fn check(
    world: &World,
    shape: &CallShape,
    choice: &Choice,
    parallel: bool,
    cases: &[(&str, bool)],
) {
    let mask = world.mask(&Grammar::tool_calls(shape, &tools(), choice.clone(), parallel));
    for (text, is) in cases {
        assert_eq!(world.admits(&mask, text), *is, "{choice:?}, {parallel}: {text:?}");
    }
}

#[test]
fn calls_between_tags() {
    let one = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}\n</tool_call>";
    let two = &format!("{one}\n<tool_call>\n{{\"name\":\"now\",\"arguments\":{{}}}}\n</tool_call>");
    let unknown = "<tool_call>\n{\"name\": \"get_news\", \"arguments\": {}}\n</tool_call>";
    let lacking =
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"days\": 3}}\n</tool_call>";
    let large = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"B\", \"days\": 33}}\n</tool_call>";
    let wrong = [("", false), ("Hello", false), (unknown, false), (lacking, false), (large, false)];
    for world in [&small(&[0]), &*DEMO] {
        let cases = [&[(one, true), (two, true)], &wrong[..]].concat();
        check(world, &tagged(), &Choice::Required, true, &cases);
        let cases = [&[(one, true), (two, false)], &wrong[..]].concat();
        check(world, &tagged(), &Choice::Required, false, &cases);
        let now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"any\": [1]}}\n</tool_call>";
        let cases = [(one, false), (two, false), (now, true)];
        check(world, &tagged(), &Choice::Named("now".into()), true, &cases);
    }
    // Where no token ends a text, one call does.
    check(&small(&[]), &tagged(), &Choice::Required, false, &[(one, true), (two, false)]);
}

#[test]
fn text_and_calls_as_the_model_likes() {
    let call = "<tool_call>\n{\"name\": \"set\", \"arguments\": {\"on\": true}}\n</tool_call>";
    let cases = [
        ("Hello", true),
        ("{\"name\": 1} < <tool", true),
        (call, true),
        (&format!("Let me see.\n{call}"), true),
        (&format!("{call}\n{call}"), true),
        (&format!("{call} and more"), false),
        ("<tool_call>\nno", false),
        ("A <tool_call>\n{\"name\": \"get_news\"", false),
        (&format!("{call}<tool_call>"), false),
    ];
    // A special token begins a call in the one, and text in the other.
    check(&small(&[0]), &tagged(), &Choice::Auto, true, &cases);
    check(&DEMO, &tagged(), &Choice::Auto, true, &cases);
    let cases = [
        ("Hi", true),
        ("[TOOL", true),
        ("Hi [TOOL_CALLS]set[ARGS]{\"on\": true}", true),
        ("[TOOL_CALLS] ", false),
    ];
    check(&DEMO, &named(), &Choice::Auto, false, &cases);
}

#[test]
fn calls_in_other_shapes() {
    let cases = [
        ("[TOOL_CALLS] [{\"name\": \"set\", \"arguments\": {\"on\": true}}]", true),
        (
            "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]",
            true,
        ),
        ("[TOOL_CALLS] []", false),
        ("[TOOL_CALLS] [{\"name\": \"set\", \"arguments\": {\"on\": 1}}]", false),
    ];
    check(&DEMO, &listed(), &Choice::Required, true, &cases);
    let cases = [
        ("<|calls|><|call|>functions.set:0<|args|>{\"on\": true}<|call_end|><|calls_end|>", true),
        (
            "<|calls|><|call|>functions.set:0<|args|>{\"on\": true}<|call_end|>\
          <|call|>functions.now:1<|args|>{}<|call_end|><|calls_end|>",
            true,
        ),
        ("<|calls|><|call|>functions.set:x<|args|>{\"on\": true}<|call_end|><|calls_end|>", false),
        ("<|calls|><|call|>functions.set:0<|args|>{\"on\": true}<|call_end|>", false),
    ];
    check(&DEMO, &numbered(), &Choice::Required, true, &cases);
    let cases =
        [("[TOOL_CALLS]set[ARGS]{\"on\": false}", true), ("[TOOL_CALLS]setx[ARGS]{}", false)];
    check(&DEMO, &named(), &Choice::Required, true, &cases);
    let cases = [
        ("{\"name\": \"set\", \"parameters\": {\"on\": false}}", true),
        ("{\"name\": \"set\", \"arguments\": {\"on\": false}}", false),
    ];
    check(&DEMO, &bare(), &Choice::Required, false, &cases);
}

#[test]
fn calls_in_tags() {
    let call = |inner: &str| {
        format!("<tool_call>\n<function=get_weather>\n{inner}</function>\n</tool_call>")
    };
    let city = "<parameter=city>\nBern\n</parameter>\n";
    let cases = [
        (&*call(city), true),
        (
            &call(&format!(
                "{city}<parameter=days>\n3\n</parameter>\n<parameter=unit>\nC\n</parameter>\n"
            )),
            true,
        ),
        (&call("<parameter=city>\na < b\n\"and\" </parameter>\n\n</parameter>\n"), true),
        (&call(&format!("{city}<parameter=days>\n33\n</parameter>\n")), false),
        (&call(&format!("{city}<parameter=unit>\nK\n</parameter>\n")), false),
        (&call(&format!("{city}<parameter=none>\n1\n</parameter>\n")), false),
        (&call(""), false),
        ("<tool_call>\n<function=now>\n</function>\n</tool_call>", true),
        (
            "<tool_call>\n<function=now>\n<parameter=any>\nx\n</parameter>\n</function>\n</tool_call>",
            true,
        ),
    ];
    check(&small(&[0]), &in_tags(), &Choice::Required, false, &cases);
    check(&DEMO, &in_tags(), &Choice::Required, false, &cases);
}

/// Whatever a model would like to call, it calls a tool that there is, with arguments of its schema.
#[test]
fn what_random_models_call_is_there() {
    let (world, mut ends) = (small(&[0]), 0);
    for parallel in [false, true] {
        let grammar = Grammar::tool_calls(&tagged(), &tools(), Choice::Required, parallel);
        let mask = world.mask(&grammar);
        for seed in 0..20 {
            let (ids, ended) = world.walk(&mut mask.clone(), seed, 300);
            if !ended {
                continue;
            }
            ends += 1;
            let text = world.text(&ids);
            let calls: Vec<&str> =
                text.split("</tool_call>").filter(|part| !part.is_empty()).collect();
            assert!(parallel || calls.len() == 1, "{text:?}");
            for call in calls {
                let body = call.trim_start().strip_prefix("<tool_call>\n").unwrap();
                let call: Value =
                    serde_json::from_str(body).unwrap_or_else(|e| panic!("{text:?}: {e}"));
                let tool = tools().into_iter().find(|tool| call["name"] == tool.name).unwrap();
                let wrong = wrong(&call["arguments"], &tool.parameters, &tool.parameters);
                assert!(wrong.is_none(), "{text:?}: {wrong:?}");
            }
        }
    }
    assert!(ends > 10, "{ends}");
}

#[test]
fn impossible_calls_are_refused() {
    let say = |shape: CallShape, tools: &[Tool], choice: Choice| {
        let error = DEMO.grammars.compile(&Grammar::tool_calls(&shape, tools, choice, true)).err();
        error.map_or("accepted".into(), |e| e.to_string())
    };
    let unsupported = json!({"type": "object", "properties": {"a": {"not": {"type": "string"}}}});
    let lax = Tool { strict: false, ..tool("a", unsupported.clone()) };
    let many: Vec<Tool> = (0..513).map(|i| tool(&format!("t{i}"), json!({}))).collect();
    for (error, words) in [
        (say(tagged(), &[], Choice::Required), "no tools"),
        (say(tagged(), &tools(), Choice::Named("none".into())), "no tool `none`"),
        (say(tagged(), &many, Choice::Required), "more than 512 tools"),
        (say(tagged(), &[tool("", json!({}))], Choice::Required), "without a name"),
        (
            say(tagged(), &[tool("a", unsupported.clone())], Choice::Required),
            "`a`: #/properties/a: `not`",
        ),
        (say(in_tags(), &[tool("a", unsupported)], Choice::Required), "`a`: #/properties/a: `not`"),
        (say(tagged(), std::slice::from_ref(&lax), Choice::Required), "accepted"),
        (say(in_tags(), &[lax], Choice::Required), "accepted"),
        (say(bare(), &tools(), Choice::Auto), "tells a call of this model from text"),
        (say(tagged(), &[tool("\"\\\n\u{7f}é>", json!({}))], Choice::Required), "accepted"),
        (say(tagged(), &[tool("a", json!(3))], Choice::Required), "`a`: #: a schema is an object"),
    ] {
        assert!(error.contains(words), "{error}, and not {words}");
    }
    // As many as there may be, each with a schema of some size, take a moment.
    let full: Vec<Tool> =
        (0..512).map(|i| tool(&format!("t{i}"), tools()[0].parameters.clone())).collect();
    assert_eq!(say(tagged(), &full, Choice::Required), "accepted");
}
