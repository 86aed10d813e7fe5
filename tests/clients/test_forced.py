"""Calls and forms that a request insists on: the only ones that a random model makes.

Nothing but a limit ends what a random model thinks, and its JSON has as much white space as it may have.
"""

import json

import anthropic
import openai
import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

import test_anthropic
import test_langchain
import test_openai
from conftest import KEY, MODEL

CITIES = {"Paris", "Rome"}
SCHEMA = test_openai.PARAMETERS
ROOM = 1000
BUDGET = {"reasoning_budget": 4}
THINKING = {"type": "enabled", "budget_tokens": 4}


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def test_a_chat_calls(client):
    given = dict(
        model=MODEL,
        messages=test_openai.ASK,
        tools=[test_openai.TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=ROOM,
        temperature=0,
        extra_body=BUDGET,
    )
    choice = client.chat.completions.create(**given).choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in CITIES
    with client.chat.completions.stream(**given) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls[0].function.arguments == call.function.arguments
    # What came out goes in again, with what it came to.
    messages = [*given["messages"], choice.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4)


def test_a_response_calls(client):
    named = {"type": "function", "name": "weather"}
    for choice in ("required", named):
        given = dict(
            model=MODEL,
            input="Hm",
            tools=[test_openai.FLAT_TOOL],
            tool_choice=choice,
            parallel_tool_calls=False,
            max_output_tokens=ROOM,
            temperature=0,
            extra_body=BUDGET,
        )
        whole = client.responses.create(**given)
        assert whole.status == "completed"
        [call] = [item for item in whole.output if item.type == "function_call"]
        assert call.name == "weather" and json.loads(call.arguments)["city"] in CITIES
        events = list(client.responses.create(**given, stream=True))
        text = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
        assert text == call.arguments
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        client.responses.create(model=MODEL, input=["Hm", *whole.output, result][1:], max_output_tokens=4)


def test_a_message_calls(claude):
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        choice = {**choice, "disable_parallel_tool_use": True}
        given = dict(
            model=MODEL,
            messages=test_anthropic.ASK,
            tools=[test_anthropic.TOOL],
            tool_choice=choice,
            max_tokens=ROOM,
            thinking=THINKING,
            extra_body={"temperature": 0},
        )
        whole = claude.messages.create(**given)
        assert whole.stop_reason == "tool_use"
        call = [block for block in whole.content if block.type == "tool_use"][0]
        assert call.name == "weather" and call.input["city"] in CITIES
        with claude.messages.stream(**given) as stream:
            final = stream.get_final_message()
        assert final.stop_reason == "tool_use"
        assert [b.input for b in final.content if b.type == "tool_use"][0] == call.input
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        messages = [
            *test_anthropic.ASK,
            {"role": "assistant", "content": whole.content[: whole.content.index(call) + 1]},
            {"role": "user", "content": [result]},
        ]
        claude.messages.create(model=MODEL, messages=messages, max_tokens=4)


def test_a_chat_has_a_form(client):
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(
        model=MODEL, messages=test_openai.ASK, response_format=form, max_tokens=ROOM, temperature=0, extra_body=BUDGET
    )
    assert json.loads(answer.choices[0].message.content)["city"] in CITIES


def test_a_response_has_a_form(client):
    form = {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}}
    answer = client.responses.create(
        model=MODEL, input="Hm", text=form, max_output_tokens=ROOM, temperature=0, extra_body=BUDGET
    )
    assert json.loads(answer.output_text)["city"] in CITIES


def test_a_message_has_a_form(claude):
    answer = claude.messages.create(
        model=MODEL,
        messages=test_anthropic.ASK,
        max_tokens=ROOM,
        thinking=THINKING,
        extra_body={"temperature": 0},
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    assert json.loads(answer.content[-1].text)["city"] in CITIES


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_langchain_calls_and_has_a_form(server, responses):
    model = ChatOpenAI(
        model=MODEL,
        base_url=server.url + "/v1",
        api_key=KEY,
        temperature=0,
        max_tokens=ROOM,
        max_retries=0,
        timeout=60,
        use_responses_api=responses,
        extra_body=BUDGET,
    )
    bound = model.bind_tools([test_langchain.weather], tool_choice="weather", parallel_tool_calls=False)
    # A city is any text here: a random model may not come to its end.
    given = {"logit_bias": {"34": 5}} if not responses else {}
    answer = bound.invoke([HumanMessage("Hm")], **given)
    assert (answer.tool_calls or answer.invalid_tool_calls)[0]["name"] == "weather"
    shaped = model.with_structured_output({"title": "City", **SCHEMA}, method="json_schema")
    assert shaped.invoke([HumanMessage("Hm")])["city"] in CITIES
