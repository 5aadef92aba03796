"""Ollama's Python library, unmodified, against the server on a scripted model: python ollama_sdk.py BASE_URL. Run by `cargo xtask clients`,
which sets MLX_SERVER. It starts a server of its own; BASE_URL is not used."""

import asyncio
import hashlib
import importlib.metadata
import json
import os
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import ollama
import pydantic

from scripted_server import Server

CALL = '\n<tool_call>\n{"name": "tide_at", "arguments": {"place": "Brest"}}\n</tool_call>'
SCRIPT = [
    {"when": "'When is' in asked and results == 0", "say": ["<think>", "A table ", "helps.", "</think>", "I look it up.", CALL]},
    {"when": "'When is' in asked", "say": ["At ", "six."]},
    {"when": "true", "say": ["Hello ", "from ", "the ", "model."]},
]
MODEL = "scripted"
HI = [{"role": "user", "content": "Hi"}]
QUESTION = [{"role": "user", "content": "When is high tide?"}]


def tide_at(place: str) -> str:
    """High tide.

    Args:
      place: Where.
    """
    return f"6:00 in {place}"


def test_chat(client):
    answer = client.chat(MODEL, HI)
    assert (answer.message.role, answer.message.content, answer.done, answer.done_reason) == ("assistant", "Hello from the model.", True, "stop")
    assert answer.eval_count == 5 and answer.prompt_eval_count > 0 and answer.total_duration > 0
    cut = client.chat(MODEL + ":latest", HI, options={"num_predict": 2, "num_ctx": 4096}, keep_alive="5m")
    assert (cut.message.content, cut.done_reason) == ("Hello from ", "length")
    stopped = client.chat(MODEL, HI, options=ollama.Options(stop=["the model"], temperature=0.5, seed=7))
    assert stopped.message.content == "Hello from "


def test_a_stream_says_the_same(client):
    whole = client.chat(MODEL, QUESTION, tools=[tide_at])
    parts = list(client.chat(MODEL, QUESTION, tools=[tide_at], stream=True))
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (whole.message.thinking, whole.message.content) == ("A table helps.", "I look it up.")
    assert "".join(part.message.thinking or "" for part in parts) == whole.message.thinking
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    calls = [call for part in parts for call in part.message.tool_calls or []]
    assert calls == whole.message.tool_calls and len(calls) == 1
    assert (calls[0].function.name, calls[0].function.arguments) == ("tide_at", {"place": "Brest"})


def test_a_conversation_with_a_tool(client):
    messages = list(QUESTION)
    first = client.chat(MODEL, messages, tools=[tide_at])
    messages.append(first.message)
    for call in first.message.tool_calls:
        messages.append({"role": "tool", "tool_name": call.function.name, "content": tide_at(**call.function.arguments)})
    assert client.chat(MODEL, messages, tools=[tide_at]).message.content == "At six."


def test_generate(client):
    answer = client.generate(MODEL, "Hi", system="Be brief.")
    assert (answer.response, answer.done, answer.done_reason, answer.eval_count) == ("Hello from the model.", True, "stop", 5)
    parts = list(client.generate(MODEL, "Hi", stream=True))
    assert "".join(part.response for part in parts) == answer.response and parts[-1].done_reason == "stop"


class Tide(pydantic.BaseModel, extra="forbid"):
    is_high: bool


def test_formats(client):
    # Within the grammar the model draws at random; some of its thoughts go on until the limit.
    options = [{"num_predict": 400, "seed": seed} for seed in range(12)]
    schema = Tide.model_json_schema()
    chats = [client.chat(MODEL, HI, format=schema, options=it) for it in options]
    texts = [client.generate(MODEL, "Hi", format=schema, options=it) for it in options]
    for answers, text in [(chats, lambda it: it.message.content), (texts, lambda it: it.response)]:
        ended = [answer for answer in answers if answer.done_reason == "stop"]
        assert ended, [answer.done_reason for answer in answers]
        for answer in ended:
            Tide.model_validate_json(text(answer))


def test_embed(client):
    # Only words of the script have a vector.
    vectors = client.embed(MODEL, ["A table helps.", "At six."]).embeddings
    assert len(vectors) == 2 and all(abs(sum(number * number for number in vector) - 1) < 1e-4 for vector in vectors)
    assert len(client.embed(MODEL, "A table helps.", dimensions=4).embeddings[0]) == 4


def test_models(client):
    listed = client.list().models[0]
    assert (listed.model, listed.details.format) == (MODEL, "safetensors") and listed.size > 0
    shown = client.show(MODEL)
    assert set(shown.capabilities) == {"completion", "tools", "thinking"}
    assert shown.modelinfo["llama.context_length"] == 131072
    client.chat(MODEL, HI)
    running = client.ps().models[0]
    assert (running.model, running.context_length) == (MODEL, 131072) and running.size > 0


def test_async_clients_at_once(client):
    async def ask(base):
        other = ollama.AsyncClient(host=base)

        async def one():
            return "".join([part.message.content async for part in await other.chat(MODEL, HI, stream=True)])

        return await asyncio.gather(*[one() for _ in range(8)], other.chat(MODEL, QUESTION, tools=[tide_at]))

    *texts, called = asyncio.run(ask(str(client._client.base_url)))
    assert set(texts) == {"Hello from the model."} and len(texts) == 8
    assert called.message.tool_calls[0].function.name == "tide_at"


def refused(status, call):
    try:
        call()
    except ollama.ResponseError as error:
        assert error.status_code == status, (error.status_code, error.error)
        return error.error
    raise AssertionError(f"a {status} was expected")


def test_errors(client):
    assert "none" in refused(404, lambda: client.chat("none", HI))
    assert "options.temperature" in refused(400, lambda: client.chat(MODEL, HI, options={"temperature": -1}))
    assert "mirostat" in refused(400, lambda: list(client.chat(MODEL, HI, options={"mirostat": 1}, stream=True)))
    refused(501, lambda: client.pull("some-model"))


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def hub_of(folder):
    """A Hub with one model, org/tiny, which has the files of a folder."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    siblings = [
        {"rfilename": name, "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}} for name, data in files.items()
    ]

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            path = self.path.split("?")[0]
            if path.startswith("/api/models/org/tiny/"):
                body = json.dumps({"sha": COMMIT, "siblings": siblings}).encode()
            else:
                body = files.get(path.removeprefix(f"/org/tiny/resolve/{COMMIT}/"))
            self.send_response(404 if body is None else 200)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def test_pull(_):
    with tempfile.TemporaryDirectory() as home, Server(SCRIPT) as other:
        hub = hub_of(Path(other.folder.name) / "model")
        os.environ.update(HF_ENDPOINT=f"http://127.0.0.1:{hub.server_port}", HF_HOME=home, HF_HUB_CACHE="", no_proxy="*")
        with Server(SCRIPT, flags=["--allow-pull"]) as server:
            client = ollama.Client(host=server.base)
            parts = list(client.pull("org/tiny", stream=True))
            assert (parts[0].status, parts[-1].status) == ("pulling manifest", "success")
            assert parts[-2].completed == parts[-2].total > 0 and parts[-2].digest == "sha1:" + COMMIT
            assert client.pull("org/tiny").status == "success"
            assert client.chat("org/tiny", HI).message.content == "Hello from the model."
            refused(502, lambda: client.pull("org/none"))
            try:
                list(client.pull("org/none", stream=True))
            except ollama.ResponseError as error:
                assert "no model of that name" in error.error
            else:
                raise AssertionError("an error was expected")
        hub.shutdown()


if __name__ == "__main__":
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    with Server(SCRIPT) as server:
        client = ollama.Client(host=server.base)
        for name, test in tests:
            test(client)
            print(f"{name[5:].replace('_', ' ')}: ok", flush=True)
    print(f"{len(tests)} tests with ollama {importlib.metadata.version('ollama')} passed")
