"""opencode, unmodified, against the server on scripted models: python opencode.py BASE_URL. Run by `cargo xtask clients`, which sets
MLX_SERVER and NODE_MODULES. It starts servers of its own; BASE_URL is not used."""

import json
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path

from scripted_server import Proxy, Server

SYSTEM = {"Linux": "linux", "Darwin": "darwin"}[platform.system()]
MACHINE = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}[platform.machine()]
OPENCODE = Path(os.environ["NODE_MODULES"]) / f"opencode-{SYSTEM}-{MACHINE}" / "bin/opencode"
PATH = "/v1/chat/completions"


def bash(command, description):
    arguments = {"command": command, "description": description}
    return "\n<tool_call>\n" + json.dumps({"name": "bash", "arguments": arguments}) + "\n</tool_call>"


SCRIPT = [
    {"when": "not tools", "say": ["Tides ", "and waves"]},
    {"when": "'one thing' in said and all == 0", "say": ["<think>", "A tide ", "table.", "</think>", "I look.", bash("echo ebb", "one")]},
    {"when": "'one thing' in said", "say": ["It says ", "ebb."]},
    {"when": "'two things' in said and all == 0", "say": ["Both.", bash("echo high", "two"), bash("echo low", "three")]},
    {"when": "'two things' in said", "say": ["High and ", "low."]},
    {"when": "true", "say": ["Hello ", "from ", "the ", "model."]},
]


class Person:
    """Asks opencode in a home and a project of its own."""

    def __init__(self, base):
        self.home = tempfile.TemporaryDirectory()
        self.project = Path(self.home.name) / "project"
        self.project.mkdir()
        options = {"baseURL": base + "/v1", "apiKey": "unused"}
        models = {"scripted": {"name": "scripted", "limit": {"context": 131072, "output": 4000}}}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "local", "options": options, "models": models}
        config = {"model": "local/scripted", "small_model": "local/scripted", "provider": {"local": provider}, "permission": {"bash": "allow"}}
        (self.project / "opencode.json").write_text(json.dumps(config))

    def ask(self, question, *flags):
        environment = {"PATH": "/usr/bin:/bin", "HOME": self.home.name, "TERM": "xterm", "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
        command = [OPENCODE, "run", *flags, question]
        done = subprocess.run(command, cwd=self.project, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def turns(proxy):
    """The counts of the answers to requests with tools."""
    counts = []
    asked = [body for body in proxy.posts(PATH) if body.get("tools")]
    texts = [whole.decode() for path, _, whole in proxy.answers if path == PATH]
    for text in texts:
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        counts += [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    # The title of a conversation is asked for with a short prompt of its own.
    return sorted(counts, key=lambda count: count["prompt_tokens"])[-len(asked) :]


def only_news_are_computed(proxy, most=1000):
    first, second = turns(proxy)[-2:]
    # The last token of a prompt is the state of the script.
    cached = second["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["prompt_tokens"] - 1 and second["prompt_tokens"] - cached < most, (first, second)


def results(proxy):
    """What came back of the tools, by the latest request with tools."""
    latest = [body for body in proxy.posts(PATH) if body.get("tools")][-1]
    return [message["content"].strip() for message in latest["messages"] if message["role"] == "tool"]


def test_text(person, proxy):
    assert "Hello from the model." in person.ask("Say something.")


def test_a_call(person, proxy):
    assert "It says ebb." in person.ask("Do one thing.")
    assert results(proxy) == ["ebb"], results(proxy)
    only_news_are_computed(proxy)
    history = [body for body in proxy.posts(PATH) if body.get("tools")][-1]["messages"]
    assert any(message.get("reasoning_content") == "A tide table." for message in history), history[-2:]


def test_parallel_calls(person, proxy):
    assert "High and low." in person.ask("Do two things.")
    assert results(proxy) == ["high", "low"], results(proxy)
    only_news_are_computed(proxy)


def test_a_conversation_goes_on(person, proxy):
    assert "Hello from the model." in person.ask("Say something.")
    assert "Hello from the model." in person.ask("And again.", "--continue")
    only_news_are_computed(proxy)


if __name__ == "__main__":
    with Server(SCRIPT) as server:
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                begin = time.monotonic()
                with Proxy(server.base) as proxy:
                    test(Person(proxy.base), proxy)
                print(f"opencode: {name[5:]}: {time.monotonic() - begin:.1f} s", flush=True)
