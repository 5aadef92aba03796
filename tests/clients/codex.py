"""Codex, unmodified, against the server on scripted models: python codex.py BASE_URL. Run by `cargo xtask clients`, which sets
MLX_SERVER and NODE_MODULES. It starts servers of its own; BASE_URL is not used."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripted_server import Proxy, Server

TRIPLES = {("Linux", "x86_64"): "x86_64-unknown-linux-musl", ("Linux", "aarch64"): "aarch64-unknown-linux-musl", ("Darwin", "x86_64"): "x86_64-apple-darwin", ("Darwin", "arm64"): "aarch64-apple-darwin"}
TRIPLE = TRIPLES[platform.system(), platform.machine()]
CODEX = next((Path(os.environ["NODE_MODULES"]) / "@openai").glob(f"codex-*/vendor/{TRIPLE}/bin/codex"))
PATH = "/v1/responses"
# A server of the Model Context Protocol with one tool.
MCP = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    schema = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
    result = {
        "initialize": {"protocolVersion": request.get("params", {}).get("protocolVersion"), "capabilities": {"tools": {}}, "serverInfo": {"name": "sea", "version": "1"}},
        "tools/list": {"tools": [{"name": "tide", "description": "Tells the tide.", "inputSchema": schema}]},
        "tools/call": {"content": [{"type": "text", "text": "12:40"}]},
    }.get(request["method"], {})
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


def call(name, arguments):
    return "\n<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


SCRIPT = [
    {"when": "not tools", "say": ["We spoke ", "of tides."]},
    {"when": "'one thing' in said and all == 0", "say": ["<think>", "A tide ", "table.", "</think>", "I look.", call("exec_command", {"cmd": "echo ebb"})]},
    {"when": "'one thing' in said", "say": ["It says ", "ebb."]},
    {"when": "'two things' in said and all == 0", "say": ["Both.", call("exec_command", {"cmd": "echo high"}), call("exec_command", {"cmd": "echo low"})]},
    {"when": "'two things' in said", "say": ["High and ", "low."]},
    {"when": "'the sea' in said and all == 0", "say": ["I ask.", call("mcp__sea__tide", {"place": "Brest"})]},
    {"when": "'the sea' in said", "say": ["At ", "12:40."]},
    {"when": "true", "say": ["Hello ", "from ", "the ", "model."]},
]


class Person:
    """Asks Codex in a home and a project of its own."""

    def __init__(self, base):
        self.home = tempfile.TemporaryDirectory(dir=Path.home())
        (self.project / ".git").mkdir(parents=True)
        folder = Path(self.home.name) / ".codex"
        folder.mkdir()
        (folder / "sea.py").write_text(MCP)
        (folder / "config.toml").write_text(f"""
model = "scripted"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "{base}/v1"
wire_api = "responses"
env_key = "KEY"
stream_max_retries = 2
[mcp_servers.sea]
command = {json.dumps(sys.executable)}
args = [{json.dumps(str(folder / "sea.py"))}]
""")

    @property
    def project(self):
        return Path(self.home.name) / "project"

    def ask(self, question, *flags):
        environment = {"PATH": "/usr/bin:/bin", "HOME": self.home.name, "TERM": "xterm", "KEY": "unused"}
        last = Path(self.home.name) / "last"
        command = [CODEX, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-o", last, *flags, question]
        done = subprocess.run(command, cwd=self.project, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return last.read_text().strip()


def turns(proxy):
    """The counts of all answers."""
    lines = [line for path, _, whole in proxy.answers if path == PATH for line in whole.decode().splitlines()]
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    return [event["response"]["usage"] for event in events if event["type"] == "response.completed"]


def only_news_are_computed(proxy, most=1000):
    first, second = turns(proxy)[-2:]
    # The last token of a prompt is the state of the script.
    known = first["input_tokens"] - 1
    cached = second["input_tokens_details"]["cached_tokens"]
    assert cached >= known and second["input_tokens"] - cached < most, (first, second)


def results(proxy):
    """What came back of the tools, by the latest request."""
    return [item["output"] for item in proxy.posts(PATH)[-1]["input"] if item["type"] == "function_call_output"]


def test_text(person, proxy):
    assert person.ask("Say something.") == "Hello from the model."


def test_a_call(person, proxy):
    assert person.ask("Do one thing.") == "It says ebb."
    only_news_are_computed(proxy)
    history = proxy.posts(PATH)[-1]["input"]
    thoughts = [part["text"] for item in history if item["type"] == "reasoning" for part in item["content"]]
    assert thoughts == ["A tide table."], thoughts
    assert "ebb" in results(proxy)[0], results(proxy)


def test_parallel_calls(person, proxy):
    assert person.ask("Do two things.") == "High and low."
    only_news_are_computed(proxy)
    high, low = results(proxy)
    assert "high" in high and "low" in low, (high, low)


def test_a_tool_in_a_namespace(person, proxy):
    assert person.ask("Ask the sea.") == "At 12:40."
    called = [item for item in proxy.posts(PATH)[-1]["input"] if item["type"] == "function_call"]
    assert [(item["namespace"], item["name"]) for item in called] == [("mcp__sea", "tide")], called
    assert "12:40" in json.dumps(results(proxy)), results(proxy)
    only_news_are_computed(proxy)


def test_a_stream_that_breaks(person, proxy):
    proxy.cut(4)
    assert person.ask("Say something.") == "Hello from the model."
    assert len(proxy.posts(PATH)) == 2


def test_a_conversation_goes_on(person, proxy):
    assert person.ask("Say something.") == "Hello from the model."
    assert person.ask("And again.", "resume", "--last") == "Hello from the model."
    assert turns(proxy)[-1]["input_tokens_details"]["cached_tokens"] > 2000, turns(proxy)


def test_compaction(person, proxy):
    assert person.ask("Say something.") == "Hello from the model."
    limit = turns(proxy)[0]["input_tokens"] - 100
    assert person.ask("And again.", "-c", f"model_auto_compact_token_limit={limit}", "resume", "--last") == "Hello from the model."
    compacting = [body for body in proxy.posts(PATH) if not body.get("tools")]
    assert compacting, [sorted(body) for body in proxy.posts(PATH)]
    assert "We spoke of tides." in json.dumps(proxy.posts(PATH)[-1]["input"])


if __name__ == "__main__":
    with Server(SCRIPT) as server:
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                begin = time.monotonic()
                with Proxy(server.base) as proxy:
                    test(Person(proxy.base), proxy)
                print(f"codex: {name[5:]}: {time.monotonic() - begin:.1f} s", flush=True)
