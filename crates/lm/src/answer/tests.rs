//! Answers in every format, cut in all ways, whole and damaged.

mod formats;
mod random;

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

/// What an answer came to, its pieces put together.
#[derive(Clone, Debug, PartialEq)]
struct Read {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
    outcome: Outcome,
}

fn tools() -> Arc<[ToolSchema]> {
    let weather = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "at": {"type": "array"},
        "warm": {"type": "boolean"}, "deep": {"type": "object"}, "either": {"type": ["string", "null"]}}});
    [("weather", weather), ("now", Value::Null)]
        .map(|(name, parameters)| ToolSchema { name: name.into(), parameters })
        .into()
}

/// The format of a template that shows these texts, by a vocabulary without tokens for them.
fn format(shown: &str) -> Arc<Format> {
    Format::detect(Some(&format!("tool_calls {shown}")), &|_| false, "").into()
}

/// Puts deltas together and checks their order.
fn gather(deltas: &[Delta], outcome: Outcome) -> Read {
    let mut read =
        Read { reasoning: String::new(), content: String::new(), calls: Vec::new(), outcome };
    let mut open = None;
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) => {
                assert!(open.is_none() && !text.is_empty(), "{deltas:?}");
                read.reasoning += text;
            }
            Delta::Content(text) => {
                assert!(open.is_none() && !text.is_empty(), "{deltas:?}");
                read.content += text;
            }
            Delta::CallStart { index, name } => {
                assert!(
                    open.is_none() && *index == read.calls.len() && !name.is_empty(),
                    "{deltas:?}"
                );
                open = Some(*index);
                read.calls.push((name.clone(), String::new()));
            }
            Delta::CallArguments { index, json } => {
                assert!(open == Some(*index) && !json.is_empty(), "{deltas:?}");
                read.calls[*index].1 += json;
            }
            Delta::CallEnd { index } => {
                assert_eq!(open.take(), Some(*index), "{deltas:?}");
            }
        }
    }
    assert_eq!(open, None, "{deltas:?}");
    read
}

/// Reads an answer in pieces.
fn read_pieces<'t>(
    format: &Arc<Format>,
    tools: &Arc<[ToolSchema]>,
    in_reasoning: bool,
    ended: Ended,
    pieces: impl IntoIterator<Item = &'t str>,
) -> Read {
    let mut parser = Parser::new(Arc::clone(format), Arc::clone(tools), in_reasoning);
    let mut deltas = Vec::new();
    pieces.into_iter().for_each(|piece| parser.push(piece, &mut deltas));
    let outcome = parser.finish(ended, &mut deltas);
    gather(&deltas, outcome)
}

fn letters(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()])
}

/// Reads an answer whole and letter by letter, which must agree.
fn read(format: &Arc<Format>, in_reasoning: bool, ended: Ended, text: &str) -> Read {
    let whole = read_pieces(format, &tools(), in_reasoning, ended, [text]);
    let pieces = read_pieces(format, &tools(), in_reasoning, ended, letters(text));
    assert_eq!(whole, pieces, "{text:?}");
    whole
}

fn text(reasoning: &str, content: &str) -> Read {
    Read {
        reasoning: reasoning.into(),
        content: content.into(),
        calls: Vec::new(),
        outcome: Outcome::Text,
    }
}

fn calls(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Read {
    let calls = calls.iter().map(|(name, json)| ((*name).to_owned(), (*json).to_owned()));
    let (calls, outcome) = (calls.collect(), Outcome::Calls);
    Read { calls, outcome, ..text(reasoning, content) }
}

const QWEN: &str = "<tool_call> <think> </think>";

#[test]
fn reasoning_is_split_off() {
    let format = format(QWEN);
    let stop = |in_reasoning, answer: &str| read(&format, in_reasoning, Ended::Stop, answer);
    assert_eq!(stop(true, "\nHm.\n\nSo.\n</think>\n\nYes."), text("Hm.\n\nSo.", "Yes."));
    assert_eq!(stop(false, "<think>\nHm.\n</think>\n\nYes.\n"), text("Hm.", "Yes.\n"));
    assert_eq!(stop(false, "\n <think>Hm.</think>Yes."), text("Hm.", "Yes."), "space before it");
    assert_eq!(stop(true, "<think>\nHm.</think>Yes."), text("Hm.", "Yes."), "the tag again");
    assert_eq!(stop(false, "<think>\n\n</think>\n\nYes."), text("", "Yes."), "none");
    assert_eq!(stop(false, " Yes.\n\n"), text("", " Yes.\n\n"), "white space of an answer stays");
    assert_eq!(stop(true, "Hm"), text("Hm", ""), "never closed");
    let cut = read(&format, true, Ended::Length, "Hm.\n</thi");
    assert_eq!(cut, text("Hm.\n</thi", ""), "cut within");
    assert_eq!(stop(false, "</think>\n\nYes."), text("", "Yes."), "closed twice");
    let call = "Hm. <tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    assert_eq!(stop(true, call), text(call, ""), "no call is made while it thinks");
    let kimi = super::tests::format("<|tool_calls_section_begin|> </think>");
    let thought = "A \n<|tool_calls_section_begin|> is what I could write.";
    let got = read(&kimi, true, Ended::Stop, &format!("{thought}</think>B"));
    assert_eq!(got, text(thought, "B"), "what is no call ends no reasoning");
    assert_eq!(read(&kimi, true, Ended::Stop, &thought[..30]), text(&thought[..30], ""));
}

#[test]
fn words_that_spell_a_marker_are_prose() {
    let format = format(QWEN);
    let stop = |answer: &str| read(&format, false, Ended::Stop, answer);
    let prose = "The tag <think> opens and </think> closes it.";
    assert_eq!(stop(prose), text("", prose));
    for prose in [
        "Write <tool_call> and then JSON.",
        "<tool_call>\nis a tag </tool_call>.",
        "x <tool_call></tool_call> y",
        "a < b <t <tool <tool_cal",
        "{\"name\": \"now\", \"arguments\": {}}",
    ] {
        assert_eq!(stop(prose), text("", prose));
    }
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let none = read_pieces(&format, &[].into(), false, Ended::Stop, letters(call));
    assert_eq!(none, text("", call), "without tools nothing is a call");
}

#[test]
fn tokens_tell_markers_from_prose() {
    let has = |text: &str| ["<think>", "</think>", "<tool_call>", "</tool_call>"].contains(&text);
    let format: Arc<Format> =
        Format::detect(Some("tool_calls <tool_call> <think></think>"), &has, "").into();
    let marks = format.markers();
    assert!(
        ["<think>", "</think>", "<tool_call>", "</tool_call>"].iter().all(|m| marks.contains(m))
    );
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let answer = |pieces: &[(&str, bool)]| {
        let mut parser = Parser::new(Arc::clone(&format), tools(), false);
        let mut deltas = Vec::new();
        for (piece, is_mark) in pieces {
            parser.push_marked(piece, if *is_mark { &[0] } else { &[] }, &mut deltas);
        }
        let outcome = parser.finish(Ended::Stop, &mut deltas);
        gather(&deltas, outcome)
    };
    assert_eq!(answer(&[(call, false)]), text("", call), "spelled by ordinary tokens");
    let marked = [
        ("See ", false),
        ("<tool_call>", true),
        ("\n{\"name\": \"now\"}", false),
        ("</tool_call>", true),
    ];
    assert_eq!(answer(&marked), calls("", "See", &[("now", "{}")]));
    let again = [("A", false), ("<think>", true), ("b", false), ("</think>", true), ("C", false)];
    assert_eq!(answer(&again), text("b", "AC"), "reasoning behind content, by its tokens");
    let spelled = [("<think>", false), ("b", false), ("</think>", false)];
    assert_eq!(answer(&spelled), text("", "<think>b</think>"));
}

#[test]
fn a_prompt_may_open_the_reasoning() {
    let format = format(QWEN);
    for (prompt, opens) in [
        ("<|im_start|>assistant\n<think>\n", true),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", false),
        ("What is <think>?<|im_end|>\n<|im_start|>assistant\n", false),
        ("", false),
    ] {
        assert_eq!(starts_in_reasoning(&format, prompt), opens, "{prompt:?}");
    }
    assert_eq!(format.reasoning_end(), Some("</think>"));
}

#[test]
fn text_leaves_as_soon_as_it_is_no_marker() {
    let format = format(QWEN);
    let mut parser = Parser::new(format, tools(), false);
    let mut said = |text: &str| {
        let mut deltas = Vec::new();
        parser.push(text, &mut deltas);
        deltas
    };
    assert_eq!(said("a <tool"), [Delta::Content("a".into())]);
    assert_eq!(said("box"), [Delta::Content(" <toolbox".into())]);
    assert_eq!(said("\n\n"), []);
    assert_eq!(said("b<tool_call>{\"name\": \"wea"), [Delta::Content("\n\nb".into())]);
    let start = Delta::CallStart { index: 0, name: "weather".into() };
    let piece = |json: &str| Delta::CallArguments { index: 0, json: json.into() };
    assert_eq!(said("ther\", \"arguments\": {\"ci"), [start, piece("{\"ci")]);
    assert_eq!(said("ty\": \"Be"), [piece("ty\": \"Be")], "arguments leave as they come");
    assert_eq!(said("rn\"}"), [piece("rn\"}"), Delta::CallEnd { index: 0 }]);
}

#[test]
fn a_cut_call_is_no_call_to_make() {
    let format = format(QWEN);
    let cut = |answer: &str| read(&format, false, Ended::Length, answer);
    let got = cut("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Be");
    assert_eq!(
        got,
        Read { outcome: Outcome::Broken, ..calls("", "", &[("weather", "{\"city\": \"Be")]) }
    );
    let start = "<tool_call>\n{\"name\": \"wea";
    assert_eq!(cut(start), text("", start), "no name yet");
    let whole = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", ";
    let got = cut(&format!("{whole}\"arguments\": {{"));
    assert_eq!(
        got,
        Read { outcome: Outcome::Broken, ..calls("", "", &[("now", "{}"), ("now", "{")]) }
    );
}

#[test]
fn a_malformed_call_is_not_lost() {
    let format = format(QWEN);
    let stop = |answer: &str| read(&format, false, Ended::Stop, answer);
    for bad in [
        "<tool_call>\n{\"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": 5, \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{name: now}\n</tool_call>",
        "<tool_call>\n{\"name\": \"now\", \"arguments\": [1]}\n</tool_call>",
        "<tool_call>\n<function=>\n</function></tool_call>",
        "<tool_call>\n",
    ] {
        assert_eq!(stop(bad), text("", bad));
    }
    let got =
        stop("<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": oops}}\n</tool_call>Done.");
    let want =
        Read { outcome: Outcome::Broken, ..calls("", "Done.", &[("now", "{\"a\": oops}}\n")]) };
    assert_eq!(got, want, "what follows a name is its arguments as written");
}

#[test]
fn loops_are_found() {
    let found = |times, tokens, ids: &[u32]| {
        let mut loops = LoopDetector::new(times, tokens);
        ids.iter().map(|&id| loops.push(id)).collect::<Vec<_>>()
    };
    let one = found(4, 4, &[5, 7, 7, 7, 7]);
    assert_eq!(one, [None, None, None, None, Some(Cycle { length: 1, times: 4 })]);
    assert!(found(4, 5, &[7, 7, 7, 7]).iter().all(Option::is_none), "too few tokens");
    assert!(found(2, 2, &[0, 1, 2, 3]).iter().all(Option::is_none), "zeros are no ids of the past");
    let long: Vec<u32> = (0..256).cycle().take(256 * 3).collect();
    let all = found(3, 100, &long);
    assert_eq!(all[256 * 3 - 1], Some(Cycle { length: 256, times: 3 }));
    assert!(all[..256 * 3 - 1].iter().all(Option::is_none));
    let longer: Vec<u32> = (0..257).cycle().take(257 * 4).collect();
    assert!(found(2, 2, &longer).iter().all(Option::is_none), "longer cycles are none");
    // Beside the definition.
    let mut seed = 1u32;
    let ids: Vec<u32> = (0..3000)
        .map(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 31
        })
        .collect();
    for (end, got) in found(3, 9, &ids).into_iter().enumerate() {
        let past = &ids[..=end];
        let want = (1..=256).find_map(|length| {
            let run =
                (length..past.len()).rev().take_while(|&i| past[i] == past[i - length]).count();
            let times = 1 + run / length;
            (times >= 3 && run + length >= 9).then_some(Cycle { length, times })
        });
        assert_eq!(got, want, "{end}");
    }
}
