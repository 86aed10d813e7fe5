use super::super::super::super::answering::{Timings, Token};
use super::*;

fn token(id: u32, is_reasoning: bool, deltas: Vec<Delta>) -> Piece {
    let chosen = Choice { id, logprob: None, top: Vec::new() };
    Piece::Token { choice: 0, token: Token { chosen, deltas, is_reasoning } }
}

fn content(text: &str) -> Vec<Delta> {
    vec![Delta::Content(text.into())]
}

fn teller() -> Teller {
    let entry: Entry = Box::new(|chosen| json!({"id": chosen.id}));
    Teller::new(json!({"id": "resp_1", "status": "in_progress", "output": []}), 10, Some(entry))
}

/// The events of an answer that thinks, says something, and calls twice.
fn events(finish: Finish) -> Vec<Value> {
    let mut teller = teller();
    let call = |index| Delta::CallStart { index, name: format!("f{index}") };
    let arguments = |index, text: &str| Delta::CallArguments { index, json: text.into() };
    let pieces = vec![
        Piece::Started { cached: 4, miss: None },
        token(1, true, vec![Delta::Reasoning("h".into())]),
        token(2, true, vec![Delta::Reasoning("m".into())]),
        token(3, true, Vec::new()),
        token(4, false, Vec::new()),
        token(5, false, content("a")),
        token(6, false, content("b")),
        token(7, false, vec![call(0), arguments(0, "{")]),
        token(8, false, vec![arguments(0, "}"), Delta::CallEnd { index: 0 }]),
        token(9, false, vec![call(1)]),
        Piece::Ended { choice: 0, deltas: vec![arguments(1, "{\"x")], finish, cause: None },
        Piece::Done { timings: Timings::default() },
    ];
    let mut events = teller.begin();
    events.extend(pieces.into_iter().flat_map(|piece| teller.take(piece)));
    events
}

fn names(events: &[Value]) -> Vec<&str> {
    let name = |event: &'_ Value| event["type"].as_str().unwrap().to_owned();
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], i, "{}", name(event));
    }
    events.iter().map(|event| &event["type"].as_str().unwrap()["response.".len()..]).collect()
}

#[test]
fn events_come_in_order() {
    let events = events(Finish::ToolCalls);
    let (added, done) = ("output_item.added", "output_item.done");
    let (part, whole) = ("content_part.added", "content_part.done");
    let (more, end) = ("function_call_arguments.delta", "function_call_arguments.done");
    let (think, text) = ("reasoning_text.delta", "output_text.delta");
    let expected = [
        &["created", "in_progress"][..],
        &[added, part, think, think, "reasoning_text.done", whole, done],
        &[added, part, text, text, "output_text.done", whole, done],
        &[added, more, more, end, done],
        &[added, more, end, done],
        &["completed"],
    ];
    assert_eq!(names(&events), expected.concat());
    // All events of an item have its place and its id.
    let mut id = Value::Null;
    for event in events.iter().filter(|event| event.get("output_index").is_some()) {
        if event["type"] == "response.output_item.added" {
            id = event["item"]["id"].clone();
            assert!(id.is_string());
        }
        let named = event.get("item_id").or(event["item"].get("id"));
        assert_eq!(named, Some(&id), "{event}");
    }
}

#[test]
fn the_last_event_holds_the_items_of_those_before() {
    for (finish, status) in [(Finish::ToolCalls, "completed"), (Finish::Length, "incomplete")] {
        let events = events(finish);
        let items = events.iter().filter(|event| event["type"] == "response.output_item.done");
        let items: Vec<Value> = items.map(|event| event["item"].clone()).collect();
        let last = &events.last().unwrap()["response"];
        assert_eq!(last["output"], Value::from(items));
        assert_eq!((&last["id"], &last["status"]), (&json!("resp_1"), &json!(status)));
        let output = &last["output"];
        let thought = json!([{"type": "reasoning_text", "text": "hm"}]);
        assert_eq!((&output[0]["type"], &output[0]["content"]), (&json!("reasoning"), &thought));
        assert_eq!(output[1]["content"][0]["text"], "ab");
        assert_eq!(output[2]["arguments"], "{}");
        assert_eq!(output[2]["status"], "completed");
        // Whatever ended the text, these arguments are not whole.
        let cut = (&output[3]["arguments"], &output[3]["status"]);
        assert_eq!(cut, (&json!("{\"x"), &json!("incomplete")));
        let reason = &last["incomplete_details"]["reason"];
        assert_eq!(*reason == "max_output_tokens", finish == Finish::Length);
        let usage = json!({
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": 9,
            "output_tokens_details": {"reasoning_tokens": 3},
            "total_tokens": 19,
        });
        assert_eq!(last["usage"], usage);
    }
}

#[test]
fn probabilities_stand_beside_the_text_of_their_tokens() {
    let events = events(Finish::ToolCalls);
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let deltas: Vec<Value> = deltas.map(|event| event["logprobs"].clone()).collect();
    assert_eq!(deltas, [json!([{"id": 4}, {"id": 5}]), json!([{"id": 6}])]);
    let part = &events.last().unwrap()["response"]["output"][1]["content"][0];
    assert_eq!(part["logprobs"], json!([{"id": 4}, {"id": 5}, {"id": 6}]));
}

#[test]
fn a_failure_is_told_twice() {
    let mut teller = teller();
    let mut events = teller.begin();
    events.extend(teller.take(Piece::Failed(ApiError::too_late(3))));
    assert_eq!(events[2]["type"], "error");
    assert_eq!(events[2]["code"], "timeout");
    assert_eq!(events[3]["type"], "response.failed");
    assert_eq!(events[3]["response"]["status"], "failed");
    assert_eq!(events[3]["response"]["error"]["code"], "timeout");
}
