"""`langchain-openai`, over chats and over responses."""

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from conftest import KEY, MODEL

ASK = [SystemMessage("Be brief"), HumanMessage("Once upon a time")]


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def model(server, request):
    return ChatOpenAI(
        model=MODEL,
        base_url=server.url + "/v1",
        api_key=KEY,
        temperature=0,
        max_tokens=16,
        max_retries=0,
        timeout=60,
        use_responses_api=request.param,
    )


def test_invoke(model):
    answer = model.invoke(ASK)
    assert answer.text and answer.usage_metadata["output_tokens"] == 16


def test_a_stream_is_the_whole(model):
    chunks = list(model.stream(ASK))
    assert len(chunks) > 2
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert total.text == model.invoke(ASK).text


def test_a_transcript_with_calls(model):
    call = {"name": "weather", "args": {"city": "Rome"}, "id": "c1"}
    messages = [*ASK, AIMessage("", tool_calls=[call]), ToolMessage("rain", tool_call_id="c1")]
    bound = model.bind_tools([weather])
    with_tools, without = bound.invoke(messages), model.invoke(messages)
    assert with_tools.usage_metadata["input_tokens"] > without.usage_metadata["input_tokens"]
    # What came out goes in again.
    assert bound.invoke([*messages, with_tools, HumanMessage("And?")]).usage_metadata["output_tokens"] == 16
