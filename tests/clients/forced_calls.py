"""Forced calls with random tools and schemas, at temperature 1: every finished call parses and validates, a stream says the same as a
whole answer, and an answer alone is the same as one in company.

    python tests/clients/forced_calls.py [BASE_URL] [--server PROGRAM] [--model FOLDER] [--cases N] [--seed S]

It starts a server of its own (BASE_URL, that of `cargo xtask clients`, is not used) on two copies of the model's weights: one writes
calls as JSON, the other in tags. Each case is asked for twice: in company of 7 others, and alone; one of the two is streamed."""

import argparse
import collections
import concurrent.futures
import http.client
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema

ROOT = Path(__file__).parents[2]
COMPANY = 8
# Answers of random weights may go on for long; a schema bounds most of them.
MAX_TOKENS = 300

# The names alone, so that prompts are short.
HEAD = """{%- if tools %}tools:{% for tool in tools %} {{ tool.function.name }}{% endfor %}
{% endif %}
{%- for m in messages %}{{ m.role }}: {{ m.content or '' }}"""
TAIL = """
{% endfor %}
{%- if add_generation_prompt %}assistant:{% endif %}"""
CALLS = {
    "json": """{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}""",
    "tags": """{%- for call in m.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{%- for name, value in call.function.arguments.items() %}
<parameter={{ name }}>
{{ value if value is string else value | tojson }}
</parameter>
{%- endfor %}
</function>
</tool_call>
{%- endfor %}""",
}


def model(weights, kind, folder):
    """A copy of the weights with a template that writes calls in this form."""
    folder = folder / kind
    shutil.copytree(weights, folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = max(config["max_position_embeddings"], 1024)
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer["chat_template"] = HEAD + CALLS[kind] + TAIL
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return f"{kind}={folder}"


def random_schema(dice, depth, kind):
    """A schema whose texts end. Within tags a text may not be bounded, so there it is one of a list."""
    kinds = ["enum", "integer", "number", "boolean", "const", "null-or"]
    if depth > 0:
        kinds += ["object", "array", "array"]
    if depth < 2 or kind == "json":
        kinds += ["text", "pattern"]
    match dice.choice(kinds):
        case "enum":
            return {"enum": dice.sample(["calm", "storm", 'a "b"', "é", "<b>", "two words", ""], dice.randint(1, 4))}
        case "integer":
            low = dice.randint(-50, 50)
            return {"type": "integer", "minimum": low, "maximum": low + dice.randint(0, 900)}
        case "number":
            return {"type": "number", "minimum": 0, "exclusiveMaximum": dice.choice([1, 10, 2.5])}
        case "boolean":
            return {"type": "boolean"}
        case "const":
            return {"const": dice.choice([1, "one", True, None, "x\ny"])}
        case "null-or":
            return {"anyOf": [{"type": "null"}, {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 95}]}
        case "text":
            return {"type": "string", "maxLength": dice.randint(0, 12)}
        case "pattern":
            return {"type": "string", "pattern": dice.choice(["^[a-z]{1,8}$", "^\\d{4}-\\d\\d$", "^(on|off)!?$"])}
        case "array":
            low = dice.randint(0, 2)
            return {"type": "array", "items": random_schema(dice, depth - 1, kind), "minItems": low, "maxItems": low + 2}
        case "object":
            return random_object(dice, depth - 1, kind)


def random_object(dice, depth, kind):
    names = dice.sample(["city", "days", "exact", "unit", "where to", "größe", "a.b"], dice.randint(1, 4))
    if kind == "tags":
        names = [name for name in names if " " not in name] or ["city"]
    properties = {name: random_schema(dice, depth, kind) for name in names}
    required = [name for name in names if dice.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def random_case(seed):
    dice = random.Random(seed)
    kind = dice.choice(["json", "json", "tags"])
    names = dice.sample(["get_weather", "add", "find-file", "ns.call", "a1"], dice.randint(1, 4))
    tools = []
    for name in names:
        is_strict = dice.random() < 0.85
        function = {"name": name, "parameters": random_object(dice, 2, kind)}
        if is_strict:
            function["strict"] = True
        tools.append({"type": "function", "function": function})
    named = [{"type": "function", "function": {"name": name}} for name in names]
    some = dice.sample(named, dice.randint(1, len(named)))
    choice, allowed = dice.choice(
        [
            ("required", names),
            (some[0], [some[0]["function"]["name"]]),
            (
                {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": some}},
                [tool["function"]["name"] for tool in some],
            ),
        ]
    )
    request = {
        "model": kind,
        "messages": [{"role": "user", "content": dice.choice(["Once upon a time", "How is it?", "Go"])}],
        "tools": tools,
        "tool_choice": choice,
        "temperature": 1,
        "seed": seed,
        "exact": True,
        "max_tokens": MAX_TOKENS,
    }
    if dice.random() < 0.3:
        request["parallel_tool_calls"] = False
    return request, allowed


def assembled(body):
    """The choice that a client makes of a stream."""
    calls, content, reason = [], "", None
    events = [line[6:] for line in body.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", body[-300:]
    for event in map(json.loads, events[:-1]):
        assert "error" not in event, event
        choice = event["choices"][0]
        content += choice["delta"].get("content") or ""
        reason = choice["finish_reason"] or reason
        for part in choice["delta"].get("tool_calls", []):
            if part["index"] == len(calls):
                calls.append({"name": part["function"]["name"], "arguments": ""})
            calls[part["index"]]["arguments"] += part["function"].get("arguments", "")
    return {"calls": calls, "content": content or None, "reason": reason}


def answer(port, request, is_streamed):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    body = json.dumps(request | ({"stream": True} if is_streamed else {}))
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    assert reply.status == 200, f"{reply.status} {text}\n{json.dumps(request)}"
    if is_streamed:
        return assembled(text)
    choice = json.loads(text)["choices"][0]
    calls = [call["function"] for call in choice["message"].get("tool_calls", [])]
    calls = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    return {"calls": calls, "content": choice["message"]["content"], "reason": choice["finish_reason"]}


def check(request, allowed, got, counts):
    """Whether a finished answer keeps its promises; answers that a limit has cut are only counted."""
    tools = {tool["function"]["name"]: tool["function"] for tool in request["tools"]}
    counts[got["reason"]] += 1
    is_cut = got["reason"] == "length"
    assert got["reason"] in ("tool_calls", "length"), got
    finished = got["calls"][:-1] if is_cut else got["calls"]
    assert is_cut or finished, got
    assert is_cut or got["content"] is None, got
    is_single = request.get("parallel_tool_calls") is False or isinstance(request["tool_choice"], dict) and "function" in request["tool_choice"]
    assert not is_single or len(got["calls"]) <= 1, got
    for call in finished:
        assert call["name"] in allowed, (call, allowed)
        arguments = json.loads(call["arguments"])
        assert isinstance(arguments, dict), call
        counts["calls"] += 1
        if tools[call["name"]].get("strict"):
            jsonschema.Draft202012Validator(tools[call["name"]]["parameters"]).validate(arguments)
            counts["strict calls"] += 1


def run(port, cases, first):
    counts, failures = collections.Counter(), []
    everything = [(seed, *random_case(seed)) for seed in range(first, first + cases)]

    def ask(case, alone):
        seed, request, _ = case
        is_streamed = (seed % 2 == 0) != alone
        try:
            got = answer(port, request, is_streamed)
        except Exception as error:
            return repr(error)
        counts["streamed" if is_streamed else "whole"] += 1
        return got

    with concurrent.futures.ThreadPoolExecutor(COMPANY) as pool:
        together = list(pool.map(lambda case: ask(case, False), everything))
    for case, in_company in zip(everything, together):
        seed, request, allowed = case
        alone = ask(case, True)
        try:
            assert isinstance(in_company, dict), in_company
            check(request, allowed, in_company, counts)
            assert alone == in_company, f"alone {alone}"
        except Exception as error:
            failures.append(seed)
            print(f"case {seed}: {error!r}\n{json.dumps(request)}\n{in_company}", file=sys.stderr)
    return counts, failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base", nargs="?")
    parser.add_argument("--server", default=ROOT / "target/debug/mlx-server")
    parser.add_argument("--model", type=Path, default=ROOT / "tests/golden/models/llama-f32")
    parser.add_argument("--cases", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = [argument for kind in CALLS for argument in ("-m", model(options.model, kind, Path(folder)))]
        server = subprocess.Popen(
            [options.server, "--port", "0", *models], stderr=subprocess.PIPE, text=True, encoding="utf-8"
        )
        try:
            line = next(line for line in server.stderr if '"address":"' in line)
            port = int(line.split('"address":"')[1].split('"')[0].rsplit(":", 1)[1])
            # Read on, so that the server does not wait for a reader.
            concurrent.futures.ThreadPoolExecutor(1).submit(collections.deque, server.stderr, 0)
            counts, failures = run(port, options.cases, options.seed)
        finally:
            server.terminate()
            server.wait()
    print("forced calls: " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    sys.exit(f"{len(failures)} cases failed: {failures}" if failures else 0)


if __name__ == "__main__":
    main()
