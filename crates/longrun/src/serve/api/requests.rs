//! What requests may say: every field that acts, by request.
//!
//! Owns names and types, for the document. A test reads the sources of the wire formats and finds each field here, and
//! sends each field that is here and finds it read.

use serde_json::{Map, Value, json};

use super::super::fields::MOST;
use super::super::wire::llama::samplers;
use super::{Facts, forms};

/// What a field holds. Null is the same as no field.
#[derive(Clone, Copy)]
enum Kind {
    Bool,
    /// At least, at most.
    Number(f64, f64),
    /// A whole number of at least, at most.
    Count(u64, u64),
    /// A whole number that may be below 0.
    Whole,
    Seed,
    Text,
    /// A text, or a list of them.
    Texts,
    Object,
    /// Another schema.
    Of(&'static str),
    /// Nothing yet: an empty text or null.
    Nothing,
}

type Field = (&'static str, Kind);

use Kind::{Bool, Count, Nothing, Number, Object, Of, Seed, Text, Texts, Whole};

/// What all requests for text have.
const TEXT: &[Field] = &[("ignore_eos", Bool), ("stream", Bool), ("model", Of("ModelName"))];

/// How tokens are chosen, in words that the wires share.
const CHOOSING: &[Field] = &[
    ("temperature", Number(0.0, MOST)),
    ("top_p", Number(0.0, 1.0)),
    ("min_p", Number(0.0, 1.0)),
    ("xtc_probability", Number(0.0, 1.0)),
    ("presence_penalty", Number(-MOST, MOST)),
    ("frequency_penalty", Number(-MOST, MOST)),
    ("seed", Seed),
];

/// What else this server's own wires have for it, and when texts end or wait.
const OWN: &[Field] = &[
    ("xtc_threshold", Number(0.0, 0.5)),
    ("repetition_penalty", Number(0.0, MOST)),
    ("top_k", Count(0, u64::MAX)),
    ("repetition_context_size", Count(0, u64::MAX)),
    ("presence_context_size", Count(0, u64::MAX)),
    ("frequency_context_size", Count(0, u64::MAX)),
    ("logit_bias", Of("BiasById")),
    ("stop_on_loop", Of("Loop")),
    ("priority", Of("Priority")),
];

/// The rest of what both older endpoints of OpenAI take.
const OPENAI: &[Field] = &[
    ("stream_options", Of("StreamOptions")),
    ("return_progress", Bool),
    ("stop", Texts),
    ("n", Count(1, 64)),
    ("max_tokens", Of("TokenCount")),
    ("max_completion_tokens", Of("TokenCount")),
    ("response_format", Of("ResponseFormat")),
];

const STREAM_OPTIONS: &[Field] =
    &[("include_usage", Bool), ("include_progress", Bool), ("include_obfuscation", Bool)];

const CHAT: &[Field] = &[
    ("tools", Of("Tools")),
    ("tool_choice", Of("ToolChoice")),
    ("parallel_tool_calls", Bool),
    ("chat_template_kwargs", Object),
    ("reasoning_effort", Text),
    ("reasoning_budget", Count(0, u64::MAX)),
    ("reasoning", Of("Reasoning")),
    ("logprobs", Bool),
    ("top_logprobs", Count(0, 20)),
];

const REASONING: &[Field] = &[("effort", Text), ("max_tokens", Count(0, u64::MAX))];

/// Of the Responses API.
const RESPONSES: &[Field] = &[
    ("instructions", Text),
    ("max_output_tokens", Of("TokenCount")),
    ("tools", Of("FlatTools")),
    ("tool_choice", Of("ToolChoice")),
    ("parallel_tool_calls", Bool),
    ("chat_template_kwargs", Object),
    ("top_logprobs", Count(0, 20)),
    ("include", Of("Include")),
    ("reasoning", Of("ResponseReasoning")),
    ("reasoning_budget", Count(0, u64::MAX)),
    ("text", Of("ResponseText")),
    ("stream_options", Of("ResponseStreamOptions")),
    ("truncation", Of("Truncation")),
    ("max_tool_calls", Count(0, u64::MAX)),
    ("background", Of("False")),
];

/// Of Anthropic's Messages API, whether it is answered or counted.
const MESSAGES: &[Field] = &[
    ("system", Of("SystemText")),
    ("tools", Of("AnthropicTools")),
    ("tool_choice", Of("AnthropicChoice")),
    ("thinking", Of("Thinking")),
    ("output_config", Of("OutputConfig")),
    ("chat_template_kwargs", Object),
];

const COMPLETIONS: &[Field] = &[("echo", Bool), ("logprobs", Count(0, 20))];

const LLAMA: &[Field] = &[
    ("return_progress", Bool),
    ("stop", Texts),
    ("n_predict", Whole),
    ("max_tokens", Whole),
    ("max_completion_tokens", Whole),
    ("n", Count(1, 64)),
    ("n_cmpl", Count(1, 64)),
    ("top_k", Whole),
    ("xtc_threshold", Number(0.0, MOST)),
    ("repeat_penalty", Number(0.0, MOST)),
    ("repeat_last_n", Whole),
    ("logit_bias", Of("Bias")),
    ("n_probs", Count(0, 128)),
    ("logprobs", Count(0, 128)),
    ("samplers", Of("Samplers")),
    ("return_tokens", Bool),
    ("timings_per_token", Bool),
    ("t_max_predict_ms", Whole),
    ("response_fields", Texts),
    ("grammar", Nothing),
    ("json_schema", Of("SchemaOrNothing")),
];

const TEMPLATE: &[Field] = &[
    ("model", Of("ModelName")),
    ("tools", Of("Tools")),
    ("chat_template_kwargs", Object),
    ("add_generation_prompt", Bool),
];

const TOKENIZE: &[Field] = &[("with_pieces", Bool), ("return_token_strs", Bool)];

const EMBEDDINGS: &[Field] = &[
    ("model", Of("ModelName")),
    ("encoding_format", Of("EncodingFormat")),
    ("dimensions", Count(1, u64::MAX)),
];

/// A name, what has to be there, and what may be.
type Request = (&'static str, &'static [Field], &'static [&'static [Field]]);

const REQUESTS: &[Request] = &[
    ("ChatRequest", &[("messages", Of("Messages"))], &[TEXT, CHOOSING, OWN, OPENAI, CHAT]),
    (
        "CompletionsRequest",
        &[("prompt", Of("Prompts"))],
        &[TEXT, CHOOSING, OWN, OPENAI, COMPLETIONS],
    ),
    ("ResponsesRequest", &[("input", Of("ResponseInput"))], &[TEXT, CHOOSING, OWN, RESPONSES]),
    (
        "MessagesRequest",
        &[("messages", Of("AnthropicMessages")), ("max_tokens", Count(1, u64::MAX))],
        &[TEXT, CHOOSING, OWN, MESSAGES, &[("stop_sequences", Texts)]],
    ),
    (
        "CountRequest",
        &[("messages", Of("AnthropicMessages"))],
        &[&[("model", Of("ModelName"))], MESSAGES],
    ),
    ("NameRequest", &[("model", Of("ModelName"))], &[]),
    ("LlamaRequest", &[("prompt", Of("LlamaPrompts"))], &[TEXT, CHOOSING, LLAMA]),
    ("TemplateRequest", &[("messages", Of("Messages"))], &[TEMPLATE]),
    (
        "TokenizeContent",
        &[("content", Of("Parts"))],
        &[&[("model", Of("ModelName")), ("add_special", Bool), ("parse_special", Bool)], TOKENIZE],
    ),
    (
        "TokenizePrompt",
        &[("prompt", Text)],
        &[&[("model", Of("ModelName")), ("add_special_tokens", Bool)], TOKENIZE],
    ),
    (
        "TokenizeMessages",
        &[("messages", Of("Messages"))],
        &[&[("add_special_tokens", Bool)], TEMPLATE, TOKENIZE],
    ),
    ("DetokenizeRequest", &[("tokens", Of("TokenList"))], &[&[("model", Of("ModelName"))]]),
    ("EmbeddingsRequest", &[("input", Of("EmbeddingInput"))], &[EMBEDDINGS]),
    ("StreamOptions", &[], &[STREAM_OPTIONS]),
    ("Reasoning", &[], &[REASONING]),
];

impl Kind {
    fn schema(self, may_be_null: bool) -> Value {
        let of = |kind: &str| {
            if may_be_null { json!({"type": [kind, "null"]}) } else { json!({"type": kind}) }
        };
        // A bound that is infinite comes out as null, and is none.
        let bounded = |mut schema: Value, low: Value, high: Value| {
            for (name, bound) in [("minimum", low), ("maximum", high)] {
                if !bound.is_null() {
                    schema[name] = bound;
                }
            }
            schema
        };
        match self {
            Bool => of("boolean"),
            Number(low, high) => bounded(of("number"), low.into(), high.into()),
            Count(low, high) => bounded(of("integer"), low.into(), high.into()),
            Whole => bounded(of("integer"), i64::MIN.into(), i64::MAX.into()),
            Seed => bounded(of("integer"), i64::MIN.into(), u64::MAX.into()),
            Text => of("string"),
            Texts => {
                let list = json!({"type": "array", "items": {"type": "string"}});
                json!({"anyOf": [of("string"), list]})
            }
            Object => of("object"),
            Of(name) => {
                let schema = json!({"$ref": format!("#/components/schemas/{name}")});
                if may_be_null { json!({"anyOf": [schema, {"type": "null"}]}) } else { schema }
            }
            Nothing => json!({"enum": ["", null]}),
        }
    }
}

/// The schemas by name.
pub(super) fn schemas(facts: &Facts) -> Map<String, Value> {
    let mut all = parts(facts);
    all.append(&mut forms::schemas());
    for (name, required, groups) in REQUESTS {
        let mut properties = Map::new();
        for (field, kind) in *required {
            properties.insert((*field).to_owned(), kind.schema(false));
        }
        for (field, kind) in groups.iter().copied().flatten() {
            properties.insert((*field).to_owned(), kind.schema(true));
        }
        let required: Vec<&str> = required.iter().map(|(field, _)| *field).collect();
        let schema = json!({"type": "object", "properties": properties, "required": required});
        all.insert((*name).to_owned(), schema);
    }
    all
}

/// What fields hold that is no number and no text.
fn parts(facts: &Facts) -> Map<String, Value> {
    let of = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let list = |items: Value, most: usize| json!({"type": "array", "items": items, "minItems": 1, "maxItems": most});
    let text = || json!({"type": "string"});
    let any = |all: &[Value]| json!({"anyOf": all});
    let mut parts = Map::new();
    let mut add = |name: &str, schema: Value| _ = parts.insert(name.to_owned(), schema);
    add("ModelName", json!({"enum": facts.names}));
    add("Id", json!({"type": "integer", "minimum": 0, "maximum": facts.vocab.saturating_sub(1)}));
    add("Ids", list(of("Id"), 1 << 24));
    add("TokenList", json!({"type": "array", "items": of("Id")}));
    add("TokenCount", json!({"type": "integer", "minimum": 0, "maximum": facts.context}));
    let forms = ["TokenizeContent", "TokenizePrompt", "TokenizeMessages"].map(of);
    add("TokenizeRequest", any(&forms));
    let prompt = any(&[json!({"type": "string", "minLength": 1}), of("Ids")]);
    add("Prompts", any(&[prompt.clone(), list(prompt.clone(), 64)]));
    add("EmbeddingInput", any(&[prompt.clone(), list(prompt, 2048)]));
    add("EncodingFormat", json!({"enum": ["float", "base64"]}));
    let object = json!({
        "type": "object",
        "required": ["prompt_string"],
        "properties": {"prompt_string": text()},
    });
    let mixed = list(any(&[of("Id"), text()]), 1 << 24);
    add("Parts", any(&[text(), object, mixed]));
    add("LlamaPrompts", any(&[of("Parts"), list(of("Parts"), 64)]));
    add("TextParts", text_parts());
    add("Messages", messages());
    add("Tools", tools());
    let bias = json!({"type": "number"});
    let by_id = json!({
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": bias,
    });
    add("BiasById", by_id);
    let bias = any(&[bias, json!({"const": false})]);
    let pair = json!({
        "type": "array",
        "prefixItems": [any(&[of("Id"), text()]), bias.clone()],
        "items": false,
        "minItems": 2,
    });
    let by_token = json!({"type": "object", "additionalProperties": bias});
    add("Bias", any(&[by_token, json!({"type": "array", "items": pair})]));
    let names = json!({"enum": samplers::names_of_all()});
    let letters = json!({"type": "string", "pattern": "^[epmxktdysa]*$"});
    add("Samplers", any(&[letters, json!({"type": "array", "items": names})]));
    add("SchemaOrNothing", any(&[json!({"type": "object"}), json!({"const": ""})]));
    parts
}

/// A text in parts, in the words of both of OpenAI's endpoints.
fn text_parts() -> Value {
    let text = json!({
        "type": "object",
        "required": ["text"],
        "properties": {
            "type": {"enum": ["text", "input_text", "output_text"]},
            "text": {"type": "string"},
        },
    });
    let refusal = json!({
        "type": "object",
        "required": ["type", "refusal"],
        "properties": {"type": {"const": "refusal"}, "refusal": {"type": "string"}},
    });
    let part = json!({"anyOf": [{"type": "string"}, text, refusal]});
    json!({"type": "array", "items": part})
}

fn messages() -> Value {
    let parts = json!({"$ref": "#/components/schemas/TextParts"});
    let of = |roles: &[&str], required: &[&str]| {
        let text = if roles == ["assistant"] { json!(["string", "null"]) } else { json!("string") };
        let content = json!({"anyOf": [{"type": text}, parts]});
        json!({
            "type": "object",
            "required": required,
            "properties": {"role": {"enum": roles}, "content": content, "tool_calls": call()},
        })
    };
    let others = ["system", "developer", "user", "tool", "function"];
    let message =
        json!({"anyOf": [of(&others, &["role", "content"]), of(&["assistant"], &["role"])]});
    json!({"type": "array", "minItems": 1, "items": message})
}

fn call() -> Value {
    let function = json!({
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "arguments": {"type": ["string", "object", "null"]}},
    });
    let call =
        json!({"type": "object", "required": ["function"], "properties": {"function": function}});
    json!({"type": ["array", "null"], "items": call})
}

fn tools() -> Value {
    let function = json!({
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "description": {"type": ["string", "null"]},
            "parameters": {"type": ["object", "null"]},
            "strict": {"type": ["boolean", "null"]},
        },
    });
    let tool =
        json!({"type": "object", "required": ["function"], "properties": {"function": function}});
    json!({"type": "array", "items": tool})
}
