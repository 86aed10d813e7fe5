"""The `anthropic` package: messages, streams, counts, errors."""

import anthropic
import pytest

from conftest import KEY, MODEL

ASK = [{"role": "user", "content": "Once upon a time"}]
TOOL = {
    "name": "weather",
    "description": "d",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TRANSCRIPT = [
    *ASK,
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me see"},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]},
            {"type": "text", "text": "And now?"},
        ],
    },
]


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def total(usage):
    return usage.input_tokens + usage.cache_read_input_tokens


def told(message):
    """What blocks say; helpers put more into them."""
    return [(block.type, getattr(block, "thinking", None) or block.text) for block in message.content]


def test_a_message_streamed_is_the_whole(client):
    given = dict(model=MODEL, messages=ASK, max_tokens=24, system="Be brief", extra_body={"temperature": 0})
    whole = client.messages.create(**given)
    assert (whole.role, whole.stop_reason, whole.usage.output_tokens) == ("assistant", "max_tokens", 24)
    with client.messages.stream(**given) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert told(final) == told(whole) and final.stop_reason == whole.stop_reason
    assert total(final.usage) == total(whole.usage)
    events = list(client.messages.create(**given, stream=True))
    assert events[0].type == "message_start" and events[-1].type == "message_stop"


def test_stop_sequences(client):
    given = dict(model=MODEL, messages=ASK, max_tokens=24, extra_body={"temperature": 0})
    text = client.messages.create(**given).content[0].text
    stop = text[4:6]
    message = client.messages.create(**given, stop_sequences=[stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == text[: text.index(stop)]


def test_thinking_has_blocks_of_its_own(client):
    # The token that ends reasoning is made likely: it comes soon, at a place that the seed decides.
    given = dict(
        model=MODEL,
        messages=[{"role": "user", "content": "Hm"}],
        max_tokens=64,
        thinking={"type": "enabled", "budget_tokens": 32},
        extra_body={"logit_bias": {"259": 2}, "seed": 1, "temperature": 1},
    )
    whole = client.messages.create(**given)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert whole.content[0].thinking and whole.content[0].signature
    with client.messages.stream(**given) as stream:
        assert told(stream.get_final_message()) == told(whole)
    # What came out goes in again.
    again = [*given["messages"], {"role": "assistant", "content": whole.content}, *ASK]
    client.messages.create(model=MODEL, messages=again, max_tokens=2)


def test_a_transcript_with_calls(client):
    message = client.messages.create(model=MODEL, messages=TRANSCRIPT, tools=[TOOL], max_tokens=4)
    assert message.usage.output_tokens == 4
    count = lambda **more: client.messages.count_tokens(model=MODEL, messages=TRANSCRIPT, **more).input_tokens
    assert count(tools=[TOOL]) == total(message.usage) > count()
    assert count(tools=[TOOL], tool_choice={"type": "none"}) == count(tools=[TOOL])


def test_errors_are_typed(client, server):
    with pytest.raises(anthropic.BadRequestError) as error:
        client.messages.create(model=MODEL, messages=ASK, max_tokens=5, extra_body={"temperature": "hot"})
    assert error.value.type == "invalid_request_error" and error.value.request_id
    with pytest.raises(anthropic.NotFoundError) as error:
        client.messages.create(model="claude", messages=ASK, max_tokens=5)
    assert error.value.type == "not_found_error"
    with pytest.raises(anthropic.AuthenticationError) as error:
        wrong = anthropic.Anthropic(base_url=server.url, api_key="wrong")
        wrong.messages.create(model=MODEL, messages=ASK, max_tokens=5)
    assert error.value.type == "authentication_error"
    with pytest.raises(anthropic.BadRequestError) as error:
        image = {"type": "image", "source": {"type": "url", "url": "http://localhost"}}
        client.messages.create(model=MODEL, messages=[{"role": "user", "content": [image]}], max_tokens=5)
    assert "messages[0].content[0]" in error.value.api_message


def test_a_full_server_says_so(client):
    given = dict(model=MODEL, messages=ASK, max_tokens=3000, extra_body={"ignore_eos": True})
    with client.messages.stream(**given) as one, client.messages.stream(**given) as two:
        next(iter(one)), next(iter(two))
        with pytest.raises(anthropic.RateLimitError) as error:
            client.messages.create(model=MODEL, messages=ASK, max_tokens=1)
        assert error.value.type == "rate_limit_error"


def test_closing_a_stream_ends_its_row(client, server):
    given = dict(model=MODEL, messages=ASK, max_tokens=3000, extra_body={"ignore_eos": True})
    with client.messages.stream(**given) as stream:
        for _, _ in zip(range(8), stream):
            pass
        assert server.metric("longrun_rows_running") == 1
    server.wait_until_idle()
