use longrun_lm::sample::Choice;

use super::super::super::super::answering::{Timings, Token};
use super::*;

fn token(deltas: Vec<Delta>) -> Piece {
    let chosen = Choice { id: 0, logprob: None, top: Vec::new() };
    Piece::Token { choice: 0, token: Token { chosen, deltas, is_reasoning: false } }
}

fn content(text: &str) -> Delta {
    Delta::Content(text.into())
}

fn arguments_of(index: usize, text: &str) -> Delta {
    Delta::CallArguments { index, json: text.into() }
}

/// The events of an answer of two calls.
fn events(shows_thinking: bool) -> Vec<Value> {
    let mut teller = Teller::new("m".into(), 10, shows_thinking, "req_1".into());
    let call = |index| Delta::CallStart { index, name: format!("f{index}") };
    let started = || Piece::Started { cached: 4, miss: None };
    let ended = Piece::Ended {
        choice: 0,
        deltas: vec![Delta::CallEnd { index: 1 }],
        finish: Finish::ToolCalls,
        cause: None,
    };
    let pieces = vec![
        started(),
        Piece::Progress { done: 5, total: 10 },
        started(),
        token(vec![Delta::Reasoning("h".into())]),
        token(vec![Delta::Reasoning("m".into()), content("a")]),
        token(vec![content("b"), call(0)]),
        token(vec![arguments_of(0, "{\"x\""), arguments_of(0, ": 1}")]),
        token(vec![Delta::CallEnd { index: 0 }, call(1), arguments_of(1, "{\"y\": ")]),
        ended,
        Piece::Done { timings: Timings::default() },
    ];
    pieces.into_iter().flat_map(|piece| teller.take(piece)).collect()
}

fn fold(events: Vec<Value>) -> Value {
    let mut fold = Fold::default();
    events.into_iter().for_each(|event| fold.take(event));
    fold.message
}

#[test]
fn events_come_in_order() {
    let events = events(true);
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let (start, delta, stop) = ("content_block_start", "content_block_delta", "content_block_stop");
    let expected = [
        &["message_start", "ping", "ping"][..],
        // What was thought, with its signature.
        &[start, delta, delta, delta, stop],
        &[start, delta, delta, stop],
        &[start, delta, delta, stop],
        &[start, delta, stop],
        &["message_delta", "message_stop"],
    ];
    assert_eq!(names, expected.concat());
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 6);
    assert_eq!(events[0]["message"]["usage"]["cache_read_input_tokens"], 4);
}

#[test]
fn the_whole_is_what_events_put_together() {
    let message = fold(events(true));
    let content = message["content"].as_array().unwrap();
    assert_eq!(content[0], json!({"type": "thinking", "thinking": "hm", "signature": SIGNATURE}));
    assert_eq!(content[1], json!({"type": "text", "text": "ab"}));
    assert_eq!((&content[2]["name"], &content[2]["input"]), (&json!("f0"), &json!({"x": 1})));
    assert!(content[2]["id"].as_str().unwrap().starts_with("toolu_"));
    assert_eq!(content[3]["input"], json!({"unparsed_arguments": "{\"y\": "}));
    assert_eq!(content.len(), 4);
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(message["usage"]["output_tokens"], 5);
    let hidden = fold(events(false));
    assert_eq!(hidden["content"][0]["thinking"], "");
    assert_eq!(hidden["content"][0]["signature"], SIGNATURE);
}

#[test]
fn reasons_are_named() {
    let reason = |finish, cause: Option<Cause>| {
        let mut teller = Teller::new("m".into(), 1, true, String::new());
        let mut events = teller.take(Piece::Started { cached: 0, miss: None });
        events.extend(teller.take(Piece::Ended { choice: 0, deltas: Vec::new(), finish, cause }));
        let message = fold(events);
        assert_eq!(message["content"], json!([]));
        (message["stop_reason"].clone(), message["stop_sequence"].clone())
    };
    assert_eq!(reason(Finish::Stop, None), (json!("end_turn"), json!(null)));
    let text = || Some(Cause::Text("x".into()));
    assert_eq!(reason(Finish::Stop, text()), (json!("stop_sequence"), json!("x")));
    assert_eq!(reason(Finish::Stop, Some(Cause::Loop)), (json!("stop_sequence"), json!("loop")));
    assert_eq!(reason(Finish::Stop, Some(Cause::Call)), (json!("end_turn"), json!(null)));
    assert_eq!(reason(Finish::Length, None), (json!("max_tokens"), json!(null)));
    assert_eq!(reason(Finish::ToolCalls, text()), (json!("tool_use"), json!(null)));
}

#[test]
fn a_failure_is_an_event_in_the_shape_of_errors() {
    let mut teller = Teller::new("m".into(), 1, true, "req_1".into());
    let failed = Piece::Failed(super::super::super::super::error::ApiError::unavailable("gone"));
    let expected = json!({"type": "overloaded_error", "message": "gone"});
    let event = json!({"type": "error", "error": expected, "request_id": "req_1"});
    assert_eq!(teller.take(failed), [event]);
}

#[test]
fn arguments_are_an_object() {
    assert_eq!(arguments("{\"x\": [1]}"), json!({"x": [1]}));
    assert_eq!(arguments(" \n"), json!({}));
    for text in ["[1]", "{\"x\"", "none"] {
        assert_eq!(arguments(text), json!({"unparsed_arguments": text}));
    }
}
