//! Every route, and the document at `/openapi.json` that is made of them.
//!
//! Owns the one table of routes: the router and the document are both read from it, so that neither can know a route that
//! the other does not. What requests may say is in `requests`, what answers say in `answers`.

mod answers;
mod forms;
mod requests;
mod routes;

use std::sync::Arc;

use axum::routing::MethodRouter;
use serde_json::{Map, Value, json};

use super::http::App;

pub(crate) use routes::all;

/// A path, what answers there, and what is to be known of it.
pub(crate) struct Route {
    pub(crate) path: &'static str,
    pub(crate) handler: MethodRouter<Arc<App>>,
    /// No key is asked for.
    pub(crate) is_open: bool,
    operations: Vec<Operation>,
}

/// What a method of a path does.
struct Operation {
    method: &'static str,
    summary: &'static str,
    /// The schema of the body.
    body: Option<&'static str>,
    answer: Answer,
}

/// What comes back if all goes well.
#[derive(Clone, Copy)]
enum Answer {
    Json(&'static str),
    /// JSON, or events if the body asks to stream.
    Stream(&'static str),
    Text,
    /// It is refused by name, with this status.
    Refused(u16),
}

/// What of the document depends on how the server was started.
struct Facts {
    /// Names that find a model.
    names: Vec<String>,
    /// Token ids are below this.
    vocab: usize,
    /// Tokens of a text at most.
    context: usize,
    /// Keys are asked for.
    is_keyed: bool,
}

impl Facts {
    fn of(app: &App) -> Self {
        let models = app.models.loaded();
        let vocab = models.iter().map(|served| served.vocab).max().unwrap_or(1);
        let context = models.iter().map(|served| served.context).max().unwrap_or(1);
        Self { names: app.models.names(), vocab, context, is_keyed: !app.keys.is_empty() }
    }
}

fn document(facts: &Facts) -> Value {
    let mut paths = Map::new();
    for route in all() {
        let mut item = Map::new();
        let parameters = parameters(route.path);
        if !parameters.is_empty() {
            item.insert("parameters".into(), parameters.into());
        }
        for operation in &route.operations {
            let key = operation.method.to_ascii_lowercase();
            item.insert(key, operation.object(route.path, facts.is_keyed && !route.is_open));
        }
        paths.insert(route.path.replace("{*", "{"), item.into());
    }
    let mut schemas = requests::schemas(facts);
    schemas.append(&mut answers::schemas());
    json!({
        "openapi": "3.1.0",
        "info": {"title": "longrun", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    })
}

/// The parts of a path that stand for something.
fn parameters(path: &str) -> Vec<Value> {
    let parts = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| {
        json!({
            "name": name.trim_start_matches('*'),
            "in": "path",
            "required": true,
            "schema": {"type": "string", "minLength": 1},
        })
    };
    parts.map(parameter).collect()
}

impl Operation {
    fn object(&self, path: &str, is_keyed: bool) -> Value {
        let schema = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
        let json_of = |name: &str| json!({"application/json": {"schema": schema(name)}});
        let mut responses = Map::new();
        let mut add = |status: &str, description: &str, content: Value| {
            let response = json!({"description": description, "content": content});
            responses.insert(status.to_owned(), response);
        };
        let text = |kind: &str| json!({kind: {"schema": {"type": "string"}}});
        match self.answer {
            Answer::Json(name) => add("200", "All went well", json_of(name)),
            Answer::Stream(name) => {
                let mut content = json_of(name);
                content["text/event-stream"] = json!({"schema": schema("Event")});
                add("200", "All of the answer, or its events", content);
            }
            Answer::Text => add("200", "All went well", text("text/plain")),
            Answer::Refused(status) => {
                add(&status.to_string(), "Not supported, and why", json_of("Error"));
            }
        }
        add("4XX", "The request is wrong, or there is no room for it", json_of("Error"));
        add("503", "The engine can't serve now", json_of("Error"));
        let mut words: Vec<&str> = path.split(['/', '{', '}', '*', '-']).collect();
        words.insert(0, self.method);
        words.retain(|word| !word.is_empty());
        let mut object = json!({
            "operationId": words.join("_").to_ascii_lowercase(),
            "summary": self.summary,
            "responses": responses,
            "security": if is_keyed { json!([{"bearer": []}, {"key": []}]) } else { json!([]) },
        });
        if let Some(body) = self.body {
            object["requestBody"] = json!({"required": true, "content": json_of(body)});
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every `$ref` in a value.
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(name)) = map.get("$ref") {
                    found.insert(name.trim_start_matches("#/components/schemas/").to_owned());
                }
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(all) => all.iter().for_each(|value| references(value, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn every_schema_is_there_and_used() {
        let facts = Facts { names: vec!["x".into()], vocab: 9, context: 9, is_keyed: true };
        let document = document(&facts);
        let mut used = BTreeSet::new();
        references(&document, &mut used);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let there: BTreeSet<String> = schemas.keys().cloned().collect();
        assert_eq!(used, there);
        let ids = document["paths"].as_object().unwrap().values();
        let ids = ids.flat_map(|item| item.as_object().unwrap().values());
        let ids: Vec<_> = ids.filter_map(|operation| operation["operationId"].as_str()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    }
}
