"""OpenAI's Python SDK, unmodified, on the Responses API of the server on a scripted model: python openai_responses.py BASE_URL. Run by
`cargo xtask clients`, which sets MLX_SERVER. It starts a server of its own; BASE_URL is not used."""

import asyncio
from typing import Literal

import openai
import pydantic

from scripted_server import Server

CALL = '\n<tool_call>\n{"name": "tide_at", "arguments": {"place": "Brest"}}\n</tool_call>'
SCRIPT = [
    {"when": "'When is' in asked and results == 0", "say": ["<think>", "A table ", "helps.", "</think>", "I look it up.", CALL]},
    {"when": "'When is' in asked", "say": ["At ", "six."]},
    {"when": "'again' in asked and 'Hi' in said", "say": ["You ", "said ", "Hi."]},
    {"when": "true", "say": ["Hello ", "from ", "the ", "model."]},
]
MODEL = "scripted"
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"], "additionalProperties": False}
TOOL = {"type": "function", "name": "tide_at", "description": "High tide.", "parameters": PARAMETERS, "strict": True}
QUESTION = [{"role": "user", "content": "When is high tide?"}]


# An answer long enough to be cancelled. Its tokens would be drawn in the thoughts of others, so it has a model of its own.
LONG = [f"{number} " for number in range(1_500)]


def hello(**options):
    return {"model": MODEL, "input": "Hi", **options}


def test_create(client):
    response = client.responses.create(**hello(instructions="Be brief.", metadata={"a": "b"}))
    assert (response.output_text, response.status, response.error) == ("Hello from the model.", "completed", None)
    assert response.id.startswith("resp_") and response.output[0].id.startswith("msg_")
    assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})
    assert response.usage.output_tokens == 5 and response.usage.input_tokens + 5 == response.usage.total_tokens
    cut = client.responses.create(**hello(max_output_tokens=2))
    assert (cut.status, cut.incomplete_details.reason, cut.output_text) == ("incomplete", "max_output_tokens", "Hello from ")


OWN = {"id": None, "call_id": None, "parsed_arguments": None}


def said(response):
    """What a response consists of, without ids and what the SDK reads from it."""
    return [item.to_dict() | OWN | ({"content": [part.text for part in item.content]} if item.type != "function_call" else {}) for item in response.output]


def test_a_stream_says_the_same(client):
    asked = {"model": MODEL, "input": QUESTION, "tools": [TOOL]}
    whole = client.responses.create(**asked)
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
    events = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert said(events[-1].response) == said(whole)
    with client.responses.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_response()
    assert said(streamed) == said(whole)
    assert {"response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.done"} <= kinds, kinds


def tide(call):
    assert (call.name, call.arguments) == ("tide_at", '{"place": "Brest"}'), call
    return {"type": "function_call_output", "call_id": call.call_id, "output": "6:00"}


def test_a_loop_with_a_tool(client):
    messages = list(QUESTION)
    while True:
        with client.responses.stream(model=MODEL, input=messages, tools=[TOOL], store=False) as stream:
            for _ in stream:
                pass
            response = stream.get_final_response()
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            break
        messages += [*response.output, *(tide(call) for call in calls)]
    assert response.output_text == "At six." and len(messages) == 5
    assert response.usage.input_tokens_details.cached_tokens > 0


def test_a_stored_conversation(client):
    first = client.responses.create(model=MODEL, input=QUESTION, tools=[TOOL])
    second = client.responses.create(model=MODEL, previous_response_id=first.id, input=[tide(first.output[-1])], tools=[TOOL])
    assert (second.output_text, second.previous_response_id) == ("At six.", first.id)
    third = client.responses.create(**hello(previous_response_id=client.responses.create(**hello()).id, input="What did I say, again?"))
    assert third.output_text == "You said Hi."


def test_retrieve_and_delete(client):
    response = client.responses.create(**hello())
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()
    items = client.responses.input_items.list(response.id).data
    assert [(item.role, item.content[0].text) for item in items] == [("user", "Hi")]
    client.responses.delete(response.id)
    refused(openai.NotFoundError, lambda: client.responses.retrieve(response.id))
    hidden = client.responses.create(**hello(store=False))
    refused(openai.NotFoundError, lambda: client.responses.retrieve(hidden.id))


def test_follow(client):
    events = list(client.responses.create(**hello(stream=True)))
    followed = list(client.responses.retrieve(events[0].response.id, stream=True, starting_after=3))
    assert [event.to_dict() for event in followed] == [event.to_dict() for event in events[4:]]


def test_cancel(_):
    with Server([{"when": "true", "say": LONG}]) as server:
        client = client_of(server)
        stream = client.responses.create(**hello(stream=True))
        began = next(stream).response
        assert client.responses.cancel(began.id).status == "cancelled"
        list(stream)
        after = client.responses.retrieve(began.id)
        assert after.status == "cancelled" and len(after.output_text) < len("".join(LONG)), after
        ended = client.responses.create(**hello(max_output_tokens=1))
        assert client.responses.cancel(ended.id).status == "incomplete"


def test_async_clients_at_once(client):
    async def ask(base):
        async with openai.AsyncOpenAI(base_url=base, api_key="unused", max_retries=0) as other:

            async def one():
                async with other.responses.stream(**hello()) as stream:
                    async for _ in stream:
                        pass
                    return await stream.get_final_response()

            return await asyncio.gather(*[one() for _ in range(8)])

    responses = asyncio.run(ask(str(client.base_url)))
    assert {response.output_text for response in responses} == {"Hello from the model."}
    assert len({response.id for response in responses}) == 8


class Tide(pydantic.BaseModel):
    is_high: bool
    kind: Literal["spring", "neap"]


class Place(pydantic.BaseModel):
    """Where."""

    name: Literal["Brest", "Dover"]


def test_parse(client):
    response = client.responses.parse(**hello(text_format=Tide, max_output_tokens=400))
    assert isinstance(response.output_parsed, Tide), response
    with client.responses.stream(**hello(text_format=Tide, max_output_tokens=400)) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_response().output_parsed, Tide)
    forced = client.responses.parse(**hello(tools=[openai.pydantic_function_tool(Place)["function"] | {"type": "function"}], tool_choice="required", parallel_tool_calls=False, max_output_tokens=400))
    assert Place.model_validate(forced.output[-1].parsed_arguments), forced


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error.body
    raise AssertionError(f"{kind.__name__} was expected")


def test_errors(client):
    assert refused(openai.NotFoundError, lambda: client.responses.create(**hello(model="none")))["param"] == "model"
    assert refused(openai.BadRequestError, lambda: client.responses.create(**hello(temperature=-1)))["param"] == "temperature"
    assert refused(openai.BadRequestError, lambda: client.responses.create(**hello(background=True)))["param"] == "background"
    long = refused(openai.BadRequestError, lambda: client.responses.create(model=MODEL, input="9" * 140_000))
    assert long["code"] == "context_length_exceeded", long


def client_of(server):
    return openai.OpenAI(base_url=server.base + "/v1", api_key="unused", max_retries=0)


if __name__ == "__main__":
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    with Server(SCRIPT) as server:
        client = client_of(server)
        for name, test in tests:
            test(client)
            print(f"{name[5:].replace('_', ' ')}: ok", flush=True)
    print(f"{len(tests)} tests of responses with openai {openai.__version__} passed")
