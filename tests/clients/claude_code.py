"""Claude Code, unmodified, against the server on scripted models: python claude_code.py BASE_URL. Run by `cargo xtask clients`, which
sets MLX_SERVER and NODE_MODULES. It starts servers of its own; BASE_URL is not used."""

import json
import os
import platform
import random
import subprocess
import tempfile
import time
from pathlib import Path

from scripted_server import Proxy, Server

PACKAGES = Path(os.environ["NODE_MODULES"]) / "@anthropic-ai"
SYSTEM = {"Linux": "linux", "Darwin": "darwin"}[platform.system()]
MACHINE = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}[platform.machine()]
CLAUDE = PACKAGES / f"claude-code-{SYSTEM}-{MACHINE}" / "claude"
PATH = "/v1/messages"


def bash(command, description):
    arguments = {"command": command, "description": description}
    return "\n<tool_call>\n" + json.dumps({"name": "Bash", "arguments": arguments}) + "\n</tool_call>"


SCRIPT = [
    {"when": "'TEXT ONLY' in asked", "say": ["<analysis>Tides.</analysis>\n", "<summary>We spoke ", "of tides.</summary>"]},
    {"when": "'We spoke' in said", "say": ["Going on ", "after the summary."]},
    {"when": "'one thing' in said and all == 0", "say": ["<think>", "A tide ", "table.", "</think>", "I look.", bash("echo ebb", "one")]},
    {"when": "'one thing' in said", "say": ["It says ", "ebb."]},
    {"when": "'two things' in said and all == 0", "say": ["Both.", bash("echo high", "two"), bash("echo low", "three")]},
    {"when": "'two things' in said", "say": ["High and ", "low."]},
    {"when": "'late tool' in said and all == 0", "say": ["I load it.", '\n<tool_call>\n{"name": "ToolSearch", "arguments": {"query": "select:Monitor"}}\n</tool_call>']},
    {"when": "'late tool' in said", "say": ["It is ", "known now."]},
    {"when": "true", "say": ["Hello ", "from ", "the ", "model."]},
]


class Person:
    """Asks Claude Code in a home and a project of its own."""

    def __init__(self, base):
        self.base, self.home = base, tempfile.TemporaryDirectory()
        self.project = Path(self.home.name) / "project"
        self.project.mkdir()

    def run(self, question, *flags):
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": self.home.name,
            "TERM": "xterm",
            "ANTHROPIC_BASE_URL": self.base,
            "ANTHROPIC_AUTH_TOKEN": "unused",
            "ANTHROPIC_MODEL": "scripted",
            # It works without this, but would look for updates.
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        command = [CLAUDE, "-p", question, "--allowedTools", "Bash", *flags]
        done = subprocess.run(command, cwd=self.project, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, question, *flags):
        result = json.loads(self.run(question, "--output-format", "json", *flags))
        assert not result["is_error"], result
        return result["result"]


def usage(answer):
    """The counts of a streamed answer."""
    data = [json.loads(line[6:]) for line in answer[2].decode().splitlines() if line.startswith("data: ")]
    return next(event["usage"] for event in data if event["type"] == "message_delta")


def turns(proxy):
    """The counts of all answers."""
    return [usage(answer) for answer in proxy.answers if answer[0].startswith(PATH + "?")]


def only_news_are_computed(proxy, most=1000):
    first, second = turns(proxy)
    # The last token of a prompt is the state of the script.
    known = first["input_tokens"] + first["cache_read_input_tokens"] - 1
    assert second["cache_read_input_tokens"] >= known, (first, second)
    assert second["input_tokens"] < most, second


def results(proxy):
    """What came back of the tools, by the latest request."""
    blocks = [block for message in proxy.posts(PATH)[-1]["messages"] for block in message["content"] if isinstance(block, dict)]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


def test_text(person, proxy):
    assert person.ask("Say something.") == "Hello from the model."


def test_a_call(person, proxy):
    assert person.ask("Do one thing.") == "It says ebb."
    only_news_are_computed(proxy)
    history = proxy.posts(PATH)[-1]["messages"]
    assert any(block["type"] == "thinking" and block["signature"] for message in history for block in message["content"] if isinstance(block, dict))
    assert results(proxy) == ["ebb"], results(proxy)


def test_parallel_calls(person, proxy):
    assert person.ask("Do two things.") == "High and low."
    only_news_are_computed(proxy)
    assert sorted(results(proxy)) == ["high", "low"], results(proxy)


def test_a_tool_that_comes_late(person, proxy):
    assert person.ask("Use a late tool.") == "It is known now."
    # Its definition is long.
    only_news_are_computed(proxy, 6000)
    first, second = [{tool["name"] for tool in body["tools"]} for body in proxy.posts(PATH)]
    assert "Monitor" in second - first, second - first


def test_a_stream_that_breaks(person, proxy):
    proxy.cut(3)
    assert person.ask("Say something.") == "Hello from the model."
    assert len(proxy.posts(PATH)) == 2


def test_a_conversation_goes_on(person, proxy):
    assert person.ask("Say something.") == "Hello from the model."
    assert person.ask("And again.", "--continue") == "Hello from the model."
    assert turns(proxy)[-1]["cache_read_input_tokens"] > 10_000, turns(proxy)


def test_the_context_is_counted(person, proxy):
    assert "Context Usage" in person.run("/context")
    counts = [json.loads(whole)["input_tokens"] for path, _, whole in proxy.answers if path.startswith(PATH + "/count_tokens")]
    assert len(counts) > 10 and min(counts) > 0, counts


def tides(salt):
    words, dice = "the keeper of the lighthouse writes down every tide and the wind and the waves of the night".split(), random.Random(salt)
    return " ".join(dice.choice(words) for _ in range(2200))


def compaction():
    with Server(SCRIPT) as server, Proxy(server.base) as proxy:
        Person(proxy.base).ask("First " + tides(0))
        context = turns(proxy)[0]["input_tokens"] + 3000
    with Server(SCRIPT, context) as server, Proxy(server.base) as proxy:
        person = Person(proxy.base)
        assert person.ask("First " + tides(0)) == "Hello from the model."
        assert person.ask("Second " + tides(1), "--continue") == "Going on after the summary."
        refused = [json.loads(whole)["error"]["message"] for _, status, whole in proxy.answers if status == 400]
        assert refused and all(message.startswith("prompt is too long: ") for message in refused), refused


if __name__ == "__main__":
    with Server(SCRIPT) as server:
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                begin = time.monotonic()
                with Proxy(server.base) as proxy:
                    test(Person(proxy.base), proxy)
                print(f"claude_code: {name[5:]}: {time.monotonic() - begin:.1f} s", flush=True)
    compaction()
    print("claude_code: a conversation that outgrows the context is compacted")
