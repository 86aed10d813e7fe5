//! Texts made of markers, pieces of markers, JSON and noise.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

const SHOWN: &[&str] = &[
    QWEN,
    "<|tool_calls_section_begin|> <think></think>",
    "<｜tool▁calls▁begin｜> <think></think>",
    "｜DSML｜ </think>",
    "<minimax:tool_call> </think>",
    "[TOOL_CALLS] [THINK][/THINK]",
    "<|tool_call_start|>",
    "<|tool_call> call: <|channel>thought <channel|>",
    "<|START_ACTION|> <|END_THINKING|> <|START_RESPONSE|> <|END_RESPONSE|>",
    "<|tool_call|>",
    "<|python_tag|>",
    "<tool_calls>",
    "<function name=\" <param name=\"",
    "<|start|><|channel|><|message|>",
];

const PARTS: &[&str] = &[
    "<think>",
    "</think>",
    "<thi",
    "\n",
    "\n\n",
    " ",
    "x",
    "é",
    "🙂",
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ":",
    "=",
    "<tool_call>",
    "</tool_call>",
    "<tool_",
    "<function=",
    "<function=now>",
    "<parameter=city>",
    "</parameter>",
    "</function>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "now",
    "weather",
    "{\"name\": \"now\", \"arguments\": {",
    "}}",
    "{\"name\": \"weather\", \"arguments\": {\"city\": \"",
    "\"}}",
    "\"city\": \"a\"",
    "5",
    "true",
    "null",
    "```json\n",
    "```",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "functions.now:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<｜DSML｜function_calls>",
    "<｜DSML｜invoke name=\"now\">",
    "<｜DSML｜parameter name=\"a\" string=\"true\">",
    "<｜DSML｜parameter name=\"a\" string=\"false\">",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    "</｜DSML｜function_calls>",
    "<minimax:tool_call>",
    "<invoke name=\"weather\">",
    "<parameter name=\"city\">",
    "</invoke>",
    "</minimax:tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[THINK]",
    "[/THINK]",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "now(",
    "weather(city=",
    "'",
    "<|tool_call>",
    "call:now{",
    "<|\"|>",
    "<tool_call|>",
    "<|channel>thought",
    "<channel|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<|python_tag|>",
    ";",
    "<tool_calls>",
    "</tool_calls>",
    "<function name=\"now\">",
    "<param name=\"a\">",
    "</param>",
    "<|start|>",
    "assistant",
    "<|channel|>",
    "analysis",
    "final",
    "commentary",
    " to=functions.now",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];

fn answer() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        9 => prop::sample::select(PARTS).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        1 => (1usize..400).prop_map(|n| " ".repeat(n)),
    ];
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

/// A text in pieces of some lengths.
fn cut<'t>(text: &'t str, cuts: &[usize]) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    for &cut in cuts.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let at = rest.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(at);
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Draws the same cases at every run.
fn cases(cases: u32) -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(1);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

/// What is left of a text without white space: the letters of an answer that must come out somewhere.
fn letters_of(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

proptest! {
    #![proptest_config(cases(3000))]
    #[test]
    fn cuts_do_not_show(
        text in answer(),
        cuts in prop::collection::vec(1usize..9, 1..6),
        shown in prop::sample::select(SHOWN),
        in_reasoning: bool,
        stopped: bool,
    ) {
        let format = format(shown);
        let ended = if stopped { Ended::Stop } else { Ended::Length };
        let whole = read_pieces(&format, &tools(), in_reasoning, ended, [text.as_str()]);
        let pieces = read_pieces(&format, &tools(), in_reasoning, ended, cut(&text, &cuts));
        prop_assert_eq!(&whole, &pieces);
        if whole.outcome == Outcome::Calls {
            let is_object = |json: &str| serde_json::from_str::<serde_json::Map<String, Value>>(json).is_ok();
            prop_assert!(whole.calls.iter().any(|(_, json)| is_object(json)), "{:?}", whole);
        }
    }

    #[test]
    fn without_tools_or_tags_nothing_changes(text in answer(), cuts in prop::collection::vec(1usize..9, 1..6)) {
        let got = read_pieces(&format("<tool_call>"), &[].into(), false, Ended::Stop, cut(&text, &cuts));
        prop_assert_eq!(got, super::text("", &text));
    }

    #[test]
    fn prose_without_calls_is_kept(text in answer(), shown in prop::sample::select(SHOWN)) {
        let got = read_pieces(&format(shown), &tools(), false, Ended::Stop, [text.as_str()]);
        // What is dropped are markers: letters of the answer come in their order.
        let mut left = letters_of(&text);
        if got.calls.is_empty() && got.reasoning.is_empty() {
            let said = letters_of(&got.content);
            let mut rest = left.chars();
            prop_assert!(said.chars().all(|c| rest.any(|r| r == c)), "{:?}", got);
            for marker in ["<think>", "</think>", "[THINK]", "[/THINK]"] {
                left = left.replace(marker, "");
            }
            if !shown.contains("<|start|>") && !shown.contains("RESPONSE") && !shown.contains("<|channel>") {
                let said = ["<think>", "</think>", "[THINK]", "[/THINK]"].iter().fold(said, |s, m| s.replace(m, ""));
                prop_assert_eq!(said, left);
            }
        }
    }
}

#[test]
fn noise_does_no_harm() {
    let mut seed = 7u64;
    let mut next = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for round in 0..4000 {
        let format = format(SHOWN[round % SHOWN.len()]);
        let text: String = (0..next(60)).map(|_| PARTS[next(PARTS.len())]).collect();
        let cuts: Vec<usize> = (0..4).map(|_| 1 + next(7)).collect();
        let whole = read_pieces(&format, &tools(), round % 2 == 0, Ended::Stop, [text.as_str()]);
        assert_eq!(
            whole,
            read_pieces(&format, &tools(), round % 2 == 0, Ended::Stop, cut(&text, &cuts)),
            "{text:?}"
        );
    }
}
