use serde_json::json;

use super::*;

fn read(all: Value) -> ApiResult<Vec<Value>> {
    let mut history = History::default();
    messages(all, &mut history)?;
    history.finish("messages")
}

#[test]
fn blocks_become_messages() {
    let all = read(json!([
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "?"},
            {"type": "text", "text": "look"},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such file", "is_error": true},
            {"type": "text", "text": "go on"},
        ]},
        {"role": "assistant", "content": "so"},
    ]))
    .unwrap();
    let roles: Vec<_> = all.iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "user", "assistant"]);
    assert_eq!(all[0]["content"], "a\nb", "messages of one role are one");
    assert_eq!((&all[1]["reasoning_content"], &all[1]["content"]), (&json!("hm"), &json!("look")));
    assert_eq!(all[1]["tool_calls"][0]["function"], json!({"name": "f", "arguments": {"x": 1}}));
    assert_eq!((&all[2]["content"], &all[2]["name"]), (&json!("4\n2"), &json!("f")));
    assert_eq!(all[3]["content"], "Error: no such file");
    assert_eq!((&all[4]["content"], &all[5]["content"]), (&json!("go on"), &json!("so")));
}

#[test]
fn wrong_blocks_are_named() {
    let user = |block: Value| json!([{"role": "user", "content": [block]}]);
    let assistant = |block: Value| json!([{"role": "assistant", "content": [block]}]);
    for (bad, place) in [
        (json!("x"), "messages"),
        (json!([]), "messages"),
        (json!([5]), "messages[0]"),
        (json!([{"role": "system", "content": "x"}]), "messages[0].role"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (json!([{"role": "user", "content": 5}]), "messages[0].content"),
        (user(json!({"text": "x"})), "messages[0].content[0].type"),
        (user(json!({"type": "image"})), "messages[0].content[0].type"),
        (user(json!({"type": "text"})), "messages[0].content[0].text"),
        (
            user(json!({"type": "tool_result", "tool_use_id": "1"})),
            "messages[0].content[0].tool_use_id",
        ),
        (user(json!({"type": "tool_use", "id": "1", "name": "f"})), "messages[0].content[0].type"),
        (assistant(json!({"type": "tool_use", "id": "1"})), "messages[0].content[0].name"),
        (
            assistant(json!({"type": "tool_use", "id": "1", "name": "f", "input": "x"})),
            "messages[0].content[0].input",
        ),
        (assistant(json!({"type": "server_tool_use"})), "messages[0].content[0].type"),
    ] {
        let error = read(bad.clone()).expect_err(&bad.to_string());
        assert_eq!(error.param.as_deref(), Some(place), "{bad}");
    }
}

#[test]
fn failure_is_said_once() {
    for (content, failed, said) in [
        ("x", false, "x"),
        ("", false, ""),
        ("x", true, "Error: x"),
        ("", true, "Error"),
        ("error: x", true, "error: x"),
        ("ärger", true, "Error: ärger"),
        ("aäää", true, "Error: aäää"),
    ] {
        assert_eq!(outcome(content.into(), failed), said);
    }
}

#[test]
fn tools_and_choices_are_read_or_refused() {
    let fields = |json: Value| Fields::of(json, "").unwrap();
    let tool = json!({"name": "f", "description": "d", "input_schema": {"type": "object"}});
    let (all, shown) = tools(&mut fields(json!({"tools": [tool]}))).unwrap();
    let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
    assert_eq!(json!(shown), json!([{"type": "function", "function": function}]));
    assert_eq!((all[0].name.as_str(), all[0].strict), ("f", false));
    for (bad, place) in [
        (json!([{"type": "web_search_20250305", "name": "web_search"}]), "tools[0].type"),
        (json!([{"name": "f"}]), "tools[0].input_schema"),
        (json!([{"input_schema": {}}]), "tools[0].name"),
        (json!({}), "tools"),
    ] {
        let error = tools(&mut fields(json!({"tools": bad}))).err().unwrap();
        assert_eq!(error.param.as_deref(), Some(place));
    }
    let read = |json: Value| choice(&mut fields(json!({"tool_choice": json})), &all);
    assert_eq!(read(json!(null)).unwrap(), (ToolChoice::Auto, None));
    let single = json!({"type": "auto", "disable_parallel_tool_use": true});
    assert_eq!(read(single).unwrap(), (ToolChoice::Auto, Some(false)));
    assert_eq!(read(json!({"type": "any"})).unwrap().0, ToolChoice::Required);
    assert_eq!(read(json!({"type": "none"})).unwrap().0, ToolChoice::None);
    assert_eq!(
        read(json!({"type": "tool", "name": "f"})).unwrap().0,
        ToolChoice::Named("f".into())
    );
    assert!(read(json!({"type": "tool"})).is_err());
    assert!(read(json!({"type": "tool", "name": "g"})).is_err());
    assert!(read(json!({"type": "some"})).is_err());
    assert!(read(json!("auto")).is_err());
}

#[test]
fn thinking_is_read_or_refused() {
    let read =
        |json: Value| thinking(&mut Fields::of(json!({"thinking": json}), "").unwrap(), Some(2000));
    let on = |json: Value| read(json).unwrap().on;
    assert_eq!(on(json!(null)), None);
    assert_eq!(on(json!({"type": "adaptive"})), None);
    assert_eq!(on(json!({"type": "disabled"})), Some(false));
    assert_eq!(on(json!({"type": "enabled", "budget_tokens": 1024})), Some(true));
    let budget = |kind: &str| read(json!({"type": kind, "budget_tokens": 9})).unwrap().budget;
    assert_eq!((budget("adaptive"), budget("disabled")), (Some(9), None));
    assert!(!read(json!({"type": "adaptive", "display": "omitted"})).unwrap().shown);
    for (bad, place) in [
        (json!({"type": "enabled", "budget_tokens": 2000}), "thinking.budget_tokens"),
        (json!({"type": "on"}), "thinking.type"),
        (json!({}), "thinking.type"),
        (json!({"type": "enabled", "display": "loud"}), "thinking.display"),
        (json!({"type": "enabled", "more": 1}), "thinking.more"),
    ] {
        assert_eq!(read(bad).err().unwrap().param.as_deref(), Some(place));
    }
}
