//! Grammars that nobody means well with: each is refused with its place, or bounded in what it costs. None panics.

use std::time::{Duration, Instant};

use longrun_lm::Kind;
use longrun_lm::grammar::Grammar;
use serde_json::{Map, Value, json};

use crate::answers::Random;
use crate::world::DEMO;

/// What making a grammar ready may take: some ten times what it does on a machine that has nothing else to do.
const LONGEST: Duration = Duration::from_secs(20);

/// An object with fields that may be left out.
fn object(fields: usize) -> Value {
    let fields: Map<_, _> =
        (0..fields).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect();
    json!({"type": "object", "properties": fields})
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(
        json!({"type": "integer"}),
        |schema, _| json!({"type": "object", "properties": {"a": schema}, "required": ["a"]}),
    )
}

fn words(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("value {i} of many")).collect()
}

/// Says a few tokens, if the grammar is one. What it costs stays bounded: the text ends with an error at worst.
fn try_out(grammar: &Grammar, tokens: usize) -> longrun_lm::Result<()> {
    let start = Instant::now();
    let compiled = DEMO.grammars.compile(grammar);
    assert!(start.elapsed() < LONGEST, "{:?}: {:.200}", start.elapsed(), format!("{grammar:?}"));
    let (mut mask, mut random) = (compiled?.mask(), Random(1));
    for _ in 0..tokens {
        let mut logits: Vec<f32> = (0..DEMO.size).map(|_| random.below(1000) as f32).collect();
        let Ok(()) = mask.0.apply(&mut logits) else { break };
        let best = (0..DEMO.size).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        if mask.0.accept(best as u32).is_err() || mask.0.is_done() {
            break;
        }
    }
    assert!(start.elapsed() < 2 * LONGEST, "{:?}", start.elapsed());
    Ok(())
}

#[test]
fn large_schemas_are_accepted() {
    let required: Vec<String> = (0..1000).map(|i| format!("p{i}")).collect();
    let mut all = object(1000);
    all["required"] = required.into();
    for schema in [
        json!({"type": "string", "maxLength": 1_000_000_000_u64}),
        json!({"type": "string", "minLength": 1_000_000_000_u64}),
        json!({"type": "array", "items": {"type": "integer"}, "maxItems": 1_000_000_000_u64}),
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000_000_u64}),
        json!({"type": "object", "maxProperties": 1_000_000_000_u64}),
        json!({"type": "object"}),
        json!({"type": "object", "properties": {}}),
        json!({"type": "object", "properties": {}, "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
        json!({"enum": words(40_000)}),
        object(1000),
        all,
        nested(60),
        json!({"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"}),
        json!({"type": "string", "pattern": "(a|aa)+b.*(x|y).{0,500}z"}),
        json!({"type": "integer", "multipleOf": 99_991}),
        json!({"type": "integer", "minimum": -9_007_199_254_740_991_i64, "maximum": 9_007_199_254_740_991_i64}),
        json!({"type": "integer", "format": "uint64"}),
        json!({"type": "string", "format": "a note for readers"}),
        json!({"type": "array", "items": {"type": "string", "pattern": "(a|b)?".repeat(50)}}),
    ] {
        let text: String = schema.to_string().chars().take(200).collect();
        try_out(&Grammar::json_schema(&schema), 200).unwrap_or_else(|e| panic!("{text}: {e}"));
    }
}

#[test]
fn what_no_grammar_can_hold_is_refused_with_its_place() {
    let two_trees = json!({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {
        "a": {"type": "object", "properties": {"child": {"$ref": "#/$defs/a"}}},
        "b": {"type": "object", "properties": {"child": {"$ref": "#/$defs/b"}}}}});
    let product: Vec<Value> = (0..20)
        .map(|i| json!({"anyOf": [{"pattern": format!("a{i}")}, {"pattern": "b"}]}))
        .collect();
    let patterns: Map<_, _> = (0..33).map(|i| (format!("^a{i}x"), json!(true))).collect();
    for (schema, words) in [
        (json!(false), "a schema is an object"),
        (json!(3), "a schema is an object"),
        (json!({"not": {"type": "string"}}), "#: `not`"),
        (json!({"properties": {"a": {"items": {"if": {}}}}}), "#/properties/a/items: `if`"),
        (
            json!({"$defs": {"x": {"anyOf": [{}, {"contains": 1}]}}}),
            "#/$defs/x/anyOf/1: `contains`",
        ),
        (json!({"type": "array", "uniqueItems": true}), "`uniqueItems`"),
        (json!({"$ref": "#"}), "no text has this form"),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
            "no text",
        ),
        (json!({"allOf": [{"$ref": "#"}, {"type": "object"}]}), "circular"),
        (two_trees, "json_schema"),
        (json!({"$ref": "#/$defs/none"}), "$defs"),
        (json!({"items": {"$ref": "http://example.com/a.json"}}), "#/items/$ref: "),
        (json!({"$ref": "file:///etc/passwd"}), "outside of the schema"),
        (json!({"enum": words(60_000)}), "50000 values"),
        (json!({"title": "x".repeat(3 << 20)}), "bytes of text"),
        (object(1001), "1000 fields"),
        (nested(200), "deep"),
        (json!({"type": "strnig"}), "strnig"),
        (json!({"type": "aé".repeat(80)}), "Invalid type"),
        (json!({"type": 3}), "type must be"),
        (json!({"properties": 3}), "properties must be"),
        (json!({"type": "string", "minLength": -1}), "minLength"),
        (json!({"type": "string", "maxLength": 1e19}), "maxLength"),
        (json!({"type": "string", "minLength": 3, "maxLength": 2}), "minLength (3)"),
        (json!({"type": "string", "pattern": "(["}), "unclosed"),
        (json!({"type": "string", "pattern": "(?=a)b"}), "look-around"),
        (json!({"type": "string", "pattern": "(a)\\1"}), "backreferences"),
        (json!({"type": "string", "pattern": "a".repeat(40_000)}), "bytes of expressions"),
        (
            json!({"type": "string", "pattern": "^(a|b|ab)*$", "minLength": 5000, "maxLength": 9000}),
            "too many",
        ),
        (json!({"type": "object", "patternProperties": patterns}), "patternProperties"),
        (json!({"type": "number", "multipleOf": 1e-300}), "multipleOf: "),
        (
            json!({"allOf": [{"type": "integer", "multipleOf": 997}, {"multipleOf": 991}]}),
            "multipleOf: ",
        ),
        (json!({"type": "integer", "multipleOf": 0}), "multiple"),
        (json!({"type": "integer", "minimum": -1e300, "maximum": 1e300}), "minimum: "),
        (json!({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}), "say `anyOf`"),
        (json!({"type": "string", "allOf": product}), "too large"),
    ] {
        let text: String = schema.to_string().chars().take(200).collect();
        let error = try_out(&Grammar::json_schema(&schema), 5).err();
        let error = error.unwrap_or_else(|| panic!("accepted: {text}"));
        assert_eq!(error.kind(), Kind::Usage, "{text}: {error}");
        assert!(error.to_string().starts_with("json_schema: "), "{text}: {error}");
        assert!(error.to_string().contains(words), "{text}: {error}");
        assert!(error.to_string().len() < 1000, "{error}");
    }
}

/// Each character of a text with a bound is another state of the grammar, with some ten beside it.
#[test]
fn a_text_with_a_bound_may_be_long() {
    for schema in [
        json!({"type": "string", "maxLength": 10_000}),
        json!({"type": "string", "maxLength": 10_000, "pattern": "^[a-z]*$"}),
    ] {
        let mut mask = DEMO.mask(&Grammar::json_schema(&schema));
        let quote = DEMO.ids("\"")[0];
        let letters = [DEMO.ids("a")[0], DEMO.ids("b")[0]];
        assert!(DEMO.say(&mut mask, quote));
        for i in 0..10_000 {
            assert!(DEMO.say(&mut mask, letters[i % 3 / 2]), "{schema}: {i}");
        }
        // The bound holds behind all of that.
        assert!(!DEMO.say(&mut mask.clone(), letters[0]) && DEMO.say(&mut mask, quote), "{schema}");
    }
}

/// A chain of terminals, each within the one before.
fn chain(n: usize) -> String {
    let link = |i| format!("T{i}: T{} \"b\"?\n", i + 1);
    let links: String = (0..n).map(link).collect();
    format!("start: T0\n{links}T{n}: \"a\"\n")
}

#[test]
fn expressions_and_grammars_are_bounded() {
    let deep = |n: usize| format!("{}a{}", "(".repeat(n), ")*".repeat(n));
    let never = ["[^\\s\\S]", "(", "(?=a)"].map(|text| (Grammar::regex(text), false));
    let regexes = [
        (deep(100), true),
        (deep(10_000), false),
        ("((a{1,1000}){1,1000}){1,1000}".into(), true),
        ("(x+x+)+y".into(), true),
        ("(.*a.{20}b.*c.{20})+".into(), true),
        ("(\\p{L}{1,500}\\w{1,500}){1,500}".into(), true),
        (words(1500).join("|"), true),
        ("(a|b)?".repeat(5000), false),
        ("a".repeat(40_000), false),
        (String::new(), true),
    ];
    let larks = [
        ("start: start \"a\" | \"b\"".into(), true),
        ("start: start start start | \"a\" | \"\"".into(), true),
        ("start: ((\"a\"{1,1000}){1,1000}){1,1000}".into(), true),
        ("start: T\nT: /.*/ & ~(/.*a.{40}/)".into(), true),
        ("start: %json {\"type\": \"object\"}".into(), true),
        ("start: start".into(), false),
        ("x: \"a\"".into(), false),
        ("start: b".into(), false),
        ("start: A\nA: B\nB: A".into(), false),
        ("%import python.FOO\nstart: FOO".into(), false),
        (format!("start: %json {}1{}", "{\"anyOf\":[".repeat(5000), "]}".repeat(5000)), false),
        (format!("start: {}\"a\"{}", "(".repeat(30_000), ")".repeat(30_000)), false),
        (format!("start: A\nA: {}\"a\"{}", "[".repeat(30_000), "]".repeat(30_000)), false),
        (chain(900), false),
        (chain(2000), false),
        ("start: \"a\"\n".to_owned() + &"// a remark\n".repeat(20_000), false),
        ("start: <[99999999]>".into(), false),
        ("\u{0}\u{1}é%%%".into(), false),
    ];
    let choices = [(Vec::new(), false), (words(10_000), true), (words(20_000), false)];
    let cases = regexes.into_iter().map(|(text, is)| (Grammar::regex(&text), is));
    let cases = cases.chain(larks.into_iter().map(|(text, is)| (Grammar::lark(&text), is)));
    let cases = cases.chain(choices.into_iter().map(|(texts, is)| (Grammar::choice(&texts), is)));
    for (grammar, is) in cases.chain(never) {
        let text: String = format!("{grammar:?}").chars().take(200).collect();
        match try_out(&grammar, 100) {
            Ok(()) => assert!(is, "accepted: {text}"),
            Err(error) => {
                assert!(!is && error.kind() == Kind::Usage, "{text}: {error}");
                assert!(error.to_string().len() < 1000, "{error}");
            }
        }
    }
}

/// Anything with the words of schemas in it.
fn anything(random: &mut Random, depth: usize) -> Value {
    const WORDS: [&str; 30] = [
        "type",
        "properties",
        "required",
        "items",
        "prefixItems",
        "additionalProperties",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "$defs",
        "enum",
        "const",
        "pattern",
        "format",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "multipleOf",
        "minItems",
        "maxItems",
        "patternProperties",
        "minProperties",
        "maxProperties",
        "a",
        "x-guidance",
        "$schema",
        "$id",
    ];
    const TEXTS: [&str; 16] = [
        "string",
        "number",
        "integer",
        "object",
        "array",
        "boolean",
        "null",
        "#",
        "#/$defs/a",
        "^a",
        "é.*",
        "date",
        "a",
        "#/properties/a",
        "(",
        "",
    ];
    let pick = |random: &mut Random, from: &[&str]| {
        from[random.below(from.len() as u64) as usize].to_owned()
    };
    match random.below(if depth > 4 { 5 } else { 12 }) {
        0 => json!(random.below(2) == 0),
        1 => json!([0.0, 1.0, -3.0, 0.01, 1e9, 1e300, 2.5][random.below(7) as usize]),
        2 => json!(random.below(5)),
        3 | 4 => pick(random, &TEXTS).into(),
        5 | 6 => (0..random.below(4)).map(|_| anything(random, depth + 1)).collect(),
        _ => {
            let fields = 1 + random.below(4);
            (0..fields).map(|_| (pick(random, &WORDS), anything(random, depth + 1))).collect()
        }
    }
}

#[test]
fn anything_is_refused_or_followed() {
    let (mut random, mut accepted) = (Random(5), 0);
    for _ in 0..1500 {
        let mut schema = anything(&mut random, 0);
        if let Value::Object(fields) = &mut schema {
            fields.entry("$defs").or_insert_with(|| json!({"a": {"type": "integer"}}));
        }
        match try_out(&Grammar::json_schema(&schema), 20) {
            Ok(()) => accepted += 1,
            Err(error) => assert_eq!(error.kind(), Kind::Usage, "{schema}: {error}"),
        }
    }
    assert!(accepted > 100, "{accepted}");
}
