//! What models write, format by format.

use super::*;

struct Case {
    shown: &'static str,
    in_reasoning: bool,
    answer: &'static str,
    want: Read,
}

fn case(shown: &'static str, answer: &'static str, want: Read) -> Case {
    Case { shown, in_reasoning: false, answer, want }
}

fn check(cases: impl IntoIterator<Item = Case>) {
    for Case { shown, in_reasoning, answer, want } in cases {
        assert_eq!(read(&format(shown), in_reasoning, Ended::Stop, answer), want, "{answer:?}");
    }
}

#[test]
fn objects_between_tags() {
    check([
        Case {
            in_reasoning: true,
            ..case(
                QWEN,
                "Look.\n</think>\n\nA moment.\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\", \
                 \"days\": 2}}\n</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"now\"}\n</tool_call>",
                calls(
                    "Look.",
                    "A moment.",
                    &[("weather", "{\"city\": \"Zürich\", \"days\": 2}"), ("now", "{}")],
                ),
            )
        },
        case(
            QWEN,
            "<tool_call>{\"name\":\"now\",\"arguments\":{\"a\": \"b\n\t\u{1}\"}}</tool_call>",
            calls("", "", &[("now", "{\"a\": \"b\\n\\t\\u0001\"}")]),
        ),
        case(
            QWEN,
            "<tool_call>{\"name\":\"now\",\"arguments\":\"{\\\"a\\\": 1}\"}</tool_call> Then <tool_call>{\"name\":\"now\"}\
             </tool_call>\n\nDone.",
            calls("", "ThenDone.", &[("now", "{\"a\": 1}"), ("now", "{}")]),
        ),
        case(
            "[TOOL_CALLS]",
            "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {\"a\": [\"]\"]}, \"id\": \"1\"}, {\"name\": \
              \"now\", \"arguments\": {}}]",
            calls("", "", &[("now", "{\"a\": [\"]\"]}"), ("now", "{}")]),
        ),
        case(
            "<|tool_call|>",
            "<|tool_call|>[{\"name\": \"now\", \"arguments\": {\"a\": 1}}]",
            calls("", "", &[("now", "{\"a\": 1}")]),
        ),
        case(
            "<|tool_call|>",
            "<|tool_call|>[{\"name\":\"now\",\"arguments\":{}}]<|/tool_call|>",
            calls("", "", &[("now", "{}")]),
        ),
        case(
            "<TOOLCALL> <think></think>",
            "<think>\nA\n</think>\n\n<TOOLCALL>[{\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>",
            calls("A", "", &[("now", "{}")]),
        ),
        case(
            "<|tools_prefix|>",
            "Let me.<|tools_prefix|>[{\"now\": {\"a\": 1}}, {\"weather\": {}}]<|tools_suffix|>",
            calls("", "Let me.", &[("now", "{\"a\": 1}"), ("weather", "{}")]),
        ),
        case(
            "<|START_ACTION|> <|START_THINKING|><|END_THINKING|> <|START_RESPONSE|> <|END_RESPONSE|>",
            "<|START_THINKING|>A<|END_THINKING|><|START_ACTION|>[\n {\"tool_call_id\": \"0\", \"tool_name\": \"now\", \
             \"parameters\": {\"a\": 1}}\n]<|END_ACTION|>",
            calls("A", "", &[("now", "{\"a\": 1}")]),
        ),
    ]);
}

#[test]
fn names_and_objects() {
    let kimi = "<|tool_calls_section_begin|> <think></think>";
    check([
        case(
            kimi,
            "<think>A</think>B<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>\
             {\"city\": \"x\"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}\
             <|tool_call_end|><|tool_calls_section_end|>",
            calls("A", "B", &[("weather", "{\"city\": \"x\"}"), ("now", "{}")]),
        ),
        Case {
            in_reasoning: true,
            ..case(
                kimi,
                "A <|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>\
                 <|tool_calls_section_end|>",
                calls("A", "", &[("now", "{}")]),
            )
        },
        case(
            "<｜tool▁calls▁begin｜>",
            "Ja.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"x\"}\n```\
             <｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>\
             <｜tool▁calls▁end｜>",
            calls("", "Ja.", &[("weather", "{\"city\": \"x\"}"), ("now", "{}")]),
        ),
        case(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"x\"}<｜tool▁call▁end｜>\
             <｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            calls("", "", &[("weather", "{\"city\": \"x\"}"), ("now", "{}")]),
        ),
        case(
            "[TOOL_CALLS] [THINK][/THINK]",
            "[THINK]A[/THINK]B[TOOL_CALLS]weather[ARGS]{\"city\": \"x\"}[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}",
            calls("A", "B", &[("weather", "{\"city\": \"x\"}"), ("now", "{}")]),
        ),
        case(
            "<function=",
            "<function=now>{\"a\": 1}</function>",
            calls("", "", &[("now", "{\"a\": 1}")]),
        ),
    ]);
}

#[test]
fn tags_with_typed_values() {
    let typed = "{\"city\": \"5\", \"days\": 5, \"warm\": true, \"at\": [1, 2], \"deep\": {\"a\": 1}, \"other\": null}";
    check([
        case(
            QWEN,
            "<tool_call>\n<function=weather>\n<parameter=city>\n5\n</parameter>\n<parameter=days>\n5\n</parameter>\n\
             <parameter=warm>\nTrue\n</parameter>\n<parameter=at>\n[1, 2]\n</parameter>\n<parameter=deep>\n{\"a\": 1}\n\
             </parameter>\n<parameter=other>\nnull\n</parameter>\n</function>\n</tool_call>",
            calls("", "", &[("weather", typed)]),
        ),
        case(
            QWEN,
            "<tool_call>\n<function=weather>\n<parameter=city>\n\n a \"b\"\n\t</par\n\n</parameter>\n<parameter=days>\nmany\n\
             </parameter>\n</function>\n</tool_call>",
            calls(
                "",
                "",
                &[("weather", "{\"city\": \"\\n a \\\"b\\\"\\n\\t</par\\n\", \"days\": \"many\"}")],
            ),
        ),
        case(
            QWEN,
            "Now.\n<function=now>\n</function>\n</tool_call>\n",
            calls("", "Now.", &[("now", "{}")]),
        ),
        case(
            QWEN,
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>a\nb</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2\
             </arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
            calls("", "", &[("weather", "{\"city\": \"a\\nb\", \"days\": 2}"), ("now", "{}")]),
        ),
        case(
            QWEN,
            "<tool_call>weather<arg_key>either</arg_key><arg_value>null</arg_value></tool_call><tool_call>now</tool_call>",
            calls("", "", &[("weather", "{\"either\": null}"), ("now", "{}")]),
        ),
        case(
            "<minimax:tool_call> <think></think>",
            "<think>\nA\n</think>\n\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">x</parameter>\n\
             <parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
            calls("A", "", &[("weather", "{\"city\": \"x\", \"days\": 2}"), ("now", "{}")]),
        ),
        case(
            "｜DSML｜",
            "B\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"days\" string=\"true\">2\
             </｜DSML｜parameter>\n<｜DSML｜parameter name=\"city\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n\
             <｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            calls("", "B", &[("weather", "{\"days\": \"2\", \"city\": 3}"), ("now", "{}")]),
        ),
        case(
            "<seed:tool_call> <seed:think></seed:think>",
            "<seed:think>A</seed:think>\n<seed:tool_call>\n<function=weather>\n<parameter=city>x</parameter>\n</function>\n\
             </seed:tool_call>",
            calls("A", "", &[("weather", "{\"city\": \"x\"}")]),
        ),
    ]);
}

#[test]
fn expressions() {
    check([
        case(
            "<|tool_call_start|>",
            "<|tool_call_start|>[weather(city='it\\'s \"x\"', at=[1, (2,)], deep={'a': None}), now()]<|tool_call_end|>Ok.",
            calls(
                "",
                "Ok.",
                &[
                    (
                        "weather",
                        "{\"city\": \"it's \\\"x\\\"\", \"at\": [1, [2]], \"deep\": {\"a\": null}}",
                    ),
                    ("now", "{}"),
                ],
            ),
        ),
        case(
            "<|tool_call> call: <|channel>thought <channel|>",
            "<|channel>thought\nA\n<channel|>B<|tool_call>call:weather{at:[1.5],city:<|\"|>a, \"b\"}<|\"|>,deep:{a:true},days:2}\
             <tool_call|><|tool_call>call:now{}<tool_call|>",
            calls(
                "A",
                "B",
                &[
                    (
                        "weather",
                        "{\"at\": [1.5], \"city\": \"a, \\\"b\\\"}\", \"deep\": {\"a\": true}, \"days\": 2}",
                    ),
                    ("now", "{}"),
                ],
            ),
        ),
        case(
            "<start_function_call>",
            "<start_function_call>call:weather{city:<escape>x<escape>}<end_function_call>",
            calls("", "", &[("weather", "{\"city\": \"x\"}")]),
        ),
        case(
            "<function_calls>",
            "Let me.<function_calls>weather(city=\"x\", days=2)\nnow()</function_calls>",
            calls("", "Let me.", &[("weather", "{\"city\": \"x\", \"days\": 2}"), ("now", "{}")]),
        ),
    ]);
}

#[test]
fn calls_without_markers() {
    let llama = "<|python_tag|>";
    check([
        case(
            llama,
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"x\"}}; {\"name\": \"now\", \"parameters\": {}}",
            calls("", "", &[("weather", "{\"city\": \"x\"}"), ("now", "{}")]),
        ),
        case(
            llama,
            "<|python_tag|>{\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}",
            calls("", "", &[("now", "{}")]),
        ),
        case(
            llama,
            "[weather(city=\"x\", days=2), now()]",
            calls("", "", &[("weather", "{\"city\": \"x\", \"days\": 2}"), ("now", "{}")]),
        ),
        case(
            llama,
            "<|python_start|>[now()]<|python_end|>",
            text("", "<|python_start|>[now()]<|python_end|>"),
        ),
        case(
            "<|python_start|> <|python_end|>",
            "<|python_start|>[now()]<|python_end|>",
            calls("", "", &[("now", "{}")]),
        ),
        case(
            "</think>",
            "<think>A</think>\n{\"name\": \"now\", \"parameters\": {}}",
            calls("A", "", &[("now", "{}")]),
        ),
        case(
            llama,
            "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}\n{\"name\": \"now\", \"parameters\": {}}",
            calls("", "{\"name\": \"now\", \"parameters\": {}}", &[("now", "{}")]),
        ),
        case("", "[{\"name\": \"now\", \"arguments\": {}}]", calls("", "", &[("now", "{}")])),
    ]);
    for prose in [
        "{\"name\": \"Ada\", \"parameters\": {}}",
        "{\"name\": \"weather\"",
        "{\"temperature\": 5}",
        "[1, 2, 3]",
        "[x](http://a.b) is a link",
        "Call {\"name\": \"now\", \"parameters\": {}}",
        "[]",
        "[] {\"name\": \"now\", \"parameters\": {}}",
    ] {
        assert_eq!(read(&format(llama), false, Ended::Stop, prose), text("", prose));
    }
}

#[test]
fn messages_in_channels() {
    let shown = "<|start|><|channel|><|message|>";
    let want = calls("A", "B", &[("weather", "{\"city\": \"x\"}")]);
    check([
        case(
            shown,
            "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary<|message|>B<|end|><|start|>assistant\
             <|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"x\"}<|call|>",
            want.clone(),
        ),
        case(
            shown,
            "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B<|end|><|start|>assistant \
             to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"x\"}",
            want,
        ),
        case(shown, "<|channel|>final<|message|>Yes < no.", text("", "Yes < no.")),
        case(shown, "Just text.", text("", "Just text.")),
        case(shown, "<|channel|>final<|message|>A<|start|>assistant<|channel|>analysis<|message|>B", text("B", "A")),
        case(shown, " to=functions.now<|channel|>commentary<|message|>", calls("", "", &[("now", "")])),
        case(shown, "<|channel|>commentary to=functions.now<|message|><|call|>", calls("", "", &[("now", "{}")])),
        case(shown, "<|channel|>commentary to=elsewhere<|message|>A<|end|>", text("", "A")),
        case(shown, "<|channel|> is a token", text("", "<|channel|> is a token")),
        Case { in_reasoning: true, ..case(shown, "A<|end|><|start|>assistant<|channel|>final<|message|>B", text("A", "B")) },
    ].map(|mut case| {
        if case.want.calls.iter().any(|(_, json)| json.is_empty()) {
            case.want.outcome = Outcome::Broken;
        }
        case
    }));
    let format = format(shown);
    assert!(starts_in_reasoning(&format, "<|start|>assistant<|channel|>analysis<|message|>"));
    assert!(!starts_in_reasoning(&format, "<|start|>assistant"));
    let cut =
        read(&format, false, Ended::Length, "<|channel|>analysis<|message|>A<|end|><|start|>assi");
    assert_eq!(cut, text("A", ""), "half a header is no text");
}

#[test]
fn a_format_may_come_from_the_vocabulary() {
    let only = |token: &'static str| Format::detect(None, &move |text| text == token, "x");
    assert!(only("[TOOL_CALLS]").has_calls());
    assert!(only("<tool_call>").has_calls());
    assert!(!only("<p>").has_calls());
    assert!(Format::detect(None, &|_| false, "llama").has_calls());
    assert_eq!(only("<think>").reasoning_end(), None, "half a pair is none");
}
