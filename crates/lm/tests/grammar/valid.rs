//! Whether JSON is of a schema, for the words that the tests use.

use serde_json::{Map, Value};

/// Why `value` is not of `schema`, which stands in `whole`.
pub(crate) fn wrong(value: &Value, schema: &Value, whole: &Value) -> Option<String> {
    let fields = match schema {
        Value::Bool(true) => return None,
        Value::Object(fields) => fields,
        _ => return Some(format!("{value}: nothing is of {schema}")),
    };
    fields.iter().find_map(|(word, rule)| {
        let right = holds(word, rule, value, fields, whole);
        (!right).then(|| format!("{value} is not of {word}: {rule}"))
    })
}

fn is(value: &Value, schema: &Value, whole: &Value) -> bool {
    wrong(value, schema, whole).is_none()
}

fn holds(
    word: &str,
    rule: &Value,
    value: &Value,
    around: &Map<String, Value>,
    whole: &Value,
) -> bool {
    let all = |schemas: &Value| {
        schemas.as_array().unwrap().iter().map(|s| is(value, s, whole)).collect::<Vec<_>>()
    };
    match word {
        "title" | "description" | "$defs" | "definitions" | "$schema" | "default" => true,
        "$ref" => {
            let path = rule.as_str().unwrap().strip_prefix('#').unwrap();
            is(value, whole.pointer(path).unwrap(), whole)
        }
        "type" => match rule {
            Value::Array(names) => names.iter().any(|name| is_type(value, name.as_str().unwrap())),
            name => is_type(value, name.as_str().unwrap()),
        },
        "const" => value == rule,
        "enum" => rule.as_array().unwrap().contains(value),
        "anyOf" => all(rule).contains(&true),
        "allOf" => !all(rule).contains(&false),
        "oneOf" => all(rule).iter().filter(|is| **is).count() == 1,
        _ => match value {
            Value::Object(object) => of_object(word, rule, object, around, whole),
            Value::Array(items) => of_array(word, rule, items, around, whole),
            Value::String(text) => of_text(word, rule, text),
            Value::Number(_) => of_number(word, rule, value.as_f64().unwrap()),
            Value::Null | Value::Bool(_) => true,
        },
    }
}

fn is_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|x| x.fract() == 0.0),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => panic!("{name}"),
    }
}

fn of_object(
    word: &str,
    rule: &Value,
    object: &Map<String, Value>,
    around: &Map<String, Value>,
    whole: &Value,
) -> bool {
    let named = |name: &str| around.get("properties").is_some_and(|p| p.get(name).is_some());
    let matching = |name: &str| match around.get("patternProperties") {
        Some(Value::Object(patterns)) => patterns.keys().any(|pattern| matches(pattern, name)),
        _ => false,
    };
    match word {
        "properties" => object
            .iter()
            .all(|(name, value)| rule.get(name).is_none_or(|schema| is(value, schema, whole))),
        "patternProperties" => object.iter().all(|(name, value)| {
            let rules = rule.as_object().unwrap().iter();
            rules.filter(|(p, _)| matches(p, name)).all(|(_, schema)| is(value, schema, whole))
        }),
        "additionalProperties" => object
            .iter()
            .all(|(name, value)| named(name) || matching(name) || is(value, rule, whole)),
        "required" => {
            rule.as_array().unwrap().iter().all(|n| object.contains_key(n.as_str().unwrap()))
        }
        "minProperties" => object.len() as u64 >= rule.as_u64().unwrap(),
        "maxProperties" => object.len() as u64 <= rule.as_u64().unwrap(),
        _ => is_for(word, &["minItems", "minLength", "minimum"]),
    }
}

fn of_array(
    word: &str,
    rule: &Value,
    items: &[Value],
    around: &Map<String, Value>,
    whole: &Value,
) -> bool {
    let first = around.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
    match word {
        "items" => items.iter().skip(first).all(|item| is(item, rule, whole)),
        "prefixItems" => items.iter().zip(rule.as_array().unwrap()).all(|(i, s)| is(i, s, whole)),
        "minItems" => items.len() as u64 >= rule.as_u64().unwrap(),
        "maxItems" => items.len() as u64 <= rule.as_u64().unwrap(),
        _ => is_for(word, &["properties", "required", "minLength", "minimum"]),
    }
}

fn of_text(word: &str, rule: &Value, text: &str) -> bool {
    match word {
        "minLength" => text.chars().count() as u64 >= rule.as_u64().unwrap(),
        "maxLength" => text.chars().count() as u64 <= rule.as_u64().unwrap(),
        "pattern" | "format" => matches(rule.as_str().unwrap(), text),
        _ => is_for(word, &["properties", "required", "items", "minItems", "minimum", "maximum"]),
    }
}

fn of_number(word: &str, rule: &Value, x: f64) -> bool {
    let bound = rule.as_f64();
    match word {
        "minimum" => x >= bound.unwrap(),
        "maximum" => x <= bound.unwrap(),
        "exclusiveMinimum" => x > bound.unwrap(),
        "exclusiveMaximum" => x < bound.unwrap(),
        "multipleOf" => (x / bound.unwrap() - (x / bound.unwrap()).round()).abs() < 1e-6,
        _ => is_for(word, &["properties", "required", "items", "minItems", "minLength", "pattern"]),
    }
}

/// Words about values of another type say nothing; any other word is one that these tests should know.
fn is_for(word: &str, others: &[&str]) -> bool {
    assert!(others.contains(&word), "the validator does not know {word}");
    true
}

/// The expressions and formats of the tests.
fn matches(pattern: &str, text: &str) -> bool {
    let digits = |text: &str, n: usize| text.len() == n && text.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = text.split('-').collect();
    match pattern {
        "^[A-Z]{3}-[0-9]{2,4}$" => {
            let (letters, number) = text.split_once('-').unwrap_or_default();
            letters.len() == 3
                && letters.bytes().all(|b| b.is_ascii_uppercase())
                && (2..=4).any(|n| digits(number, n))
        }
        "^x_" => text.starts_with("x_"),
        "a+b" => text.match_indices("ab").next().is_some(),
        "date" => {
            let lengths = [4, 2, 2];
            parts.len() == 3
                && parts.iter().zip(lengths).all(|(part, n)| digits(part, n))
                && (1..=12).contains(&parts[1].parse().unwrap())
                && (1..=31).contains(&parts[2].parse().unwrap())
        }
        "uuid" => {
            parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
                && text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
        }
        "ipv4" => {
            let parts: Vec<&str> = text.split('.').collect();
            parts.len() == 4 && parts.iter().all(|part| part.parse::<u8>().is_ok())
        }
        "email" => text.split_once('@').is_some_and(|(a, b)| !a.is_empty() && !b.is_empty()),
        _ => panic!("the validator does not know {pattern}"),
    }
}
