"""MCP servers of others, from npm and PyPI, through the server: files in a folder, the time, and a local web page. OpenAI's SDK uses one of them
in a response, with an approval.

    MLX_SERVER=target/debug/mlx-server NODE_MODULES=... python tests/clients/mcp_servers.py
"""

import json
import os
import sys
import tempfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import openai

from scripted_server import Server

KEY = "a-key-of-this-test"
CALL = '<tool_call>\n{"name": "read_text_file", "arguments": {"path": '
SCRIPT = [
    {"when": "tools and results == 0", "say": [CALL, '"plan.md"}}\n</tool_call>']},
    {"when": "'Buy a boat' in messages[-1].content", "say": ["It says: ", "buy a boat."]},
    {"when": "true", "say": ["I do not ", "know."]},
]


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"<html><body><h1>Tides</h1><p>High tide is at noon in Brest.</p></body></html>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def servers(folder):
    filesystem = Path(os.environ["NODE_MODULES"]) / "@modelcontextprotocol/server-filesystem/dist/index.js"
    python = lambda module, *flags: {"command": sys.executable, "args": ["-m", module, *flags]}
    return {
        "files": {"command": "node", "args": [str(filesystem), folder], "cwd": folder},
        "time": python("mcp_server_time", "--local-timezone", "Europe/Paris"),
        "fetch": python("mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips"),
    }


def request(base, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(base + path, data, {"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(asked, timeout=120) as reply:
        return json.load(reply)


def call(base, server, tool, **arguments):
    result = request(base, "/v1/mcp/call", {"server": server, "tool": tool, "arguments": arguments})
    return result["content"][0]["text"], result["is_error"]


def over_http(base, folder, page):
    listed = request(base, "/v1/mcp/tools")
    assert all(it["error"] is None and it["tools"] > 0 for it in listed["servers"]), listed["servers"]
    names = {it["name"] for it in listed["data"]}
    assert {"read_text_file", "get_current_time", "fetch"} <= names, names
    text, failed = call(base, "files", "read_text_file", path=f"{folder}/plan.md")
    assert "Buy a boat" in text and not failed, text
    text, failed = call(base, "files", "read_text_file", path="/etc/passwd")
    assert failed and "denied" in text, text
    text, failed = call(base, "time", "get_current_time", timezone="Asia/Tokyo")
    assert json.loads(text)["timezone"] == "Asia/Tokyo" and not failed, text
    text, failed = call(base, "time", "get_current_time", timezone="Nowhere/City")
    assert failed, text
    text, failed = call(base, "fetch", "fetch", url=page)
    assert "High tide is at noon" in text and not failed, text


def in_responses(base):
    client = openai.OpenAI(base_url=base + "/v1", api_key=KEY)
    tool = {"type": "mcp", "server_label": "files", "allowed_tools": ["read_text_file"]}
    never = client.responses.create(model="scripted", input="The plan?", tools=[{**tool, "require_approval": "never"}])
    assert [it.type for it in never.output] == ["mcp_list_tools", "mcp_call", "message"], never.output
    assert never.output_text == "It says: buy a boat.", never.output_text
    asked = client.responses.create(model="scripted", input="The plan?", tools=[tool])
    approval = asked.output[-1]
    assert (approval.type, approval.name, json.loads(approval.arguments)) == ("mcp_approval_request", "read_text_file", {"path": "plan.md"})
    for approve, text in ((True, "It says: buy a boat."), (False, "I do not know.")):
        answer = {"type": "mcp_approval_response", "approval_request_id": approval.id, "approve": approve}
        final = client.responses.create(model="scripted", input=[answer], previous_response_id=asked.id, tools=[tool])
        assert final.output_text == text, final.output
    kinds = [it.type for it in client.responses.create(model="scripted", input="The plan?", tools=[{**tool, "require_approval": "never"}], stream=True)]
    assert "response.mcp_call.completed" in kinds and kinds[-1] == "response.completed", kinds


def main():
    pages = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        Path(folder, "plan.md").write_text("# Plan\n\nBuy a boat.\n")
        file = Path(folder, "mcp.json")
        file.write_text(json.dumps({"mcpServers": servers(folder)}))
        with Server(SCRIPT, flags=("--mcp", str(file), "--api-key", KEY)) as server:
            over_http(server.base, folder, f"http://127.0.0.1:{pages.server_port}/")
            in_responses(server.base)
    print("MCP servers of npm and PyPI: their tools over HTTP, and in responses of OpenAI's SDK")


main()
