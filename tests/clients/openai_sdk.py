"""OpenAI's Python SDK, unmodified, against the server: python openai_sdk.py BASE_URL. Run by `cargo xtask clients`."""

import asyncio
import sys
import time
from typing import Literal

import openai
import pydantic

BASE = sys.argv[1]
CLIENT = openai.OpenAI(base_url=BASE + "/v1", api_key="unused", max_retries=0)
ASYNC = openai.AsyncOpenAI(base_url=BASE + "/v1", api_key="unused", max_retries=0)
USER = [{"role": "user", "content": "The waves"}]
MODEL = CLIENT.models.list().data[0].id


def chat(**options):
    return CLIENT.chat.completions.create(model=MODEL, messages=USER, **options)


def test_models():
    assert CLIENT.models.retrieve(MODEL).id == MODEL


def test_chat():
    answer = chat(max_tokens=8, temperature=0, extra_body={"ignore_eos": True})
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


def test_streaming_says_the_same():
    whole = chat(max_completion_tokens=12, seed=5)
    chunks = list(chat(max_completion_tokens=12, seed=5, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert ends[-1] == whole.choices[0].finish_reason and not any(ends[:-1])


def test_async_streaming_with_16_clients():
    async def one(seed):
        stream = await ASYNC.chat.completions.create(
            model=MODEL, messages=USER, max_tokens=24, seed=seed, stream=True, extra_body={"ignore_eos": True}
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them():
        return await asyncio.gather(*[one(seed) for seed in range(16)])

    texts = asyncio.run(all_of_them())
    for seed in (0, 7, 15):
        alone = chat(max_tokens=24, seed=seed, extra_body={"ignore_eos": True})
        assert texts[seed] == alone.choices[0].message.content, seed


def test_several_answers():
    answer = chat(max_tokens=8, n=3, seed=1, extra_body={"ignore_eos": True})
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2] and len(set(texts)) > 1
    streamed = ["", "", ""]
    for chunk in chat(max_tokens=8, n=3, seed=1, stream=True, extra_body={"ignore_eos": True}):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_seeds():
    first = chat(max_tokens=16)
    again = chat(max_tokens=16, seed=first.seed)
    assert again.choices[0].message.content == first.choices[0].message.content
    response = CLIENT.chat.completions.with_raw_response.create(model=MODEL, messages=USER, max_tokens=1)
    assert response.headers["x-exactness"] in ("sampling-exact", "bit-exact")
    assert response.headers["x-seed"] == str(response.parse().seed)


def test_log_probabilities():
    answer = chat(max_tokens=4, temperature=0, logprobs=True, top_logprobs=3, extra_body={"ignore_eos": True})
    content = answer.choices[0].logprobs.content
    assert len(content) == 4
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.bytes == token.top_logprobs[0].bytes and token.logprob <= 0
    stream = chat(
        max_tokens=4, temperature=0, logprobs=True, top_logprobs=3, stream=True, extra_body={"ignore_eos": True}
    )
    streamed = [token for chunk in stream if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    assert streamed == content
    old = CLIENT.completions.create(model=MODEL, prompt="The waves", max_tokens=2, logprobs=2, echo=True, temperature=0)
    lists = old.choices[0].logprobs
    assert lists.token_logprobs[0] is None and len(lists.tokens) == len(lists.token_logprobs) == len(lists.text_offset)
    assert old.choices[0].text.startswith("The waves")


def test_stop():
    options = dict(max_tokens=24, temperature=0, extra_body={"ignore_eos": True})
    whole = CLIENT.completions.create(model=MODEL, prompt="The keeper", **options).choices[0].text
    stop = whole[6:9]
    answer = CLIENT.completions.create(model=MODEL, prompt="The keeper", stop=[stop, "never said"], **options)
    assert answer.choices[0].text == whole.split(stop)[0] and answer.choices[0].finish_reason == "stop"
    stream = CLIENT.completions.create(model=MODEL, prompt="The keeper", stop=stop, stream=True, **options)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.split(stop)[0]


def test_prompts_in_every_form():
    options = dict(model=MODEL, max_tokens=4, temperature=0)
    one = CLIENT.completions.create(prompt=[5, 6, 7], **options).choices[0].text
    many = CLIENT.completions.create(prompt=[[5, 6, 7], [9, 30]], **options)
    assert many.choices[0].text == one and len(many.choices) == 2
    assert len(CLIENT.completions.create(prompt=["a", "b"], **options).choices) == 2


def test_embeddings():
    def embed(texts, **options):
        return CLIENT.embeddings.create(model=MODEL, input=texts, **options)

    # By default the SDK requests base64 and decodes it.
    answer = embed(["The waves", "The keeper"])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    assert [item.index for item in answer.data] == [0, 1]
    for item, text in zip(answer.data, ["The waves", "The keeper"]):
        assert abs(sum(value * value for value in item.embedding) - 1) < 1e-5
        alone = embed(text, encoding_format="float").data[0].embedding
        assert max(abs(a - b) for a, b in zip(alone, item.embedding, strict=True)) < 1e-5
    short = embed("The waves", dimensions=4).data[0].embedding
    whole = answer.data[0].embedding
    length = sum(value * value for value in whole[:4]) ** 0.5
    assert all(abs(value / length - kept) < 1e-5 for value, kept in zip(whole, short)) and len(short) == 4
    last = embed([[5, 6, 7]], extra_body={"pooling": "last"}).data[0].embedding
    assert last != embed([5, 6, 7]).data[0].embedding


class Weather(pydantic.BaseModel):
    sky: Literal["clear", "grey"]
    waves: Literal[1, 2, 3]
    is_cold: bool


def test_structured_output():
    options = {"model": MODEL, "messages": USER, "response_format": Weather, "temperature": 1}
    for seed in range(20):
        answer = CLIENT.chat.completions.parse(seed=seed, **options).choices[0]
        assert answer.finish_reason == "stop" and isinstance(answer.message.parsed, Weather)
        with CLIENT.chat.completions.stream(seed=seed, **options) as stream:
            kinds = {event.type for event in stream}
            streamed = stream.get_final_completion().choices[0]
        assert streamed.message.parsed == answer.message.parsed and "content.done" in kinds


def test_errors():
    def error(kind, call, param):
        try:
            call()
        except kind as caught:
            assert caught.body["param"] == param, caught.body
            return
        raise AssertionError(f"{param} was not refused")

    bad = openai.BadRequestError
    error(bad, lambda: chat(temperature=-1), "temperature")
    raw = CLIENT.chat.completions.with_raw_response.create(model=MODEL, messages=USER, max_tokens=2, extra_body={"frobnicate": 1})
    assert raw.headers["x-ignored-fields"] == "frobnicate", raw.headers
    error(bad, lambda: chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]), "tools")
    schema = {"name": "list", "schema": {"type": "array", "uniqueItems": True}}
    error(bad, lambda: chat(response_format={"type": "json_schema", "json_schema": schema}), "response_format.json_schema.schema")
    error(bad, lambda: chat(top_logprobs=30, logprobs=True), "top_logprobs")
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    message = [{"role": "user", "content": image}]
    create = CLIENT.chat.completions.create
    error(bad, lambda: create(model=MODEL, messages=message), "messages[0].content[0].image_url.url")
    error(bad, lambda: CLIENT.embeddings.create(model=MODEL, input="a", dimensions=10**6), "dimensions")
    error(openai.NotFoundError, lambda: create(model="nobody", messages=USER), "model")
    error(bad, lambda: CLIENT.completions.create(model=MODEL, prompt="waves " * 5000), "prompt")


def test_cancellation_in_mid_stream():
    import urllib.request

    def abandoned():
        page = urllib.request.urlopen(BASE + "/metrics").read().decode()
        lines = [line for line in page.splitlines() if line.startswith('mlx_generations_total{reason="abandoned"}')]
        return int(lines[0].split()[1]) if lines else 0

    before = abandoned()
    # A small model may finish before the client disconnects, so several clients disconnect at their first token.
    for _ in range(20):
        stream = chat(max_tokens=200, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
    limit = time.time() + 10
    while abandoned() == before and time.time() < limit:
        time.sleep(0.05)
    assert abandoned() > before
    assert chat(max_tokens=1).usage.completion_tokens == 1


if __name__ == "__main__":
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    for name, test in tests:
        test()
        print(f"{name[5:].replace('_', ' ')}: ok", flush=True)
    print(f"{len(tests)} tests with openai {openai.__version__} passed")
