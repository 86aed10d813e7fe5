use serde_json::{Value as Json, json};

use super::*;

const CHATML: &str = "{% for message in messages %}\
    {% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}\
    {{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

const LLAMA3: &str = r#"{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{#- The system message comes out of the list. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"#;

const QWEN3: &str = r#"{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- content }}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"#;

const GEMMA: &str = r"{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = '' -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = 'model' -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else '') }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
";

fn render(source: &str, messages: Json) -> Result<String> {
    ChatTemplate::new(source)?.with_token("bos_token", "<bos>").render(&ChatInput::new(&messages))
}

/// The output of an expression.
fn eval(expression: &str) -> String {
    let source = format!("{{{{ {expression} }}}}");
    render(&source, json!([{"role": "user", "content": "hi"}])).unwrap()
}

fn weather() -> Json {
    json!([{"type": "function", "function": {
        "name": "weather", "description": "It's <b>now</b> & here",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": []},
    }}])
}

#[test]
fn chatml() {
    let messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]);
    let template = ChatTemplate::new(CHATML).unwrap();
    let mut input = ChatInput::new(&messages);
    let whole = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
                 <|im_start|>assistant\nYo<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(template.render(&input).unwrap(), whole);
    input.add_generation_prompt = false;
    let without = whole.strip_suffix("<|im_start|>assistant\n").unwrap();
    assert_eq!(template.render(&input).unwrap(), without);
}

#[test]
fn llama3_dates_tools_and_refusals() {
    let template = ChatTemplate::new(LLAMA3)
        .unwrap()
        .with_token("bos_token", "<|begin_of_text|>")
        .with_clock(|| 1_735_603_200);
    let messages = json!([
        {"role": "system", "content": " Be kind. "},
        {"role": "user", "content": "Hi "},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
    ]);
    let system = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n\
                  Today Date: 31 Dec 2024\n\n";
    let rest = "Be kind.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
                <|start_header_id|>assistant<|end_header_id|>\n\n\
                {\"name\": \"f\", \"parameters\": {\"a\": 1}}<|eot_id|>\
                <|start_header_id|>assistant<|end_header_id|>\n\n";
    assert_eq!(template.render(&ChatInput::new(&messages)).unwrap(), format!("{system}{rest}"));

    let tools = json!([{"name": "f", "required": ["a"], "none": []}]);
    let input = ChatInput { tools: Some(&tools), ..ChatInput::new(&messages) };
    let shown = "{\n    \"name\": \"f\",\n    \"required\": [\n        \"a\"\n    ],\n    \"none\": []\n}\n\n";
    assert_eq!(template.render(&input).unwrap(), format!("{system}{shown}{rest}"));

    let extra = json!({"date_string": "today"});
    let input = ChatInput { extra: extra.as_object(), ..ChatInput::new(&messages) };
    assert!(template.render(&input).unwrap().contains("Today Date: today\n"));

    let twice =
        json!([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [1, 2]}]);
    let error = template.render(&ChatInput::new(&twice)).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
    assert_eq!(
        error.to_string(),
        "chat template: This model only supports single tool-calls at once!"
    );
}

#[test]
fn qwen3_tools_and_thinking() {
    let template = ChatTemplate::new(QWEN3).unwrap();
    let messages = json!([
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "<think>\nlook\n</think>\n\nChecking",
         "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Genève"}}}]},
        {"role": "tool", "content": "no"},
        {"role": "tool", "content": "sun"},
    ]);
    let tools = weather();
    let extra = json!({"enable_thinking": false});
    let input =
        ChatInput { tools: Some(&tools), extra: extra.as_object(), ..ChatInput::new(&messages) };
    let wanted = "<|im_start|>system\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \
        \"weather\", \"description\": \"It's <b>now</b> & here\", \"parameters\": {\"type\": \
        \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}, \"required\": []}}}\n\
        </tools><|im_end|>\n<|im_start|>user\nRain?<|im_end|>\n<|im_start|>assistant\n<think>\n\
        look\n</think>\n\nChecking\n<tool_call>\n{\"name\": \"weather\", \"arguments\": \
        {\"city\": \"Genève\"}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nno\n\
        </tool_response>\n<tool_response>\nsun\n</tool_response><|im_end|>\n\
        <|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(template.render(&input).unwrap(), wanted);
    // An old turn loses its thoughts.
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>b</think>c"},
        {"role": "user", "content": "d"},
    ]);
    assert_eq!(
        template.render(&ChatInput::new(&messages)).unwrap(),
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n\
         <|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn gemma_alternates_and_takes_parts() {
    let messages = json!([
        {"role": "system", "content": [{"type": "text", "text": "S"}]},
        {"role": "user", "content": [{"type": "text", "text": " U "}, {"type": "image"}]},
        {"role": "assistant", "content": "A"},
    ]);
    assert_eq!(
        render(GEMMA, messages).unwrap(),
        "<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n\
         <start_of_turn>model\n"
    );
    let error = render(GEMMA, json!([{"role": "assistant", "content": "x"}])).unwrap_err();
    assert!(error.to_string().contains("must alternate"), "{error}");
}

#[test]
fn the_environment_is_pythons() {
    let cases = [
        ("true", "True"),
        ("none", "None"),
        ("undefined_name", ""),
        ("undefined_name is defined", "False"),
        ("messages[-1].content.upper()", "HI"),
        ("messages[:1] | length", "1"),
        ("' a b '.strip().split(' ') | length", "2"),
        ("'%s-%s' | format(1, 'x')", "1-x"),
        ("'{}-{}'.format(1, 'x')", "1-x"),
        ("{'b': 1, 'a': none}.items() | list | length", "2"),
        (
            "{'b': [1.5, 1.0, -3], 'a': none, 'é': true} | tojson",
            "{\"b\": [1.5, 1.0, -3], \"a\": null, \"é\": true}",
        ),
        ("{'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':'))", "{\"a\":2,\"b\":1}"),
        ("'é🙂\"\\\\\n<>&' | tojson(ensure_ascii=true)", "\"\\u00e9\\ud83d\\ude42\\\"\\\\\\n<>&\""),
        ("true | string ~ 1", "True1"),
        ("[1, 2] is sequence and {} is mapping and 'x' is string", "True"),
        (
            "'x' is sequence and {} is sequence and none is not sequence and 1 is not sequence",
            "True",
        ),
        ("none is iterable or 1 is iterable", "False"),
        ("[] is iterable and 'x' is iterable and {} is iterable", "True"),
        ("'a.b.c'.rsplit('.', 1) | tojson", "[\"a.b\", \"c\"]"),
        ("'a.b.c'.rsplit('.') | tojson", "[\"a\", \"b\", \"c\"]"),
        ("'a.b'.rsplit('.', maxsplit=0) | tojson", "[\"a.b\"]"),
        ("' a  b c '.rsplit(none, 1) | tojson", "[\"a  b\", \"c\"]"),
        ("' a  b '.rsplit() | tojson", "[\"a\", \"b\"]"),
        ("'éab'.index('b')", "2"),
        ("['a', 'b'].index('b')", "1"),
    ];
    for (expression, wanted) in cases {
        assert_eq!(eval(expression), wanted, "{expression}");
    }
    let looped = "{% for i in range(9) %}\n  {% if i == 1 %}{% continue %}{% endif %}\n  \
                  {% if i == 3 %}{% break %}{% endif %}\n{{ i }}\n{% endfor %}\n";
    assert_eq!(render(looped, json!([])).unwrap(), "0\n2\n", "trim_blocks and lstrip_blocks");
    let raw = "{% raw %}\n{{ a }}{% endraw %}\n.{% raw -%}\n b{% endraw %}";
    assert_eq!(render(raw, json!([])).unwrap(), "\n{{ a }}.b", "raw keeps the end of its line");
    for bad in ["'a'.rsplit('')", "'a'.rsplit(1)", "'a'.index('b')", "[1].index(2)", "[].append(1)"]
    {
        assert!(render(&format!("{{{{ {bad} }}}}"), json!([])).is_err(), "{bad}");
    }
    let marked = "{% for m in messages %}{%- generation -%} x {%- endgeneration %}{% endfor %}";
    assert_eq!(render(marked, json!([1, 2])).unwrap(), "xx");
}

#[test]
fn messages_come_as_templates_expect_them() {
    let dump = "{% for m in messages %}{{ m | tojson }}{% endfor %}";
    let cases = [
        (
            json!({"role": "a", "content": null, "tool_calls": [null]}),
            json!({"role": "a", "tool_calls": [null]}),
        ),
        (
            json!({"content": "", "reasoning": "r", "thinking": null}),
            json!({"thinking": "r", "content": "", "reasoning": "r", "reasoning_content": "r"}),
        ),
        (
            json!({"reasoning_content": "x", "thinking": "y"}),
            json!({"thinking": "y", "reasoning_content": "x"}),
        ),
        (json!("text"), json!("text")),
    ];
    for (message, wanted) in cases {
        let text = render(dump, json!([message])).unwrap();
        assert_eq!(serde_json::from_str::<Json>(&text).unwrap(), wanted);
    }
    assert_eq!(render("{{ messages }}", json!(null)).unwrap(), "None");
}

#[test]
fn config_forms() {
    let messages = json!([]);
    let read = |config: &Json| ChatTemplate::from_config(config);
    assert!(read(&json!({})).unwrap().is_none());
    let one = read(&json!({"chat_template": "{{ bos_token }}{{ eos_token }}",
        "bos_token": "<s>", "eos_token": {"content": "</s>"}}));
    assert_eq!(one.unwrap().unwrap().render(&ChatInput::new(&messages)).unwrap(), "<s></s>");
    let list = read(&json!({"chat_template": [
        {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"},
        {"name": "rag", "template": "{% broken"},
    ]}));
    let list = list.unwrap().unwrap();
    assert_eq!(list.render(&ChatInput::new(&messages)).unwrap(), "plain");
    let tools = weather();
    let input = ChatInput { tools: Some(&tools), ..ChatInput::new(&messages) };
    assert_eq!(list.render(&input).unwrap(), "tools");
    for bad in [json!(1), json!([1]), json!([{"name": "x", "template": "y"}]), json!("{% if %}")] {
        assert!(read(&json!({"chat_template": bad})).is_err(), "{bad}");
    }
    let extra = json!({"messages": []});
    let input = ChatInput { extra: extra.as_object(), ..ChatInput::new(&messages) };
    assert!(one_of("x").render(&input).is_err(), "extra may not replace the messages");
}

fn one_of(source: &str) -> ChatTemplate {
    ChatTemplate::new(source).unwrap()
}

/// Each of these would, unbounded, run for ever, eat all memory or overflow the stack.
#[test]
fn hostile_templates_end() {
    let grow = |step: &str| {
        format!(
            "{{% set ns = namespace(x=[], s='aaaaaaaa') %}}{{% for i in range(99999) %}}{{% set {step} %}}{{% endfor %}}{{{{ ns.x }}}}"
        )
    };
    let deep = "[".repeat(40) + "x" + &"]".repeat(40);
    let sources = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
        "{{ 'abc' * 100000000000 }}".to_owned(),
        "{{ ('a' * 100000).replace('', 'b' * 100000) }}".to_owned(),
        "{{ '{:1000000000}'.format(1) }}".to_owned(),
        "{{ '%1000000000d' | format(1) }}".to_owned(),
        "{{ range(100000) | join('a' * 100) }}".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(),
        "{% include 'default' %}".to_owned(),
        grow("ns.x = [ns.x]"),
        grow("ns.x = {'a': ns.x}"),
        grow("ns.x = namespace(y=ns.x)"),
        grow("ns.x = ns.items()"),
        grow("ns.s = ns.s + ns.s"),
        format!("{{{{ {}1 }}}}", "(".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(50_000)),
        "{% if true %}".repeat(20_000),
        "a".repeat(guard::MAX_SOURCE + 1),
    ];
    for source in sources {
        let result = render(&source, json!([]));
        assert!(result.is_err(), "{} -> {result:?}", &source[..source.len().min(80)]);
    }
    // As deep as the source is long: the stack holds it, whether or not the fuel does.
    let nested = |count: usize| {
        let sets = format!("{{% set x={deep} %}}").repeat(count);
        render(&format!("{{% set x=[] %}}{sets}{{{{ x }}}}"), json!([]))
    };
    assert!(nested(800).unwrap().len() > 64_000);
    assert_eq!(nested(2_500).unwrap_err().kind(), Kind::Limit);
    let elifs = format!("{{% if a %}}{}{{% endif %}}", "{%elif b%}".repeat(25_000));
    assert_eq!(render(&elifs, json!([])).unwrap(), "");
    let selves = "{% set a = namespace() %}{% set a.a = a %}{% set b = namespace() %}\
                  {% set b.a = b %}{{ a == b }}{{ a }}{{ b | tojson }}";
    render(selves, json!([])).unwrap();
}
