//! JSON schemas, as far as the server's document uses them.
//!
//! Owns whether a value is of a schema, which schemas a value's parts are of, and values near to a right one that may be
//! wrong. Refuses to pass over a word of schemas that it does not know: it panics.

use serde_json::{Map, Value, json};

/// The schemas of a document.
#[derive(Clone, Copy)]
pub(crate) struct Schemas<'a> {
    pub(crate) document: &'a Value,
}

/// A part of a value.
pub(crate) struct Place<'a> {
    /// As a JSON pointer.
    pub(crate) path: String,
    pub(crate) value: Value,
    /// What it may be, by the schemas that what is around it is of.
    pub(crate) leaves: Vec<&'a Value>,
}

impl<'a> Schemas<'a> {
    /// The alternatives of a schema, behind all references.
    pub(crate) fn leaves(self, schema: &'a Value) -> Vec<&'a Value> {
        if let Some(name) = schema.get("$ref") {
            assert_eq!(schema.as_object().unwrap().len(), 1, "{schema}");
            let pointer = name.as_str().unwrap().trim_start_matches('#');
            return self.leaves(self.document.pointer(pointer).unwrap());
        }
        match schema.get("anyOf") {
            Some(all) => {
                assert_eq!(schema.as_object().unwrap().len(), 1, "{schema}");
                all.as_array().unwrap().iter().flat_map(|one| self.leaves(one)).collect()
            }
            None => vec![schema],
        }
    }

    pub(crate) fn allows(self, schema: &'a Value, value: &Value) -> bool {
        self.leaves(schema).into_iter().any(|leaf| self.is_of(leaf, value))
    }

    /// Whether a value is of a schema without alternatives.
    pub(crate) fn is_of(self, leaf: &'a Value, value: &Value) -> bool {
        match leaf {
            Value::Bool(any) => *any,
            Value::Object(rules) => {
                rules.iter().all(|(rule, wanted)| self.keeps(rule, wanted, rules, value))
            }
            other => panic!("{other} is no schema"),
        }
    }

    /// Whether a value keeps one of the rules of a schema.
    fn keeps(self, rule: &str, is: &'a Value, all: &'a Map<String, Value>, value: &Value) -> bool {
        let number = |within: fn(f64, f64) -> bool| {
            value.as_f64().is_none_or(|x| within(x, is.as_f64().unwrap()))
        };
        let count = |n: Option<usize>, within: fn(usize, usize) -> bool| {
            n.is_none_or(|n| within(n, is.as_u64().unwrap() as usize))
        };
        let object = || value.as_object().into_iter().flatten();
        let list = || value.as_array().into_iter().flatten();
        let known = |name: &str| all.get("properties").is_some_and(|own| own.get(name).is_some());
        let before = all.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
        match rule {
            "type" => match is {
                Value::Array(kinds) => kinds.iter().any(|kind| is_kind(value, kind)),
                kind => is_kind(value, kind),
            },
            "const" => value == is,
            "enum" => is.as_array().unwrap().contains(value),
            "minimum" => number(|x, least| x >= least),
            "maximum" => number(|x, most| x <= most),
            "minLength" => count(value.as_str().map(|s| s.chars().count()), |n, least| n >= least),
            "minItems" => count(value.as_array().map(Vec::len), |n, least| n >= least),
            "maxItems" => count(value.as_array().map(Vec::len), |n, most| n <= most),
            "pattern" => value.as_str().is_none_or(|text| matches(is.as_str().unwrap(), text)),
            "required" => {
                let names = is.as_array().unwrap();
                !value.is_object() || names.iter().all(|n| value.get(n.as_str().unwrap()).is_some())
            }
            "properties" => {
                object().all(|(name, inner)| is.get(name).is_none_or(|own| self.allows(own, inner)))
            }
            "additionalProperties" => {
                object().all(|(name, inner)| known(name) || self.allows(is, inner))
            }
            "propertyNames" => object().all(|(name, _)| self.allows(is, &json!(name))),
            "items" => list().skip(before).all(|item| self.allows(is, item)),
            "prefixItems" => {
                list().zip(is.as_array().unwrap()).all(|(item, own)| self.allows(own, item))
            }
            other => panic!("the rule {other:?} of schemas is not known here"),
        }
    }

    /// All parts of a value that a schema knows, the whole first.
    pub(crate) fn places(self, schema: &'a Value, value: &Value) -> Vec<Place<'a>> {
        let mut found = Vec::new();
        self.find(self.leaves(schema), value, String::new(), &mut found);
        found
    }

    fn find(self, leaves: Vec<&'a Value>, value: &Value, path: String, found: &mut Vec<Place<'a>>) {
        let matching = || leaves.iter().filter(|leaf| self.is_of(leaf, value));
        let parts: Vec<(String, &Value)> = match value {
            Value::Object(map) => map.iter().map(|(name, v)| (name.clone(), v)).collect(),
            Value::Array(all) => all.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
            _ => Vec::new(),
        };
        let mut inner = Vec::new();
        for (name, part) in parts {
            let own = matching().filter_map(|leaf| child(leaf, value, &name));
            let own: Vec<&Value> = own.flat_map(|schema| self.leaves(schema)).collect();
            // Where no schema says anything, anything may be.
            if !own.is_empty() {
                inner.push((own, part, format!("{path}/{name}")));
            }
        }
        found.push(Place { path, value: value.clone(), leaves });
        inner.into_iter().for_each(|(own, part, path)| self.find(own, part, path, found));
    }

    /// Every schema without alternatives that is in a schema, and every property, with a name for messages.
    pub(crate) fn all_in(
        self,
        schema: &'a Value,
        name: &str,
        found: &mut Vec<(String, &'a Value)>,
    ) {
        for leaf in self.leaves(schema) {
            found.push((format!("{name} as {leaf}"), leaf));
            for (key, own) in
                leaf.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                found.push((format!("{name}/{key}"), own));
                self.all_in(own, &format!("{name}/{key}"), found);
            }
            for part in ["items", "additionalProperties"] {
                if let Some(own) = leaf.get(part).filter(|own| **own != false) {
                    self.all_in(own, &format!("{name}/*"), found);
                }
            }
            for own in leaf.get("prefixItems").and_then(Value::as_array).into_iter().flatten() {
                self.all_in(own, &format!("{name}/*"), found);
            }
        }
    }
}

/// What a schema says of a part of a value.
fn child<'a>(leaf: &'a Value, value: &Value, name: &str) -> Option<&'a Value> {
    if value.is_object() {
        return leaf
            .get("properties")
            .and_then(|own| own.get(name))
            .or(leaf.get("additionalProperties"));
    }
    let i: usize = name.parse().unwrap();
    leaf.get("prefixItems").and_then(|own| own.get(i)).or(leaf.get("items"))
}

fn is_kind(value: &Value, kind: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|x| x.fract() == 0.0)
        }
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no value is {other:?}"),
    }
}

/// The document's expressions.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern {
        "^[0-9]{1,9}$" => (1..=9).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()),
        "^[epmxktdysa]*$" => text.chars().all(|c| "epmxktdysa".contains(c)),
        other => panic!("the expression {other:?} is not known here"),
    }
}

/// Values that could stand in a place, most of them wrong.
pub(crate) fn near(place: &Place) -> Vec<Value> {
    let mut all = vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(0.5),
        json!(1e300),
        json!(""),
        json!("?"),
        json!([]),
        json!([null]),
        json!({}),
        json!({"?": []}),
    ];
    for leaf in &place.leaves {
        if let Some(least) = leaf.get("minimum").and_then(Value::as_f64) {
            all.extend([json!(least - 1.0), json!(least.next_down())]);
        }
        if let Some(most) = leaf.get("maximum").and_then(Value::as_f64) {
            all.extend([json!(most + 1.0), json!(most.next_up()), json!(most * 2.0)]);
            all.extend(leaf["maximum"].as_i64().and_then(|n| n.checked_add(1)).map(Value::from));
        }
        let words = leaf.get("enum").and_then(Value::as_array).into_iter().flatten();
        for word in words.chain(leaf.get("const")).filter_map(Value::as_str) {
            all.extend([json!(format!("{word}x")), json!(word.to_uppercase())]);
        }
        // A list as long as a text of the context is not made.
        let most = leaf.get("maxItems").and_then(Value::as_u64).filter(|most| *most < 5000);
        if let (Some(most), Some(first)) = (most, place.value.get(0)) {
            all.push(vec![first.clone(); most as usize + 1].into());
        }
    }
    match &place.value {
        Value::Object(map) => {
            for name in ["+5", " 5", "x", "1234567890"] {
                let mut more = map.clone();
                more.insert(name.to_owned(), json!(1));
                all.push(more.into());
            }
        }
        Value::Array(list) => {
            all.extend((0..list.len()).map(|n| json!(list[..n])));
            all.push(json!([list.clone(), vec![json!(1)]].concat()));
        }
        Value::String(text) => all.extend([json!([text]), json!({"text": text})]),
        other => all.push(json!(other.to_string())),
    }
    // Readers of JSON round some numbers to others.
    all.retain(|value| serde_json::from_str::<Value>(&value.to_string()).unwrap() == *value);
    all
}
