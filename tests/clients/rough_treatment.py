"""Malformed bodies and disconnecting clients: `rough_treatment.py BASE_URL`. Every malformed body of every protocol gets a 4xx in that
protocol's form, no memory stays reserved, and the next valid request works."""

import copy
import http.client
import json
import random
import socket
import sys
import time
from urllib.parse import urlparse

BODIES, MUTATED, VANISHING = 10_000, 2_000, 1_000
MODEL = "llama-f32"
USER = {"role": "user", "content": "Hello"}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "call_0001", "type": "function", "function": {"name": "add", "arguments": "{}"}}
# Bodies that are valid. The first is cut off, broken and so on; the others, with all that a protocol knows, are changed at one place. This
# checkpoint has no place for tools, so they are read and then refused.
GOOD = {
    "/v1/chat/completions": [
        {"messages": [USER], "max_tokens": 2},
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_0001", "content": "3"}], "tools": [TOOL], "tool_choice": "auto", "max_tokens": 2},
        {"messages": [USER], "max_tokens": 2, "logit_bias": {"5": 1}, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}}},
    ],
    "/v1/completions": [{"prompt": "Hello", "max_tokens": 2}, {"prompt": ["Hello", "you"], "max_tokens": 2, "stop": ["a"], "n": 2, "logprobs": 1, "seed": 5, "top_p": 0.5, "temperature": 0.5}],
    "/v1/embeddings": [{"input": "Hello"}, {"input": [[5, 6], [7]], "dimensions": 4, "encoding_format": "base64"}],
    "/tokenize": [{"content": "Hello"}],
    "/detokenize": [{"tokens": [5, 6]}],
    "/v1/responses": [
        {"input": "Hello", "max_output_tokens": 2, "store": False},
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}, {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}, {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}"}, {"type": "function_call_output", "call_id": "call_1", "output": "3"}], "tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "run"}], "tool_choice": "auto", "max_output_tokens": 2, "store": False},
        {"input": "Hello", "instructions": "Be brief.", "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "integer"}}}, "include": ["message.output_text.logprobs"], "top_logprobs": 2, "truncation": "auto", "max_output_tokens": 2, "store": False},
    ],
    "/v1/messages": [
        {"messages": [USER], "max_tokens": 2},
        {"messages": [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "3"}], "is_error": True}]}], "tools": [{"name": "add", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"}, "max_tokens": 2},
        {"messages": [USER], "system": [{"type": "text", "text": "Be brief."}], "thinking": {"type": "disabled"}, "output_config": {"format": {"type": "json_schema", "schema": {"type": "integer"}}}, "metadata": {"user_id": "a"}, "temperature": 0.5, "top_k": 4, "max_tokens": 2},
    ],
    "/v1/messages/count_tokens": [{"messages": [USER]}, {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}, USER], "system": "Be brief."}],
    "/api/chat": [
        {"messages": [USER], "stream": False, "options": {"num_predict": 2}},
        {"messages": [USER, {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}, {"role": "tool", "tool_name": "add", "content": "3"}], "tools": [TOOL], "options": {"num_predict": 2}},
        {"messages": [USER], "format": {"type": "integer"}, "think": False, "keep_alive": "5m", "truncate": False, "options": {"num_predict": 2, "temperature": 0.5, "top_k": 4, "seed": 5, "num_ctx": 4096, "mirostat": 0}},
    ],
    "/api/generate": [{"prompt": "Hello", "stream": False, "options": {"num_predict": 2}}, {"prompt": "Hello", "system": "Be brief.", "format": "json", "raw": False, "suffix": "", "context": [], "images": [], "options": {"num_predict": 2, "top_p": 0.5}}],
    "/api/embed": [{"input": "Hello"}, {"input": ["Hello", "you"], "truncate": False, "dimensions": 4}],
    "/api/show": [{"model": MODEL}, {"model": MODEL, "verbose": False}],
}
PATHS = list(GOOD)
# Unknown fields of requests are accepted and named; those inside of messages and items are refused.
CLOSED = {path: "input" if path == "/v1/responses" else "messages" for path in GOOD if path == "/v1/responses" or "messages" in GOOD[path][0]}
WRONG = [None, True, -1, 1e400, 10**30, "", "x", [], [[]], {}, {"a": []}, [None], ["\ud800"], -0.0, 1.5]


def required(path):
    return next(iter(GOOD[path][0]))


def unknown(draw, path):
    """A valid body with an unknown field, at a place where it is refused."""
    return GOOD[path][0] | {CLOSED[path]: [USER | {"no_such_field": draw.choice([1, "x", []])}]}


def malformed(draw, path):
    """A malformed body for `path`."""
    good, text = GOOD[path][0], json.dumps(GOOD[path][0])
    kind = draw.randrange(6)
    if kind == 0:  # cut off
        return text[: draw.randrange(len(text))].encode()
    if kind == 1:  # not UTF-8
        place = draw.randrange(1, len(text) - 1)
        return text[:place].encode() + bytes([draw.choice([0xC0, 0xFF, 0xFE, 0x80])]) + text[place:].encode()
    if kind == 2:  # deep
        depth = draw.choice([200, 5_000, 100_000])
        return (f'{{"{required(path)}": ' + "[" * depth + "]" * depth + "}").encode()
    if kind == 3:  # huge numbers, in place of the limit if the request has one
        huge = draw.choice(["1e999", "9" * 400, "-3", "1.5"])
        if ": 2" in text:
            return text.replace(": 2", f": {huge}").encode()
        return json.dumps(good | {required(path): 0}).replace(": 0", f": {huge}").encode()
    if kind == 4:  # a wrong type for a required field
        wrong = draw.choice([True, -1, 1.5, {"a": []}, [[[]]], [{}]])
        return json.dumps(good | {required(path): wrong}).encode()
    is_closed = path in CLOSED and draw.random() < 0.5
    return json.dumps(unknown(draw, path) if is_closed else draw.choice(WRONG[:9])).encode()


def places(value):
    """The places within a value: the containers and their keys."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def mutated(draw, path):
    """A valid body with a wrong, a superfluous or a missing value at one place. Some are valid still."""
    body = copy.deepcopy(draw.choice(GOOD[path]))
    inside, key = draw.choice(list(places(body)))
    if draw.random() < 0.2:
        del inside[key]
    elif isinstance(inside, dict) and draw.random() < 0.2:
        inside["no_such_field"] = draw.choice(WRONG)
    else:
        inside[key] = draw.choice(WRONG)
    return json.dumps(body).encode()


def is_error_of(path, body):
    """Whether this is an error in the form of the path's protocol."""
    error = body["error"]
    if path.startswith("/api/"):
        return list(body) == ["error"] and isinstance(error, str)
    if path.startswith("/v1/messages"):
        return set(body) == {"type", "error", "request_id"} and body["type"] == "error" and set(error) >= {"type", "message"}
    return list(body) == ["error"] and set(error) == {"message", "type", "param", "code"} and isinstance(error["message"], str)


def figure(host, port, name):
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def good(host, port):
    connection = http.client.HTTPConnection(host, port, timeout=60)
    for path, bodies in GOOD.items():
        for body in bodies:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 200 or b"tools: cannot be used" in answer, (path, body, response.status, answer[:300])
    connection.close()


def bodies(host, port, count, make, is_right):
    """Sends bodies; `is_right` says which statuses they may have. Errors have the form of their protocol."""
    draw = random.Random(7)
    connection = http.client.HTTPConnection(host, port, timeout=60)
    for number in range(count):
        path = draw.choice(PATHS)
        body = make(draw, path)
        try:
            connection.request("POST", path, body, {"content-type": "application/json"})
            response = connection.getresponse()
        except (http.client.HTTPException, OSError):
            # The server may close a connection after a refusal; the next request opens a new one.
            connection.close()
            connection.request("POST", path, body, {"content-type": "application/json"})
            response = connection.getresponse()
        answer = response.read()
        assert is_right(response.status), (number, path, body[:1000], response.status, answer[:200])
        if response.status >= 400:
            assert is_error_of(path, json.loads(answer)), (number, path, body[:1000], answer[:200])


def vanishing(host, port):
    """Disconnects after a random part of the request or of the answer."""
    draw = random.Random(8)
    body = json.dumps({"messages": [{"role": "user", "content": "Go on and on. " * 5}], "stream": True, "max_tokens": 60}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    whole = head.encode() + body
    for _ in range(VANISHING):
        with socket.create_connection((host, port), timeout=60) as line:
            part = draw.choice([draw.randrange(len(whole)), len(whole)])
            line.sendall(whole[:part])
            if part == len(whole) and draw.random() < 0.7:
                line.recv(draw.randrange(1, 2_000))


def main():
    url = urlparse(sys.argv[1])
    host, port = url.hostname, url.port
    good(host, port)
    reserved = figure(host, port, "mlx_reserved_bytes")
    bodies(host, port, BODIES, malformed, lambda status: 400 <= status < 500)
    print(f"{BODIES} malformed bodies: each a 4xx in the form of its protocol")
    bodies(host, port, MUTATED, mutated, lambda status: status < 500)
    print(f"{MUTATED} bodies with a wrong place: none a 5xx")
    vanishing(host, port)
    deadline = time.time() + 60
    while figure(host, port, "mlx_reserved_bytes") != reserved:
        assert time.time() < deadline, "bytes are still reserved for clients that have gone"
        time.sleep(0.2)
    good(host, port)
    print(f"{VANISHING} clients vanished: nothing is reserved for them")


main()
