//! The document beside what is read: what it calls wrong is refused, and what it lets be null may be null or missing.
//! Right requests are changed in one place each, in every way that a schema of the place has an opinion about.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::schema::{Place, Schemas, near};
use crate::server::{Reply, Server};
use crate::{embeddings, examples, openapi};

/// How many requests are under way at a time.
const THREADS: usize = 4;

/// A request, and what is to come of it.
struct Case {
    body: Value,
    /// What was changed, for messages.
    change: String,
    expect: Expect,
}

enum Expect {
    Answer,
    /// A part of the body that may be as it is, by its path: others may need it.
    NoComplaint(String),
    /// It is wrong below this field.
    Refusal(String),
}

impl Case {
    /// What is wrong with what came of it.
    fn complaint(&self, reply: &Reply) -> Option<String> {
        let error = || serde_json::from_str::<Value>(&reply.body).ok()?.get("error").cloned();
        let message = || error()?.get("message")?.as_str().map(str::to_owned);
        let is_right = match &self.expect {
            Expect::Answer => reply.status == 200,
            Expect::NoComplaint(path) => {
                reply.status == 200
                    || reply.status == 400 && message().is_some_and(|text| !begins(&text, path))
            }
            Expect::Refusal(field) => {
                let typed = error().is_some_and(|error| error["type"].is_string());
                // What is too long is so together with the prompt.
                let is_long = error().is_some_and(|e| e["code"] == "context_length_exceeded");
                let told = is_long || message().is_some_and(|text| text.contains(field.as_str()));
                [400, 404].contains(&reply.status) && typed && told
            }
        };
        let start = |text: &str| text.chars().take(300).collect::<String>();
        (!is_right).then(|| format!("{}: {} {}", self.change, reply.status, start(&reply.body)))
    }
}

/// Whether a message speaks of the field of a path.
fn begins(message: &str, path: &str) -> bool {
    let rest = message.strip_prefix(path);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// A JSON pointer as messages write it.
fn spoken(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').skip(1) {
        match part.parse::<usize>() {
            Ok(i) => path += &format!("[{i}]"),
            Err(_) if path.is_empty() => path += part,
            Err(_) => path += &format!(".{part}"),
        }
    }
    path
}

/// The body with something else in a place, or without what is there.
fn changed(body: &Value, pointer: &str, to: Option<Value>) -> Value {
    let mut body = body.clone();
    match to {
        Some(value) => *body.pointer_mut(pointer).unwrap() = value,
        None => {
            let (around, name) = pointer.rsplit_once('/').unwrap();
            body.pointer_mut(around).unwrap().as_object_mut().unwrap().remove(name);
        }
    }
    body
}

/// All changes of a right body in one place that have to be refused, or taken; but for those of `tried`, in a place that
/// is the same to the schema.
fn cases(
    schemas: Schemas,
    schema: &Value,
    (right, places): &(Value, Vec<Place>),
    tried: &mut BTreeSet<String>,
) -> Vec<Case> {
    let mut all = Vec::new();
    for place in places.iter().filter(|place| !place.path.is_empty()) {
        let is_field = place.path.rsplit('/').next().unwrap().parse::<usize>().is_err();
        let field = place.path.split('/').nth(1).unwrap().to_owned();
        let kind = place.path.replace(|c: char| c.is_ascii_digit(), "");
        let kinds: Vec<_> = place.leaves.iter().map(|leaf| std::ptr::from_ref(*leaf)).collect();
        let values = near(place).into_iter().map(Some).chain(is_field.then_some(None));
        for to in values.filter(|to| tried.insert(format!("{kind} {kinds:?} {to:?}"))) {
            let what: String = to.as_ref().map_or("missing".into(), Value::to_string);
            let is_nothing = to.as_ref().is_none_or(Value::is_null);
            let body = changed(right, &place.path, to);
            let expect = match schemas.allows(schema, &body) {
                false => Expect::Refusal(field.clone()),
                true if is_nothing => Expect::NoComplaint(spoken(&place.path)),
                true => continue,
            };
            let what: String = what.chars().take(60).collect();
            all.push(Case { body, change: format!("{} = {what}", place.path), expect });
        }
    }
    all
}

/// Sends all of them, and gives the complaints.
fn complaints(server: &Server, path: &str, cases: &[Case]) -> Vec<String> {
    let found: Vec<Vec<String>> = std::thread::scope(|scope| {
        let one = |thread| {
            scope.spawn(move || {
                let mine = cases.iter().skip(thread).step_by(THREADS);
                mine.filter_map(|case| case.complaint(&server.post(path, &case.body))).collect()
            })
        };
        let threads: Vec<_> = (0..THREADS).map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    found.into_iter().flatten().map(|complaint| format!("{path} {complaint}")).collect()
}

/// Properties and alternatives of a request that no example has.
fn untried(schemas: Schemas, schema: &Value, examples: &[(Value, Vec<Place>)]) -> Vec<String> {
    let mut tried = BTreeSet::new();
    let mut add = |schema: &Value| _ = tried.insert(std::ptr::from_ref(schema));
    for place in examples.iter().flat_map(|(_, places)| places).filter(|p| !p.value.is_null()) {
        let own = place.leaves.iter().filter(|leaf| schemas.is_of(leaf, &place.value));
        for leaf in own {
            add(leaf);
            let properties = leaf.get("properties").and_then(Value::as_object);
            for (name, property) in properties.into_iter().flatten() {
                if place.value.get(name).is_some_and(|value| !value.is_null()) {
                    add(property);
                }
            }
        }
    }
    let mut all = Vec::new();
    schemas.all_in(schema, "", &mut all);
    all.retain(|(_, part)| {
        let is_nothing = part.get("type").is_some_and(|kind| kind == "null");
        !is_nothing && !tried.contains(&std::ptr::from_ref(*part))
    });
    all.into_iter().map(|(name, _)| name).collect()
}

/// How many cases there were, and what was wrong with them.
fn look(server: &Server, wanted: impl Fn(&str) -> bool) -> (usize, Vec<String>) {
    let document = server.get("/openapi.json").ok();
    let schemas = Schemas { document: &document };
    let (mut count, mut wrong, mut seen) = (0, Vec::new(), BTreeSet::new());
    for (path, method) in openapi::operations(&document) {
        let content = &document["paths"][&path][&method]["requestBody"]["content"];
        let schema = &content["application/json"]["schema"];
        let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) else {
            continue;
        };
        // Other paths of the same handler read the same.
        if !wanted(name) || !seen.insert(name.to_owned()) {
            continue;
        }
        let examples: Vec<(Value, Vec<Place>)> = examples::of(name)
            .into_iter()
            .map(|body| {
                assert!(schemas.allows(schema, &body), "{name} is not {body}");
                let places = schemas.places(schema, &body);
                (body, places)
            })
            .collect();
        let untried = untried(schemas, schema, &examples);
        wrong.extend(untried.into_iter().map(|part| format!("{name}: no example has {part}")));
        let (mut all, mut tried) = (Vec::new(), BTreeSet::new());
        for example in &examples {
            let body = example.0.clone();
            all.push(Case { change: body.to_string(), body, expect: Expect::Answer });
            all.append(&mut cases(schemas, schema, example, &mut tried));
        }
        count += all.len();
        wrong.append(&mut complaints(server, &path, &all));
    }
    (count, wrong)
}

#[test]
fn what_the_document_calls_wrong_is_refused_and_nulls_are_taken() {
    let flags = ["--context", "1024", "--max-rows", "4", "--log-level", "error"];
    let writer = Server::tiny("qwen3", &flags);
    let (count, mut wrong) = look(&writer, |name| name != "EmbeddingsRequest");
    let vectors = embeddings::server("document", "pooling_mode_mean_tokens", &[]);
    let (more, mut others) = look(&vectors, |name| name == "EmbeddingsRequest");
    wrong.append(&mut others);
    let total = wrong.len();
    wrong.truncate(200);
    assert!(wrong.is_empty(), "{total} of {}:\n{}", count + more, wrong.join("\n"));
    assert!(count > 3000 && more > 50, "{count} {more}");
    writer.idle();
}
