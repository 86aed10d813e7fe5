//! JSON of a schema: random models say nothing else.

use std::time::{Duration, Instant};

use longrun_lm::grammar::Grammar;
use longrun_lm::text::Tokenizer;
use serde_json::{Value, json};

use crate::valid::wrong;
use crate::world::{DEMO, World, small};

/// A schema for each thing that one can say.
fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"type": "number"}},
            "required": ["b"], "additionalProperties": false}),
        json!({"type": "object"}),
        json!({"type": "object", "properties": {}, "additionalProperties": false}),
        json!({}),
        json!(true),
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 5}),
        json!({"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}}),
        json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": false, "minItems": 2}),
        json!({"enum": ["red", "green", 7, null, {"deep": [1, 2]}]}),
        json!({"const": {"a": "é \"quoted\" \\ \n", "b": [1.5, true]}}),
        json!({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "minimum": 10, "maximum": 20}]}),
        json!({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}},
                "required": ["kind", "x"], "additionalProperties": false},
            {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"],
                "additionalProperties": false}]}),
        json!({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}], "type": "object"}),
        json!({"type": ["string", "null", "integer"]}),
        json!({"type": "string", "minLength": 4, "maxLength": 9}),
        json!({"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2,4}$"}),
        json!({"type": "string", "pattern": "a+b", "maxLength": 30}),
        json!({"type": "array", "items": {"type": "string", "format": "date"}, "maxItems": 2}),
        json!({"type": "object", "properties": {"id": {"type": "string", "format": "uuid"}, "ip": {"type": "string",
            "format": "ipv4"}}, "required": ["id", "ip"], "additionalProperties": false}),
        json!({"type": "string", "format": "email"}),
        json!({"type": "integer", "minimum": -5, "maximum": 1234}),
        json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
        json!({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 1000}),
        json!({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 3}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "patternProperties": {"^x_":
            {"type": "boolean"}}, "additionalProperties": false}),
        json!({"type": "object", "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"},
            {"type": "null"}]}}, "required": ["value", "next"], "additionalProperties": false}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"leaf": {"type": "boolean"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
            "required": ["leaf", "children"], "additionalProperties": false}}}),
        json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "An order", "type": "object",
            "properties": {"id": {"type": "integer", "minimum": 1}, "state": {"enum": ["new", "paid"]},
                "lines": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "object", "properties": {
                    "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2,4}$"}, "count": {"type": "integer",
                    "minimum": 1, "maximum": 99}}, "required": ["sku", "count"], "additionalProperties": false}},
                "note": {"type": ["string", "null"], "maxLength": 20}},
            "required": ["id", "state", "lines"], "additionalProperties": false}),
    ]
}

/// How many of the answers came to an end.
fn walk(world: &World, schema: &Value, seeds: std::ops::Range<u64>, most: usize) -> usize {
    let mask = world.mask(&Grammar::json_schema(schema));
    let mut ends = 0;
    for seed in seeds {
        let (ids, ended) = world.walk(&mut mask.clone(), seed, most);
        let text = world.text(&ids);
        if !ended {
            continue;
        }
        let value: Value = match serde_json::from_str(&text) {
            Ok(value) => value,
            // 1E999 is JSON, if not for everybody.
            Err(e) if e.to_string().starts_with("number out of range") => continue,
            Err(e) => panic!("{schema}: {text:?}: {e}"),
        };
        ends += 1;
        let wrong = wrong(&value, schema, schema);
        assert!(wrong.is_none(), "{schema}: {text:?}: {wrong:?}");
    }
    ends
}

#[test]
fn what_random_models_say_is_of_the_schema() {
    for schema in schemas() {
        assert!(walk(&DEMO, &schema, 0..6, 300) > 0, "{schema}");
    }
    // Where no token ends a text, it ends with the form. Numbers could always go on.
    let without_end = small(&[]);
    let ends = |schema: &Value| walk(&without_end, schema, 0..3, 600) > 0;
    assert!(schemas().iter().filter(|schema| ends(schema)).count() + 4 > schemas().len());
}

/// A real vocabulary, which is not part of the repository: how many logits its model has, and what ends a text.
fn real(name: &str, size: usize, end: &str) -> World {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.cache/models/text");
    let file = std::fs::read(format!("{folder}/{name}/tokenizer.json")).unwrap();
    let tokenizer = Tokenizer::from_json(&file, None).unwrap();
    let ids = tokenizer.encode(end, true).unwrap();
    World::new(tokenizer, size, &ids[ids.len() - 1..])
}

fn qwen() -> World {
    real("qwen3.6", 248_320, "<|im_end|>")
}

#[test]
#[ignore = "needs models: cargo xtask test"]
fn what_random_models_say_is_of_the_schema_in_real_vocabularies() {
    for world in [qwen(), real("deepseek-v4", 129_280, "<｜end▁of▁sentence｜>")] {
        let ends: usize = schemas().iter().map(|schema| walk(&world, schema, 0..3, 100)).sum();
        assert!(ends > schemas().len(), "{} ids: {ends}", world.size);
    }
}

/// Prints what masks cost in a large vocabulary.
#[test]
#[ignore = "needs models: cargo xtask test"]
fn figures() {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        // Other tests of this process give memory back meanwhile: the difference can be below 0.
        line.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap() / 1024
    };
    for world in [qwen(), real("deepseek-v4", 129_280, "<｜end▁of▁sentence｜>")] {
        let (start, before) = (Instant::now(), resident());
        let grammar = world.grammars.compile(&Grammar::json_object()).unwrap();
        println!(
            "{} ids: first grammar {:.0?}, {} MiB",
            world.size,
            start.elapsed(),
            resident() - before
        );
        drop(grammar);
        let schemas = schemas();
        let order = schemas.last().unwrap();
        for (name, grammar) in [
            ("any object", Grammar::json_object()),
            ("an order", Grammar::json_schema(order)),
            ("a bounded text", Grammar::json_schema(&json!({"type": "string", "maxLength": 2000}))),
        ] {
            let start = Instant::now();
            let mask = world.grammars.compile(&grammar).unwrap().mask();
            let (ready, mut times) = (start.elapsed(), Vec::new());
            for seed in 0..10 {
                let mut own = mask.clone();
                let (ids, _) = world.walk(&mut own, seed, 200);
                let (mut own, mut logits) = (mask.clone(), vec![0.0; world.size]);
                for id in ids {
                    logits.fill(0.0);
                    let start = Instant::now();
                    own.0.apply(&mut logits).unwrap();
                    own.0.accept(id).unwrap();
                    times.push(start.elapsed());
                }
            }
            times.sort_unstable();
            let of = |part: usize| times[(times.len() - 1) * part / 100];
            let mean = times.iter().sum::<Duration>() / times.len() as u32;
            println!(
                "  {name}: ready {ready:.1?}; {} tokens: mean {mean:.1?}, half {:.1?}, 99% {:.1?}, most {:.1?}",
                times.len(),
                of(50),
                of(99),
                of(100)
            );
        }
    }
}
