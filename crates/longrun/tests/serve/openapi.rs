//! The document of the routes: what it says is there is there, and what is read is in it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::server::Server;

/// The schemas of the body of a method of a path: none, one, or one for each of its forms.
pub(crate) fn bodies<'a>(document: &'a Value, path: &str, method: &str) -> Vec<&'a Value> {
    let content = &document["paths"][path][method]["requestBody"]["content"];
    let of = |schema: &Value| {
        let name = schema["$ref"].as_str()?.strip_prefix("#/components/schemas/")?;
        document["components"]["schemas"].get(name)
    };
    let Some(schema) = of(&content["application/json"]["schema"]) else { return Vec::new() };
    match schema["anyOf"].as_array() {
        Some(forms) => forms.iter().filter_map(of).collect(),
        None => vec![schema],
    }
}

/// Paths and methods.
pub(crate) fn operations(document: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let methods = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
        all.extend(methods.map(|method| (path.clone(), method.clone())));
    }
    all
}

#[test]
fn every_path_is_there_and_takes_its_methods_only() {
    let server = Server::demo(&["--alias", "demo"]);
    let document = server.get("/openapi.json").ok();
    let all = operations(&document);
    assert!(all.len() > 25, "{all:?}");
    for (path, method) in &all {
        let path = path.replace("{name}", "demo");
        let reply = server.send(&method.to_uppercase(), &path, &[], b"{}").reply();
        assert!(![404, 405].contains(&reply.status), "{method} {path}: {}", reply.body);
        let status = reply.status.to_string();
        let responses = &document["paths"][path.replace("/demo", "/{name}")][method]["responses"];
        let told = responses.get(&status).is_some()
            || (reply.status / 100 == 4 && responses.get("4XX").is_some());
        assert!(told, "{method} {path} answers {status}");
    }
    for (path, _) in &all {
        let path = path.replace("{name}", "demo");
        for method in ["PUT", "DELETE", "PATCH"] {
            let reply = server.send(method, &path, &[], b"").reply();
            reply.error(405);
            assert!(reply.header("allow").is_some(), "{method} {path}");
        }
    }
}

/// A value that no field of the schema takes, unless it takes anything.
fn wrong(schema: &Value) -> Option<Value> {
    let text = schema.to_string();
    if schema == &json!({}) {
        return None;
    }
    Some(if text.contains("$ref") {
        json!([[true]])
    } else if text.contains("\"object\"") {
        json!(true)
    } else {
        json!({"x": []})
    })
}

#[test]
fn every_field_of_the_document_is_read() {
    let server = Server::demo(&["--strict"]);
    let document = server.get("/openapi.json").ok();
    let base = json!({"messages": [{"role": "user", "content": "x"}], "prompt": "x", "content": "x", "tokens": [1], "input": "x",
        "max_tokens": 1, "model": "demo"});
    let mut fields = 0;
    for (path, method) in operations(&document) {
        for form in bodies(&document, &path, &method) {
            let mut valid = json!({});
            for required in form["required"].as_array().unwrap() {
                let required = required.as_str().unwrap();
                valid[required] = base[required].clone();
            }
            for (field, schema) in form["properties"].as_object().unwrap() {
                let Some(wrong) = wrong(schema) else { continue };
                let mut sent = valid.clone();
                sent[field.as_str()] = wrong;
                let error = server.post(&path, &sent).error(400);
                let message = error["message"].as_str().unwrap();
                assert!(
                    !message.contains("no such field"),
                    "{path} does not read {field}: {error}"
                );
                fields += 1;
            }
            valid["frobnicate"] = json!(1);
            let error = server.post(&path, &valid).error(400);
            // Anthropic's errors have no such place.
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("frobnicate"), "{path}: {error}");
        }
    }
    assert!(fields > 100, "{fields}");
    server.idle();
}

/// The names of all fields in a schema, however deep.
fn names_in(schema: &Value, names: &mut BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            let own = map.get("properties").and_then(Value::as_object);
            names.extend(own.into_iter().flat_map(|properties| properties.keys().cloned()));
            map.values().for_each(|inner| names_in(inner, names));
        }
        Value::Array(all) => all.iter().for_each(|inner| names_in(inner, names)),
        _ => {}
    }
}

/// Names that the sources read from a request: `fields.KIND("name")`, and tables of `("name", &mut`.
fn read_names(source: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let readers = [
        "bool", "string", "number", "within", "count", "counted", "whole", "seed", "strings",
        "object", "list", "take", "required",
    ];
    for reader in readers {
        for (at, call) in source.match_indices(&format!(".{reader}(\"")) {
            let rest = &source[at + call.len()..];
            let name = rest.split_once('"').map(|(name, _)| name);
            // What has a dot is the kind of an answer.
            names.extend(name.filter(|name| !name.contains('.')).map(str::to_owned));
        }
    }
    for (at, place) in source.match_indices("\", &mut params.") {
        let name = source[..at].rsplit_once('"').map(|(_, name)| name.to_owned());
        assert!(name.is_some(), "{place}");
        names.extend(name);
    }
    names
}

#[test]
fn every_field_that_is_read_is_in_the_document() {
    let server = Server::demo(&[]);
    let document = server.get("/openapi.json").ok();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut known = BTreeSet::new();
    schemas.values().for_each(|schema| names_in(schema, &mut known));
    let serve = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/serve");
    let mut folders = vec![serve.join("wire")];
    let mut sources = vec![serve.join("fields.rs"), serve.join("prompt.rs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { sources.push(path) }
        }
    }
    assert!(sources.len() > 8);
    let mut names = BTreeSet::new();
    for source in sources {
        let text = fs::read_to_string(&source).unwrap();
        // Tests read fields that nobody sends.
        let text = text.split("#[cfg(test)]").next().unwrap();
        names.extend(read_names(text));
    }
    assert!(
        names.contains("temperature") && names.contains("messages") && names.contains("n_probs")
    );
    // Inside of a prompt, where the document says that anything may be.
    names.remove("prompt_string");
    // A fault on purpose is in no build that people use.
    names.remove("lab_panic_after");
    let missing: Vec<_> = names.difference(&known).collect();
    assert!(missing.is_empty(), "not in the document: {missing:?}");
}
