"""Anthropic's Python SDK, unmodified, against the server on a scripted model: python anthropic_sdk.py BASE_URL. Run by `cargo xtask
clients`, which sets MLX_SERVER. It starts a server of its own; BASE_URL is not used."""

import asyncio
import json
from typing import Literal

import anthropic
import pydantic

from scripted_server import Server

CALL = '\n<tool_call>\n{"name": "tide_at", "arguments": {"place": "Brest"}}\n</tool_call>'
SCRIPT = [
    {"when": "'When is' in said and all == 0", "say": ["<think>", "A table ", "helps.", "</think>", "I look it up.", CALL]},
    {"when": "'When is' in said", "say": ["At ", "six."]},
    {"when": "'Count' in said", "say": ["one ", "two ", "three"]},
    {"when": "true", "say": ["Hello ", "from ", "the ", "model."]},
]
MODEL = "scripted"
TOOL = {"name": "tide_at", "description": "High tide.", "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}}}
QUESTION = [{"role": "user", "content": "When is high tide?"}]


def text(message):
    return "".join(block.text for block in message.content if block.type == "text")


def hello(**options):
    return {"model": MODEL, "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}], **options}


def test_messages(client):
    message = client.messages.create(**hello(system="Be brief.", metadata={"user_id": "someone"}))
    assert (message.role, message.type, message.stop_reason) == ("assistant", "message", "end_turn")
    assert text(message) == "Hello from the model." and message.content[0].type == "text"
    assert message.usage.output_tokens == 5 and message.usage.input_tokens > 0
    assert client.messages.create(**hello(max_tokens=2)).stop_reason == "max_tokens"
    stopped = client.messages.create(**hello(stop_sequences=["the model"]))
    assert (stopped.stop_reason, stopped.stop_sequence, text(stopped)) == ("stop_sequence", "the model", "Hello from ")


def test_a_stream_says_the_same(client):
    whole = client.messages.create(model=MODEL, max_tokens=50, messages=QUESTION, tools=[TOOL], thinking={"type": "adaptive"})
    with client.messages.stream(model=MODEL, max_tokens=50, messages=QUESTION, tools=[TOOL], thinking={"type": "adaptive"}) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    blocks = lambda message: [block.to_dict() | {"id": None} for block in message.content]
    assert [block["type"] for block in blocks(whole)] == ["thinking", "text", "tool_use"]
    assert blocks(streamed) == blocks(whole)
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_text_stream(client):
    with client.messages.stream(**hello()) as stream:
        assert "".join(stream.text_stream) == "Hello from the model."


def test_async_clients_at_once(client):
    async def ask(base):
        async with anthropic.AsyncAnthropic(base_url=base, api_key="unused", max_retries=0) as other:
            one = lambda: other.messages.create(model=MODEL, max_tokens=50, messages=[{"role": "user", "content": "Count"}])
            return await asyncio.gather(*[one() for _ in range(8)])

    messages = asyncio.run(ask(str(client.base_url)))
    assert {text(message) for message in messages} == {"one two three"}
    assert len({message.id for message in messages}) == 8


def test_a_conversation_with_a_tool(client):
    messages = list(QUESTION)
    first = client.messages.create(model=MODEL, max_tokens=50, messages=messages, tools=[TOOL])
    call = first.content[-1]
    assert (first.stop_reason, call.name, call.input) == ("tool_use", "tide_at", {"place": "Brest"})
    messages += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "6:00"}]},
    ]
    second = client.messages.create(model=MODEL, max_tokens=50, messages=messages, tools=[TOOL])
    assert (text(second), second.stop_reason) == ("At six.", "end_turn")
    # The last token of a prompt is the state of the script.
    assert second.usage.cache_read_input_tokens >= first.usage.input_tokens + first.usage.cache_read_input_tokens - 1
    counted = client.messages.count_tokens(model=MODEL, messages=messages, tools=[TOOL])
    assert counted.input_tokens == second.usage.input_tokens + second.usage.cache_read_input_tokens


def test_tool_runner(client):
    places = []

    @anthropic.beta_tool
    def tide_at(place: str) -> str:
        """High tide.

        Args:
            place: Where.
        """
        places.append(place)
        return "6:00"

    runner = client.beta.messages.tool_runner(model=MODEL, max_tokens=50, messages=QUESTION, tools=[tide_at])
    assert text(runner.until_done()) == "At six." and places == ["Brest"]


def test_withheld_thoughts(client):
    thinking = {"type": "adaptive", "display": "omitted"}
    message = client.messages.create(model=MODEL, max_tokens=50, messages=QUESTION, tools=[TOOL], thinking=thinking)
    block = message.content[0]
    assert (block.type, block.thinking) == ("thinking", "") and block.signature
    assert message.usage.output_tokens_details.thinking_tokens == 4


class Tide(pydantic.BaseModel):
    is_high: bool
    kind: Literal["spring", "neap"]


def test_parse(client):
    # A random draw could think, or write spaces, until the limit.
    message = client.messages.parse(**hello(max_tokens=4000, output_format=Tide, thinking={"type": "disabled"}))
    assert isinstance(message.parsed_output, Tide), message
    # The SDK leaves limits of numbers out of its schemas; here they hold.
    hour = {"type": "object", "properties": {"hour": {"type": "integer", "minimum": 0, "maximum": 23}}, "required": ["hour"], "additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": hour}}
    message = client.messages.create(**hello(max_tokens=4000, output_config=config, thinking={"type": "disabled"}))
    assert 0 <= json.loads(text(message))["hour"] <= 23, message


def test_forced_calls(client):
    choice = {"type": "tool", "name": "tide_at", "disable_parallel_tool_use": True}
    # Within the grammar the model draws at random, so the arguments are bounded.
    place = {"type": "object", "properties": {"place": {"enum": ["Brest", "Roscoff"]}}, "required": ["place"], "additionalProperties": False}
    tool = {**TOOL, "input_schema": place, "strict": True}
    message = client.messages.create(**hello(max_tokens=4000, tools=[tool], tool_choice=choice, thinking={"type": "disabled"}))
    call = message.content[-1]
    assert (call.name, message.stop_reason) == ("tide_at", "tool_use") and call.input["place"] in ("Brest", "Roscoff"), message


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error.body
    raise AssertionError(f"{kind.__name__} was expected")


def test_errors(client):
    body = refused(anthropic.NotFoundError, lambda: client.messages.create(**hello(model="none")))
    assert body["error"]["type"] == "not_found_error" and body["request_id"]
    body = refused(anthropic.BadRequestError, lambda: client.messages.create(**hello(extra_body={"temperature": -1})))
    assert body["error"]["type"] == "invalid_request_error" and "temperature" in body["error"]["message"]
    long = [{"role": "user", "content": "9" * 140_000}]
    body = refused(anthropic.BadRequestError, lambda: client.messages.create(**hello(messages=long)))
    assert body["error"]["message"].startswith("prompt is too long: "), body


if __name__ == "__main__":
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    with Server(SCRIPT) as server:
        client = anthropic.Anthropic(base_url=server.base, api_key="unused", max_retries=0)
        for name, test in tests:
            test(client)
            print(f"{name[5:].replace('_', ' ')}: ok", flush=True)
    print(f"{len(tests)} tests with anthropic {anthropic.__version__} passed")
