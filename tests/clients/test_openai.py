"""The `openai` package: chats, completions, responses, models, errors."""

import openai
import pytest

from conftest import KEY, MODEL

ASK = [{"role": "user", "content": "Once upon a time"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS}}
FLAT_TOOL = {"type": "function", "name": "weather", "description": "d", "parameters": PARAMETERS, "strict": True}
# A call and what it came to.
TRANSCRIPT = [
    *ASK,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
]
ITEMS = [
    *ASK,
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
]


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def test_models(client):
    models = list(client.models.list())
    assert [model.id for model in models] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "longrun"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_a_chat_streamed_is_the_whole(client):
    given = dict(model=MODEL, messages=ASK, max_tokens=24, temperature=1.1, seed=3)
    whole = client.chat.completions.create(**given)
    choice = whole.choices[0]
    assert choice.finish_reason == "length" and choice.message.content
    assert whole.usage.completion_tokens == 24
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 24
    chunks = list(client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == choice.message.content
    assert chunks[-1].usage.completion_tokens == 24
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    # The stream's helper takes a cut answer for an error, so this one ends at a stop string.
    stop = text[5:7]
    with client.chat.completions.stream(**given, stop=stop) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text[: text.index(stop)]
    assert client.chat.completions.create(**given).choices[0].message.content == choice.message.content


def test_several_choices(client):
    given = dict(model=MODEL, messages=ASK, max_tokens=8, temperature=1.5, n=3)
    one, two = (client.chat.completions.create(**given, seed=4) for _ in range(2))
    texts = [[choice.message.content for choice in answer.choices] for answer in (one, two)]
    assert texts[0] == texts[1] and len(set(texts[0])) == 3
    assert one.usage.completion_tokens == 24


def test_log_probabilities(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 5
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert token.logprob == token.top_logprobs[0].logprob <= 0


def test_a_transcript_with_calls(client):
    with_tools = client.chat.completions.create(model=MODEL, messages=TRANSCRIPT, tools=[TOOL], max_tokens=4)
    without = client.chat.completions.create(model=MODEL, messages=TRANSCRIPT, max_tokens=4)
    assert with_tools.usage.prompt_tokens > without.usage.prompt_tokens


def test_completions(client):
    given = dict(model=MODEL, prompt="Once upon", max_tokens=12, temperature=0)
    whole = client.completions.create(**given, logprobs=2)
    assert len(whole.choices[0].logprobs.tokens) == 12
    chunks = list(client.completions.create(**given, stream=True))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    two = client.completions.create(**{**given, "prompt": ["Once upon", "There was"]})
    assert [choice.index for choice in two.choices] == [0, 1]
    assert two.choices[0].text == whole.choices[0].text


def test_a_response_streamed_is_the_whole(client):
    given = dict(model=MODEL, input="Once upon a time", max_output_tokens=24, temperature=0)
    whole = client.responses.create(**given, instructions="Be brief")
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"
    assert whole.output_text and whole.usage.output_tokens == 24
    assert whole.instructions == "Be brief"
    events = list(client.responses.create(**given, instructions="Be brief", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    with client.responses.stream(**given, instructions="Be brief") as stream:
        for event in stream:
            last = event
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text


def test_a_response_of_items(client):
    response = client.responses.create(
        model=MODEL,
        input=ITEMS,
        tools=[FLAT_TOOL],
        max_output_tokens=6,
        top_logprobs=2,
        include=["message.output_text.logprobs"],
    )
    assert response.tools[0].name == "weather"
    # What came out goes in again.
    again = [*ITEMS, *(item.model_dump(exclude_none=True) for item in response.output), *ASK]
    client.responses.create(model=MODEL, input=again, max_output_tokens=2)


def test_reasoning_has_items_of_its_own(client):
    # The token that ends reasoning is made likely: it comes soon, at a place that the seed decides.
    bias = {"logit_bias": {"259": 2}, "seed": 1}
    given = dict(model=MODEL, input="Hm", max_output_tokens=64, temperature=1, reasoning={"effort": "high"})
    whole = client.responses.create(**given, extra_body=bias)
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert 0 < whole.usage.output_tokens_details.reasoning_tokens < 64
    events = list(client.responses.create(**given, extra_body=bias, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert text == whole.output[0].content[0].text
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hm"}],
        max_tokens=64,
        temperature=1,
        reasoning_effort="high",
        extra_body=bias,
    )
    assert chat.choices[0].message.reasoning_content == text
    assert chat.choices[0].message.content == whole.output_text


def test_errors_are_typed(client, server):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=ASK, temperature="hot")
    assert error.value.param == "temperature" and error.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=100_000)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
    assert error.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-4", messages=ASK)
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=server.url + "/v1", api_key="wrong").models.list()


def test_a_full_server_says_so(client):
    given = dict(model=MODEL, messages=ASK, max_tokens=3000, stream=True, extra_body={"ignore_eos": True})
    with client.chat.completions.create(**given) as one, client.chat.completions.create(**given) as two:
        next(iter(one)), next(iter(two))
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1)


@pytest.mark.parametrize("kind", ["chat", "completions", "responses"])
def test_closing_a_stream_ends_its_row(client, server, kind):
    body = {"ignore_eos": True}
    streams = {
        "chat": lambda: client.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=3000, stream=True, extra_body=body
        ),
        "completions": lambda: client.completions.create(
            model=MODEL, prompt="Once", max_tokens=3000, stream=True, extra_body=body
        ),
        "responses": lambda: client.responses.create(
            model=MODEL, input="Once", max_output_tokens=3000, stream=True, extra_body=body
        ),
    }
    before = server.metric('longrun_requests_total{model="tiny",outcome="cancelled"}')
    stream = streams[kind]()
    for _ in range(8):
        next(stream)
    assert server.metric("longrun_rows_running") == 1
    stream.close()
    server.wait_until_idle()
    assert server.metric('longrun_requests_total{model="tiny",outcome="cancelled"}') == before + 1
