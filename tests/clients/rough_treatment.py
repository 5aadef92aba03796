"""Malformed bodies and disconnecting clients: `rough_treatment.py BASE_URL`. Every body gets a 4xx, no memory stays reserved, and the next
valid request works."""

import http.client
import json
import random
import socket
import sys
import time
from urllib.parse import urlparse

BODIES, VANISHING = 10_000, 1_000
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize"]
GOOD = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 2},
    "/v1/embeddings": {"input": "Hello"},
    "/tokenize": {"content": "Hello"},
    "/detokenize": {"tokens": [5, 6]},
}
WRONG = [None, True, -1, 1e400, 10**30, "", "x", [], [[]], {}, {"a": []}, [None], ["\ud800"], -0.0, 1.5]


def required(path):
    return next(key for key in GOOD[path] if key != "max_tokens")


def malformed(draw, path):
    """A malformed body for `path`."""
    text = json.dumps(GOOD[path])
    kind = draw.randrange(6)
    if kind == 0:  # cut off
        return text[: draw.randrange(len(text))].encode()
    if kind == 1:  # not UTF-8
        place = draw.randrange(1, len(text) - 1)
        return text[:place].encode() + bytes([draw.choice([0xC0, 0xFF, 0xFE, 0x80])]) + text[place:].encode()
    if kind == 2:  # deep
        depth = draw.choice([200, 5_000, 100_000])
        return (f'{{"{required(path)}": ' + "[" * depth + "]" * depth + "}").encode()
    if kind == 3:  # huge numbers, if the request has a number
        key = "max_tokens" if "max_tokens" in GOOD[path] else required(path)
        return json.dumps(GOOD[path] | {key: 0}).replace(": 0", ": " + draw.choice(["1e999", "9" * 400, "-1", "1.5"])).encode()
    if kind == 4:  # a wrong type for a required field
        wrong = draw.choice([True, -1, 1.5, {"a": []}, [[[]]], [{}]])
        return json.dumps(GOOD[path] | {required(path): wrong}).encode()
    return json.dumps(draw.choice(WRONG[:9]) if draw.random() < 0.5 else GOOD[path] | {"no_such_field": draw.choice([1, "x", []])}).encode()


def figure(host, port, name):
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def good(host, port):
    connection = http.client.HTTPConnection(host, port, timeout=60)
    for path, body in GOOD.items():
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, (path, response.status, answer[:300])
    connection.close()


def bodies(host, port):
    draw = random.Random(7)
    connection = http.client.HTTPConnection(host, port, timeout=60)
    for number in range(BODIES):
        path = draw.choice(PATHS)
        body = malformed(draw, path)
        try:
            connection.request("POST", path, body, {"content-type": "application/json"})
            response = connection.getresponse()
        except (http.client.HTTPException, OSError):
            # The server may close a connection after a refusal; the next request opens a new one.
            connection.close()
            connection.request("POST", path, body, {"content-type": "application/json"})
            response = connection.getresponse()
        answer = response.read()
        assert 400 <= response.status < 500, (number, path, body[:200], response.status, answer[:200])
        assert b'"error"' in answer, (number, path, body[:200], answer[:200])


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
    bodies(host, port)
    print(f"{BODIES} malformed bodies: each a 4xx")
    vanishing(host, port)
    deadline = time.time() + 60
    while figure(host, port, "mlx_reserved_bytes") != reserved:
        assert time.time() < deadline, "bytes are still reserved for clients that have gone"
        time.sleep(0.2)
    good(host, port)
    print(f"{VANISHING} clients vanished: nothing is reserved for them")


main()
