//! JSON schemas before they become grammars: what can't be held is named with its place.
//!
//! Owns the bounds on a schema's size and the list of what is not supported. Refuses to make a grammar of it.

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// White space characters in one place at most: enough for a line break and an indent. Without a bound a model may
/// write nothing else.
pub(super) const WHITESPACE: usize = 64;

/// Values within values at most, as deep as what `serde_json` reads.
const DEEPEST: usize = 128;
/// Values in a schema at most.
const MOST_VALUES: usize = 50_000;
/// Bytes of all texts and names in a schema at most.
const MOST_BYTES: usize = 2 << 20;
/// Expressions for names in a schema at most: each is compared with each.
const MOST_PATTERNS: usize = 32;
/// Fields of one object at most: each that may be left out is looked at for every token of a name.
const MOST_FIELDS: usize = 1000;
/// Bytes of all expressions at most: the time that it takes to make one ready grows with the square.
pub(super) const MOST_EXPRESSION: usize = 1 << 15;
/// The least common multiple of all `multipleOf` at most, as many states does a number have.
const MOST_MULTIPLE: u64 = 100_000;
/// The largest bound of a number, either way: integers above are not exact.
const LARGEST: f64 = 9_007_199_254_740_992.0;
/// The formats that a grammar can hold. Others say something for the reader, as the standard has it.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// What a grammar can't hold.
const UNSUPPORTED: [&str; 19] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$vocabulary",
];

/// Fields with a schema, with a list of schemas, and with named schemas.
const ONE: [&str; 3] = ["items", "additionalItems", "additionalProperties"];
const LISTS: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Fields with values.
const VALUES: [&str; 4] = ["const", "enum", "default", "examples"];

/// A schema within bounds, with the options of this project in place of its own. If not `strict`, what can't be held is
/// left out later on.
///
/// # Errors
/// It is too large, or `strict` and holds something unsupported; with the place as a JSON pointer.
pub(super) fn checked(schema: &Value, strict: bool) -> Result<Value> {
    let mut size = Size::default();
    size.add(schema, 0)?;
    let mut path = String::from("#");
    if strict {
        supported(schema, &mut path)?;
    }
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Object(_) => schema.clone(),
        _ => return Err(Error::usage("a schema is an object").at("#")),
    };
    without_notes(&mut schema);
    let options = json!({
        "whitespace_pattern": format!(r"[\x20\x0A\x0D\x09]{{1,{WHITESPACE}}}"),
        "lenient": !strict,
    });
    schema["x-guidance"] = options;
    Ok(schema)
}

#[derive(Default)]
struct Size {
    values: usize,
    bytes: usize,
    patterns: usize,
    expressions: usize,
    /// The least common multiple so far, and the digits behind its point.
    multiple: Option<(u64, u32)>,
}

impl Size {
    fn add(&mut self, value: &Value, depth: usize) -> Result<()> {
        self.values += 1;
        if depth > DEEPEST {
            return Err(Error::usage(format!("it is more than {DEEPEST} values deep")));
        }
        match value {
            Value::String(text) => self.bytes += text.len(),
            Value::Array(values) => values.iter().try_for_each(|v| self.add(v, depth + 1))?,
            Value::Object(fields) => {
                for (name, value) in fields {
                    self.bytes += name.len();
                    self.add_field(name, value)?;
                    self.add(value, depth + 1)
                        .map_err(|e| if depth < 3 { e.at(name) } else { e })?;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        let bounds = [
            (self.values, MOST_VALUES, "values"),
            (self.bytes, MOST_BYTES, "bytes of text"),
            (self.patterns, MOST_PATTERNS, "patternProperties"),
            (self.expressions, MOST_EXPRESSION, "bytes of expressions"),
        ];
        match bounds.into_iter().find(|(count, most, _)| count > most) {
            None => Ok(()),
            Some((_, most, what)) => Err(Error::usage(format!("it has more than {most} {what}"))),
        }
    }

    /// What a field of a schema costs beyond its text.
    fn add_field(&mut self, name: &str, value: &Value) -> Result<()> {
        match (name, value) {
            ("patternProperties", Value::Object(named)) => {
                self.patterns += named.len();
                self.expressions += named.keys().map(String::len).sum::<usize>();
            }
            ("properties", Value::Object(named)) if named.len() > MOST_FIELDS => {
                let what = format!("an object has more than {MOST_FIELDS} fields");
                return Err(Error::usage(what).at(name));
            }
            ("pattern", Value::String(text)) => self.expressions += text.len(),
            ("multipleOf", Value::Number(x)) => self.add_multiple(x.as_f64().unwrap_or(0.0))?,
            ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", Value::Number(x))
                if x.as_f64().is_none_or(|x| x.abs() > LARGEST) =>
            {
                let what = format!("{x} is beyond the integers that every reader keeps, 2^53");
                return Err(Error::usage(what).at(name).hint("leave the bound out"));
            }
            _ => {}
        }
        Ok(())
    }

    fn add_multiple(&mut self, x: f64) -> Result<()> {
        let (mut units, mut digits) = (x.abs(), 0);
        while units.fract() != 0.0 && digits < 9 {
            units *= 10.0;
            digits += 1;
        }
        let (before, places) = self.multiple.unwrap_or((1, 0));
        let most = digits.max(places);
        let scale = |units: u128, digits: u32| units * 10_u128.pow(most - digits);
        // Zero is for the library to refuse.
        let (a, b) = (scale(before.into(), places), scale(units.max(1.0) as u64 as u128, digits));
        let least = a / gcd(a, b) * b;
        match u64::try_from(least) {
            Ok(least) if least <= MOST_MULTIPLE && units.fract() == 0.0 => {
                self.multiple = Some((least, most));
                Ok(())
            }
            _ => {
                let what = format!("{x} is not supported: it has too many digits");
                Err(Error::usage(what)
                    .at("multipleOf")
                    .hint("or has so beside the others of the schema"))
            }
        }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Takes formats out that only say something to a reader. What is a value and no schema stays as it is.
fn without_notes(schema: &mut Value) {
    match schema {
        Value::Array(values) => values.iter_mut().for_each(without_notes),
        Value::Object(fields) => {
            let known = |text: &str| FORMATS.contains(&text);
            fields.retain(|name, value| name != "format" || value.as_str().is_none_or(known));
            let schemas = fields.iter_mut().filter(|(name, _)| !VALUES.contains(&name.as_str()));
            schemas.for_each(|(_, value)| without_notes(value));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Whether all of a schema is supported; its depth is bounded.
fn supported(schema: &Value, path: &mut String) -> Result<()> {
    let Value::Object(fields) = schema else { return Ok(()) };
    for (name, value) in fields {
        let acts = !matches!(value, Value::Bool(false));
        if acts && UNSUPPORTED.contains(&name.as_str()) {
            return Err(Error::usage(format!("`{name}` is not supported"))
                .at(path)
                .hint("leave it out, and check it in the answer"));
        }
        if name == "$ref" && !value.as_str().is_some_and(|text| text.starts_with('#')) {
            let what = format!("{value} is outside of the schema");
            return Err(Error::usage(what).at(format!("{path}/$ref")).hint("move it into `$defs`"));
        }
        let length = path.len();
        path.push('/');
        path.push_str(name);
        match value {
            Value::Object(_) if ONE.contains(&name.as_str()) => supported(value, path)?,
            Value::Array(values) if LISTS.contains(&name.as_str()) => {
                each(values.iter().enumerate(), path)?;
            }
            Value::Object(named) if NAMED.contains(&name.as_str()) => each(named.iter(), path)?,
            _ => {}
        }
        path.truncate(length);
    }
    Ok(())
}

fn each<'a, N: std::fmt::Display>(
    schemas: impl Iterator<Item = (N, &'a Value)>,
    path: &mut String,
) -> Result<()> {
    let length = path.len();
    for (name, schema) in schemas {
        path.push('/');
        path.push_str(&name.to_string());
        supported(schema, path)?;
        path.truncate(length);
    }
    Ok(())
}
