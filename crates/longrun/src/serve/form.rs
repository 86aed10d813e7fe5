//! What a request demands of an answer's form: JSON of a schema, calls of tools, reasoning that ends.
//!
//! Owns the way from fields to a mask of the engine. Refuses what the model at hand can't be held to, by name: a form
//! that is asked for is kept or the request is an error.

use std::sync::Arc;

use longrun_lm::answer::ToolSchema;
use longrun_lm::engine::Mask;
use longrun_lm::grammar::{Choice, Grammar, Reasoning, Tool};
use serde_json::Value;

use super::error::{ApiError, ApiResult};
use super::fields::{Fields, kind};
use super::served::Served;

/// What is demanded.
pub(crate) struct Form {
    /// The form of the whole answer.
    pub(crate) answer: Option<Grammar>,
    /// The field that says so.
    pub(crate) place: &'static str,
    pub(crate) tools: Tools,
    /// Tokens of reasoning at most.
    pub(crate) reasoning: Option<usize>,
}

/// The tools of a request, and how they may be called.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    pub(crate) all: Vec<Tool>,
    pub(crate) choice: ToolChoice,
    /// Several calls may stand in one answer.
    pub(crate) parallel: Option<bool>,
}

/// OpenAI's `tool_choice`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    #[default]
    Auto,
    /// The tools are shown, and not called.
    None,
    Required,
    Named(String),
}

impl Form {
    /// The mask of a text that is all answer.
    pub(crate) fn answer(&self, served: &Served) -> ApiResult<Option<Mask>> {
        let answer = self.answer.as_ref();
        answer.map(|grammar| compiled(served, grammar, self.place)).transpose()
    }

    /// The mask that holds a row to the form; `in_reasoning` says that the prompt ends inside of reasoning.
    pub(crate) fn mask(&self, served: &Served, in_reasoning: bool) -> ApiResult<Option<Mask>> {
        let answer = match (&self.answer, self.tools.grammar(served)?) {
            (Some(_), Some(_)) => {
                let what = "an answer can't be of a form and calls of tools at once";
                return Err(ApiError::field(self.place, what));
            }
            (Some(grammar), None) => Some((grammar.clone(), self.place)),
            (None, calls) => calls.map(|calls| (calls, "tools")),
        };
        let answer =
            answer.map(|(grammar, place)| compiled(served, &grammar, place)).transpose()?;
        self.behind_reasoning(served, in_reasoning, answer)
    }

    /// Lets the answer's mask begin behind the reasoning, and ends that where it has a limit.
    fn behind_reasoning(
        &self,
        served: &Served,
        in_reasoning: bool,
        answer: Option<Mask>,
    ) -> ApiResult<Option<Mask>> {
        let Some(tags) = &served.reasoning else { return Ok(answer) };
        if answer.is_none() && self.reasoning.is_none() {
            return Ok(None);
        }
        let open = if in_reasoning { None } else { tags.open };
        if !in_reasoning && open.is_none() {
            // Nothing tells where reasoning would begin: the answer begins at once.
            return Ok(answer);
        }
        if in_reasoning && !tags.is_exact && answer.is_some() {
            let what = "where this model's reasoning ends can't be told for certain";
            let hint = "; switch it off with chat_template_kwargs";
            return Err(ApiError::field(self.place, format!("{what}{hint}")));
        }
        let forbidden =
            if answer.is_some() { Arc::clone(&served.source.eos) } else { Arc::from([]) };
        let (close, most) = (Arc::clone(&tags.close), self.reasoning);
        Ok(Some(Reasoning { open, close, most, forbidden }.mask(answer)))
    }
}

impl Default for Form {
    fn default() -> Self {
        Self { answer: None, place: "response_format", tools: Tools::default(), reasoning: None }
    }
}

impl Tools {
    /// What matters for reading calls; none are read where none are wanted.
    pub(crate) fn schemas(&self) -> Arc<[ToolSchema]> {
        if self.choice == ToolChoice::None {
            return Arc::from([]);
        }
        let schema = |tool: &Tool| ToolSchema {
            name: tool.name.clone(),
            parameters: tool.parameters.clone(),
        };
        self.all.iter().map(schema).collect()
    }

    /// The form of calls, where the answer is held to one.
    fn grammar(&self, served: &Served) -> ApiResult<Option<Grammar>> {
        let choice = match &self.choice {
            ToolChoice::None => return Ok(None),
            // What tools say of their arguments is held only where somebody insists: a mask costs time.
            ToolChoice::Auto if !self.all.iter().any(|tool| tool.strict) => return Ok(None),
            ToolChoice::Auto => Choice::Auto,
            ToolChoice::Required => Choice::Required,
            ToolChoice::Named(name) => Choice::Named(name.clone()),
        };
        if self.all.is_empty() {
            return Err(ApiError::field("tool_choice", "there are no tools"));
        }
        let shape = served.calls.as_ref().ok_or_else(|| {
            let what = format!("the way {} writes calls can't be forced", served.name);
            ApiError::field(
                "tool_choice",
                what + "; ask with \"auto\" and tools that are not strict",
            )
        })?;
        Ok(Some(Grammar::tool_calls(shape, &self.all, choice, self.parallel.unwrap_or(true))))
    }
}

fn compiled(served: &Served, grammar: &Grammar, place: &str) -> ApiResult<Mask> {
    let Some(grammars) = &served.grammars else {
        let what = format!("the model {} has no tokenizer", served.name);
        return Err(ApiError::field(place, what));
    };
    let compiled = grammars.compile(grammar);
    let wrong = |error: longrun_lm::Error| {
        let status = ApiError::from(error.clone()).status;
        ApiError { status, ..ApiError::field(place, error.to_string()) }
    };
    Ok(compiled.map_err(wrong)?.mask())
}

/// Reads OpenAI's `response_format`.
pub(crate) fn response_format(fields: &mut Fields) -> ApiResult<Option<Grammar>> {
    fields.object("response_format")?.map_or(Ok(None), format)
}

/// Reads a format, wherever it stands.
pub(crate) fn format(mut format: Fields) -> ApiResult<Option<Grammar>> {
    let place = format.path("type");
    let name = format.string("type")?.unwrap_or_default();
    let grammar = match name.as_str() {
        "text" => None,
        "json_object" => match format.take("schema") {
            Some(schema) => Some(grammar(&schema, &format.path("schema"))?),
            None => Some(Grammar::json_object()),
        },
        "json_schema" => {
            let mut inner = match format.object("json_schema")? {
                Some(inner) => inner,
                // The Responses API has no object around them.
                None => return schema(&mut format).map(Some),
            };
            let grammar = schema(&mut inner)?;
            inner.finish(true)?;
            Some(grammar)
        }
        "regex" => Some(Grammar::regex(&text(&mut format, "pattern")?)),
        "grammar" => Some(Grammar::lark(&text(&mut format, "grammar")?)),
        "choice" => {
            let all = format.strings("choice")?;
            if all.is_empty() {
                return Err(ApiError::field(&format.path("choice"), "there is none"));
            }
            Some(Grammar::choice(&all))
        }
        other => {
            let what = format!(
                "{other:?} is none of text, json_object, json_schema, regex, grammar, choice"
            );
            return Err(ApiError::field(&place, what));
        }
    };
    format.finish(true)?;
    Ok(grammar)
}

/// A named schema, as OpenAI writes it.
fn schema(fields: &mut Fields) -> ApiResult<Grammar> {
    fields.string("name")?;
    fields.string("description")?;
    // All schemas are held to.
    fields.bool("strict")?;
    grammar(&fields.required("schema")?, &fields.path("schema"))
}

fn grammar(schema: &Value, place: &str) -> ApiResult<Grammar> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Grammar::json_schema(schema)),
        other => Err(ApiError::field(place, format!("{} is no schema", kind(other)))),
    }
}

fn text(fields: &mut Fields, name: &str) -> ApiResult<String> {
    let place = fields.path(name);
    fields.string(name)?.ok_or_else(|| ApiError::field(&place, "it is missing"))
}

/// Reads OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`.
pub(crate) fn tools(fields: &mut Fields) -> ApiResult<(Tools, Vec<Value>)> {
    let written = fields.list("tools")?.unwrap_or_default();
    let all = written.iter().enumerate().map(|(i, written)| tool(written, i));
    let all: Vec<Tool> = all.collect::<ApiResult<_>>()?;
    let choice = match fields.take("tool_choice") {
        None => ToolChoice::Auto,
        Some(value) => tool_choice(&value, &all)?,
    };
    let parallel = fields.bool("parallel_tool_calls")?;
    Ok((Tools { all, choice, parallel }, written))
}

fn tool(value: &Value, i: usize) -> ApiResult<Tool> {
    let place = format!("tools[{i}]");
    let wrong = |what: &str| ApiError::field(&place, what);
    let function = value.get("function").ok_or_else(|| wrong("it is no function"))?;
    let mut function = Fields::of(function.clone(), &format!("{place}.function"))?;
    let name = function.string("name")?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| wrong("its function has no name"))?;
    // Templates are given it as it was written.
    function.string("description")?;
    let parameters = function.object("parameters")?.map(Fields::into_rest);
    let parameters = parameters.map_or(Value::Null, Value::Object);
    let strict = function.bool("strict")?.unwrap_or(false);
    Ok(Tool { name, parameters, strict })
}

/// Reads OpenAI's `tool_choice`.
pub(crate) fn tool_choice(value: &Value, tools: &[Tool]) -> ApiResult<ToolChoice> {
    let wrong = |what: String| ApiError::field("tool_choice", what);
    if let Value::String(text) = value {
        return match text.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" | "any" => Ok(ToolChoice::Required),
            other => Err(wrong(format!("{other:?} is none of auto, none, required"))),
        };
    }
    let mut fields = Fields::of(value.clone(), "tool_choice")?;
    if let Some(other) = fields.string("type")?.filter(|kind| kind != "function") {
        let what = format!("{other:?} is not supported; name a function");
        return Err(ApiError::field("tool_choice.type", what));
    }
    // With and without an object around the name.
    let mut named = fields.object("function")?.unwrap_or(fields);
    let name = named.string("name")?.ok_or_else(|| wrong("it names no function".into()))?;
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(ToolChoice::Named(name));
    }
    Err(wrong(format!("there is no tool {name:?}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: &Value) -> Fields {
        Fields::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn formats_are_read_or_refused_by_name() {
        let read =
            |value: Value| response_format(&mut fields(&json!({ "response_format": value })));
        assert!(read(json!({"type": "text"})).unwrap().is_none());
        let schema = json!({"type": "object"});
        for good in [
            json!({"type": "json_object"}),
            json!({"type": "json_object", "schema": schema}),
            json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}}),
            json!({"type": "json_schema", "name": "x", "schema": schema}),
            json!({"type": "regex", "pattern": "a+"}),
            json!({"type": "choice", "choice": ["a", "b"]}),
        ] {
            assert!(read(good.clone()).unwrap().is_some(), "{good}");
        }
        for (bad, param) in [
            (json!({"type": "xml"}), "response_format.type"),
            (json!({}), "response_format.type"),
            (json!({"type": "json_schema"}), "response_format.schema"),
            (
                json!({"type": "json_schema", "json_schema": {"name": "x"}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"type": "json_schema", "json_schema": {"schema": 3}}),
                "response_format.json_schema.schema",
            ),
            (json!({"type": "json_object", "what": 1}), "response_format.what"),
            (json!("json"), "response_format"),
        ] {
            let error = read(bad.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{bad}");
        }
    }

    #[test]
    fn tools_and_their_choice_are_read() {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
        let read = |choice: Value| {
            tools(&mut fields(
                &json!({"tools": [tool], "tool_choice": choice, "parallel_tool_calls": false}),
            ))
        };
        for (written, choice) in [
            (Value::Null, ToolChoice::Auto),
            (json!("none"), ToolChoice::None),
            (json!("required"), ToolChoice::Required),
            (json!({"type": "function", "function": {"name": "f"}}), ToolChoice::Named("f".into())),
            (json!({"type": "function", "name": "f"}), ToolChoice::Named("f".into())),
        ] {
            let (read, written) = read(written).unwrap();
            assert_eq!((read.choice, read.parallel), (choice, Some(false)));
            assert_eq!((read.all.len(), written.len()), (1, 1));
        }
        for (bad, param) in [
            (json!("maybe"), "tool_choice"),
            (json!({"function": {"name": "g"}}), "tool_choice"),
            (json!(1), "tool_choice"),
            (json!({"type": "custom", "name": "f"}), "tool_choice.type"),
            (json!({"function": "f", "name": "f"}), "tool_choice.function"),
        ] {
            assert_eq!(read(bad).unwrap_err().param.as_deref(), Some(param));
        }
        for (bad, param) in [
            (json!({}), "tools[0]"),
            (json!({"function": {}}), "tools[0]"),
            (json!({"function": 1}), "tools[0].function"),
            (json!({"function": {"name": "f", "parameters": 1}}), "tools[0].function.parameters"),
            (json!({"function": {"name": "f", "strict": 1}}), "tools[0].function.strict"),
            (json!(3), "tools[0]"),
        ] {
            let error = tools(&mut fields(&json!({ "tools": [bad] }))).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param));
        }
    }
}
