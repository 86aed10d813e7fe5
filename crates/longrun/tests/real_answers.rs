//! Published chat templates write calls down, and the reader of answers finds them again.

mod common;

use std::collections::BTreeMap;

use common::{read_json, root};
use longrun_lm::answer::{Delta, Ended, Format, Outcome, Parser, ToolSchema, starts_in_reasoning};
use longrun_lm::text::{ChatInput, ChatTemplate};
use serde_json::{Value, json};

/// Templates whose calls do not come back, and why.
const OTHERS: &[(&str, &str)] = &[
    (
        "DeepHat-DeepHat-V1-7B",
        "a list that no marker opens, in a template that shows the markers of others",
    ),
    ("GigaChat3-10B-A1.8B", "a call is a message of its own"),
    ("LiquidAI-LFM2.5-VL-450M", "quotes in strings are not escaped"),
    ("MiniMaxAI-MiniMax-M3-MXFP8", "keys are tags"),
    ("NVIDIA-Nemotron-Nano-v2", "a call is a message of its own"),
    ("SvalTek-Q3-CharThink-9B-temp", "strings are written with quotes where all others write none"),
    ("ai9stars-G9v3-3B", "strings are CDATA"),
    ("baseten-Llama-3.2-3B-Instruct-pythonic", "strings have no quotes"),
    ("meetkai-functionary-medium-v3.2", "a call is a message of its own"),
    ("naver-hyperclovax-HyperCLOVAX-SEED-Think-14B", "a call is a message of its own"),
    ("openbmb-MiniCPM-SALA", "strings are CDATA"),
    ("openbmb-MiniCPM5-1B", "strings are CDATA"),
    ("openbmb-MiniCPM5-1B-Base", "strings are CDATA"),
    (
        "sophosympatheia-StrawberryLemonade-L3-70B-v1.0",
        "a list that no marker opens, behind other text",
    ),
    ("stepfun-ai-Step-Audio-R1.1", "a format of no family that is served"),
    ("stepfun-ai-step3", "a format of no family that is served"),
    ("tencent-Hy-MT2-30B-A3B", "the template puts its tags together"),
    ("tencent-Hy3", "the template puts its tags together"),
    ("tencent-Hy3@7fc351", "the template puts its tags together"),
    (
        "trl-internal-testing-tiny-Llama4ForCausalLM",
        "an object that no marker opens, behind other text",
    ),
    ("typhoon-ai-typhoon2.1-gemma3-4b", "no commas between arguments"),
    ("upstage-Solar-Open-100B", "a format of no family that is served"),
    ("upstage-Solar-Open2-250B", "a format of no family that is served"),
];

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "A city"},
            "days": {"type": "integer", "description": "Days"},
            "at": {"type": "array", "items": {"type": "number"}, "description": "Hours"},
            "deep": {"type": "object", "description": "More"},
            "warm": {"type": "boolean", "description": "Whether"}}}}}])
}

/// Arguments of the calls of one message.
fn conversations() -> Vec<Vec<Value>> {
    let rich = json!({"city": "Zü \"b\"\n<b>", "days": 2, "at": [1.5, 2], "u": null, "deep": {"a": true, "b": "it's"}});
    let plain = json!({"city": "Zürich", "days": 2, "warm": true});
    vec![vec![rich, json!({})], vec![plain.clone(), json!({"city": "Bern"})], vec![plain]]
}

fn message(arguments: &[Value], as_text: bool, content: &str) -> Value {
    let calls: Vec<Value> = arguments
        .iter()
        .enumerate()
        .map(|(i, arguments)| {
            let text = || Value::from(arguments.to_string());
            let arguments = if as_text { text() } else { arguments.clone() };
            let id = format!("functions.get_weather:{i}");
            json!({"id": id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}})
        })
        .collect();
    json!({"role": "assistant", "content": content, "reasoning_content": "Let me think.", "tool_calls": calls})
}

/// An answer as the template writes it, and what stands before it.
fn rendered(template: &ChatTemplate, message: &Value) -> Option<(String, String)> {
    let (tools, user) = (tools(), json!({"role": "user", "content": "Weather?"}));
    let render = |messages: Value, answer: bool| {
        let mut input = ChatInput::new(&messages);
        (input.add_generation_prompt, input.tools) = (answer, Some(&tools));
        template.render(&input).ok()
    };
    let prompt = render(json!([user]), true)?;
    let all = render(json!([user, message]), false)?;
    if let Some(answer) = all.strip_prefix(&prompt) {
        return Some((prompt, answer.to_owned()));
    }
    let same = all.bytes().zip(prompt.bytes()).take_while(|(a, b)| a == b).count();
    let cut = all.char_indices().take_while(|(at, c)| at + c.len_utf8() <= same);
    let cut = cut.filter(|(_, c)| "\n>".contains(*c)).map(|(at, c)| at + c.len_utf8()).last()?;
    Some((all[..cut].to_owned(), all[cut..].to_owned()))
}

/// Marks of the tokens of a format in a text that a tokenizer would find.
fn marks(format: &Format, text: &str) -> Vec<usize> {
    let found = format.markers().into_iter().flat_map(|marker| text.match_indices(marker));
    let mut found: Vec<usize> = found.map(|(at, _)| at).collect();
    found.sort_unstable();
    found.dedup();
    found
}

struct Read {
    calls: Vec<(String, String)>,
    reasoning: String,
    content: String,
    outcome: Outcome,
}

fn gather(deltas: &[Delta], outcome: Outcome) -> Read {
    let mut read =
        Read { calls: Vec::new(), reasoning: String::new(), content: String::new(), outcome };
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) => read.reasoning += text,
            Delta::Content(text) => read.content += text,
            Delta::CallStart { index, name } => {
                assert_eq!(*index, read.calls.len());
                read.calls.push((name.clone(), String::new()));
            }
            Delta::CallArguments { index, json } => read.calls[*index].1 += json,
            Delta::CallEnd { index } => assert_eq!(*index + 1, read.calls.len()),
        }
    }
    read
}

/// Reads an answer, in pieces of a character or as a whole, by its letters or by its tokens.
fn read(source: &str, (prompt, answer): &(String, String), tokens: bool, pieces: bool) -> Read {
    let format = Format::detect(Some(source), &|_| tokens, "");
    let tool = &tools()[0]["function"];
    let tool = ToolSchema { name: "get_weather".into(), parameters: tool["parameters"].clone() };
    let in_reasoning = starts_in_reasoning(&format, prompt);
    let marks = marks(&format, answer);
    let mut parser = Parser::new(format.into(), [tool].into(), in_reasoning);
    let mut deltas = Vec::new();
    let mut push = |from: usize, to: usize| {
        let text = &answer[from..to];
        if tokens {
            let marks: Vec<usize> =
                marks.iter().filter(|m| (from..to).contains(m)).map(|m| m - from).collect();
            parser.push_marked(text, &marks, &mut deltas);
        } else {
            parser.push(text, &mut deltas);
        }
    };
    if pieces {
        answer.char_indices().for_each(|(at, c)| push(at, at + c.len_utf8()));
    } else {
        push(0, answer.len());
    }
    let outcome = parser.finish(Ended::Stop, &mut deltas);
    gather(&deltas, outcome)
}

/// Whether all ways of reading an answer give these calls.
fn comes_back(source: &str, answer: &(String, String), arguments: &[Value]) -> Result<(), String> {
    for (tokens, pieces) in [(false, false), (false, true), (true, false), (true, true)] {
        let read = read(source, answer, tokens, pieces);
        let same = |(call, want): (&(String, String), &Value)| {
            call.0 == "get_weather"
                && serde_json::from_str::<Value>(&call.1).is_ok_and(|got| got == *want)
        };
        let all = read.calls.len() == arguments.len() && read.calls.iter().zip(arguments).all(same);
        if !all || read.outcome != Outcome::Calls {
            let Read { calls, reasoning, content, outcome } = read;
            return Err(format!(
                "{:?}, tokens {tokens}, pieces {pieces}: {outcome:?} {calls:?} {reasoning:?} {content:?}",
                answer.1
            ));
        }
    }
    Ok(())
}

/// One conversation by one template: arguments as an object, or as their text where the template wants that. None where
/// it does not write all of the calls.
fn round_trip(
    source: &str,
    template: &ChatTemplate,
    arguments: &[Value],
    content: &str,
) -> Option<Result<(), String>> {
    let mut outcome = None;
    for as_text in [false, true] {
        let Some(answer) = rendered(template, &message(arguments, as_text, content)) else {
            continue;
        };
        if answer.1.matches("get_weather").count() < arguments.len() {
            continue;
        }
        let came = comes_back(source, &answer, arguments);
        if came.is_ok() || outcome.is_none() {
            outcome = Some(came);
        }
    }
    outcome
}

#[test]
#[ignore = "needs models: cargo xtask test"]
fn calls_come_back() {
    let sources = read_json(&root(".cache/models/text/templates.json"));
    let (mut right, mut silent, mut wrong) = (0, 0, BTreeMap::new());
    for (name, source) in sources.as_object().unwrap() {
        let source = source.as_str().unwrap();
        let Some(template) =
            ChatTemplate::new(source).ok().filter(|_| source.contains("tool_calls"))
        else {
            continue;
        };
        let template = template.with_token("bos_token", "<s>").with_token("eos_token", "</s>");
        let conversations = conversations();
        let trips =
            conversations.iter().flat_map(|c| ["", "Let me look."].map(|content| (c, content)));
        let trips: Vec<_> =
            trips.filter_map(|(c, content)| round_trip(source, &template, c, content)).collect();
        silent += usize::from(trips.is_empty());
        match trips.into_iter().find_map(Result::err) {
            Some(error) => {
                wrong.insert(name.as_str(), error);
            }
            None => right += 1,
        }
    }
    println!("{right} templates write calls that come back, {silent} write none");
    for (name, cause) in OTHERS {
        assert!(
            wrong.remove(name).is_some(),
            "{name} is listed ({cause}), and its calls come back"
        );
    }
    assert!(wrong.is_empty() && right > 300, "{wrong:#?}");
}
