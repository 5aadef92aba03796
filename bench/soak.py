"""A soak test: a server under mixed, invalid and excessive load for a long time. No request may be lost or wrong, no memory may leak.

    python bench/soak.py [--minutes 30] [--seed 0] [--deaths] -- target/release/mlx-server -m MODEL --memory-budget 75MB --max-running 16 --max-waiting 24

It starts the server, on a free port unless the command has --port. Clients send all kinds of requests, disconnect, send garbage, arrive in
bursts, send extra bytes after their requests, close one direction of a connection, withhold the last byte of a body, and use names of 10 MB. They
also chat with a copy of the model with a hostile template. Requests are repeated later, and the answers must be bit-identical. The server
needs a budget of a few requests and a short queue, so that the load makes it preempt and reject requests. A run of 10 minutes or more fails if
the lowest resident memory of the server grows by more than 5 % from the second sixth of the time to the last. The last line is one JSON object
with all counts."""

import argparse
import atexit
import http.client
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from load import children, resident

WORDS = "river stone window garden letter engine morning paper silver number answer market winter signal bridge forest".split()
CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
CLIENTS, CROWD, FIXED, OWN, GROWTH = 12, 40, 20, 30, 1.05
OPTIONS = {
    "temperature": [0, 0.3, 0.8, 1.5], "top_k": [1, 40], "top_p": [0.3, 0.9], "min_p": [0.02, 0.3], "typical_p": [0.3, 0.9], "n": [2, 4],
    "xtc_probability": [0.3, 1], "xtc_threshold": [0.1], "repetition_penalty": [0.9, 1.4], "penalty_last_n": [-1, 20], "ignore_eos": [True],
    "frequency_penalty": [-0.5, 1], "presence_penalty": [-0.5, 1], "dry_multiplier": [1], "dry_base": [1.2, 2], "dry_allowed_length": [1, 4],
    "dry_penalty_last_n": [64], "dry_sequence_breakers": [["."]], "logit_bias": [{"40": 5}], "stop": [["."], [" the", "\n"], ["qu", "er "]],
}  # fmt: skip
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
CHOICE = {"structured_outputs": {"choice": ["yes", "no", "perhaps the river"]}}
GAUGES = ["requests_running", "requests_waiting", "reserved_bytes", "used_bytes"]
COUNTERS = ["prefix_cache_bytes", "preemptions", "prefix_cache_hits", "prefix_cache_evictions", "cached_tokens", "prompt_tokens", "completion_tokens"]
WANTED = ["preemptions", "prefix_cache_hits", "cancels", "left", "bombs", "same again", "streams ended", "status 400", "status 429"]
# A template that is deep, long or endless, depending on the first message.
BOMB = """{%- set kind = messages[0].content -%}
{%- if kind == 'deep' -%}{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}{% endfor %}
{%- elif kind == 'work' -%}{% set s = 'a' * 10000000 %}{% for i in range(99999) %}{% set t = s | upper %}{% endfor %}
{%- elif kind == 'long' -%}{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}
{%- else -%}{% macro again(x) %}{{ again([x]) }}{% endmacro %}{{ again(1) }}{% endif %}"""


class Server:
    """The server's process and its metrics."""

    def __init__(self, command, seed):
        port = [] if any(part.startswith("--port") for part in command) else ["--port", "0"]
        self.process = subprocess.Popen(command + port + ["-m", f"bomb={self.bomb(command[command.index('-m') + 1])}"], stderr=subprocess.PIPE, text=True, errors="replace")
        found = (re.search(r'"address":"([^"]*)', line) for line in self.process.stderr)
        address = next((it[1] for it in found if it), None) or sys.exit("the server ended before it listened")
        self.connect = lambda: http.client.HTTPConnection(address, timeout=300)
        self.connect_bare = lambda: socket.create_connection(address.rsplit(":", 1), timeout=300)
        self.warnings, self.beginnings, draw = [], [""], random.Random(seed)
        log = (line for line in self.process.stderr if '"level":"INFO"' not in line)  # Drains the pipe, so that the server never blocks on it.
        threading.Thread(target=lambda: self.warnings.extend(log), daemon=True).start()
        atexit.register(self.process.kill)
        self.context = int(re.search(rb"context holds (\d+)", self.send(TEXT, {"prompt": "a " * 4_000_000}).read())[1])
        self.ids = json.load(self.send("/tokenize", {"content": " ".join(WORDS)}))["tokens"]
        self.beginnings = [""] * 6 + [self.words(draw, share / 30) + " " for share in range(2, 8)]

    def bomb(self, model):
        """Creates a folder with the files of a model and a hostile template."""
        self.folder = tempfile.TemporaryDirectory()
        for name in os.listdir(source := model.split("=", 1)[-1]):
            if name != "chat_template.jinja":
                os.symlink(os.path.abspath(os.path.join(source, name)), os.path.join(self.folder.name, name))
        with open(os.path.join(self.folder.name, "chat_template.jinja"), "w", encoding="utf-8") as template:
            template.write(BOMB)
        return self.folder.name

    def send(self, path, body=None, connection=None):
        connection = connection or self.connect()
        connection.request("GET" if body is None else "POST", path, json.dumps(body) if isinstance(body, dict) else body)
        return connection.getresponse()

    def words(self, draw, share):
        """Returns random words for about this share of the context, at most 1500 tokens, often after a shared prefix."""
        count = min(1500, share * self.context) * len(WORDS) / len(self.ids)
        return draw.choice(self.beginnings) + " ".join(draw.choices(WORDS, k=1 + int(count)))

    def figures(self):
        """Returns the server's metrics of the first model by name, without the model label."""
        page = re.sub(r'(?m)^.*model="bomb".*\n', "", self.send("/metrics").read().decode())
        return {re.sub(r'^mlx_|_total|model="[^"]*"|[{}]', "", name): float(it) for name, it in re.findall(r"(?m)^([^#].*) (.*)$", page)}

    def watch(self, minutes, failures, deaths):
        """Samples memory every 10 s and compares the lowest value of the second sixth with that of the last. A suspended machine adds no samples."""
        samples = []
        while len(samples) < max(6, 6 * minutes):
            # Engines that die have no time to leak, and grow at different rates.
            samples.append(resident(self.process, with_children=not deaths))
            for engine in children(self.process) if deaths and len(samples) % 6 == 0 else []:
                subprocess.run(["kill", "-9", engine], check=False)
            if len(samples) % 6 == 1:
                shown = {name: int(it) for name, it in self.figures().items() if name in GAUGES + COUNTERS}
                print(f"{len(samples) // 6} min, {samples[-1]:.1f} MB, {len(failures)} failures, {shown}", flush=True)
            time.sleep(10)
        sixth = len(samples) // 6
        # The lowest values show the memory at rest. Large requests in progress raise other samples by hundreds of MB.
        early, late = min(samples[sixth : 2 * sixth]), min(samples[-sixth:])
        slope = 360 * statistics.linear_regression(range(len(samples) - sixth), samples[sixth:]).slope
        failures += [f"memory grows: from {early:.1f} to {late:.1f} MB"] if minutes >= 10 and late > GROWTH * early else []
        rss = {"first": samples[0], "last": samples[-1], "max": max(samples), "ratio": late / early, "mb_per_hour": slope}
        return {f"rss_{name}": round(it, 3) for name, it in rss.items()}


class Client:
    """Runs random actions one after the other. Violations go to `failures`."""

    def __init__(self, server, draw, known, failures):
        self.server, self.draw, self.known, self.failures = server, draw, known, failures
        self.connection, self.counts = server.connect(), Counter()

    def run(self, ending):
        while not ending.is_set() and self.server.process.poll() is None:
            kinds = {self.ask: 70, self.hang_up: 12, self.leave: 6, self.others: 8, self.nonsense: 7, self.bomb: 0.5, self.boast: 0.3, self.crowd: 0.3}
            [kind] = self.draw.choices(list(kinds), list(kinds.values()))
            try:
                kind()
            except Exception as error:  # Any exception is a finding; the load continues.
                self.failures.append(f"{kind.__name__}: {error!r}")
                print("FAILED", self.failures[-1], flush=True)
                self.connection.close()

    def request(self):
        """Returns a path and a body that the server must accept: a completion, a chat, or a chat that outgrows the context."""
        pick, context, top = self.draw.choice, self.server.context, self.draw.randrange(21)
        body = {"seed": self.draw.getrandbits(63), "return_token_ids": True} | pick([{}, {"max_tokens": 40}, {"max_tokens": pick([1, 8, 150, 400])}])
        body |= {name: pick(values) for name, values in OPTIONS.items() if self.draw.random() < 0.25}
        text = self.server.words(self.draw, 0.5 * self.draw.random() ** 2)
        if self.draw.random() < 0.5:
            ids = self.draw.choices(self.server.ids, k=self.draw.randrange(5, min(1500, context - 5)))
            forms = [{}, {}, {"logprobs": top}, {"logprobs": 2, "echo": True}, {"max_tokens": 0, "echo": True, "logprobs": 1}]
            return TEXT, body | {"prompt": pick([text, ids])} | pick(forms)
        forms = [{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": top}, {"context_policy": "evict-turns", "max_tokens": 40}]
        body |= pick([*forms, CHOICE, {"context_policy": "slide", "max_tokens": context + 100}])
        if CHOICE.items() <= body.items():  # These fields contradict it and would be rejected.
            body = {name: it for name, it in body.items() if name not in ("stop", "ignore_eos")}
        texts = [self.server.words(self.draw, 0.08) for _ in range(15)] if "context_policy" in body else [text]
        return CHAT, body | {"messages": [{"role": ("user", "assistant")[i % 2], "content": it} for i, it in enumerate(texts)]}

    def accepted(self, response):
        """Counts a response to a valid request. Only a full queue may reject it, with a Retry-After header."""
        self.counts[f"status {response.status}"] += 1
        text = b"" if response.status == 200 else response.read()
        assert not text or response.status == 429 and response.headers["retry-after"], f"a good request gets {response.status}: {text}"
        return not text

    def finish(self, response, path, body):
        """Reads and checks an answer. Equal requests must have equal answers, for any concurrent requests and cached prefixes."""
        if not self.accepted(response):
            self.connection.close()  # The server may close an idle connection.
            return time.sleep(self.draw.uniform(0.05, 0.5))
        choices, usage = self.read(response, body)
        room, every = self.server.context - usage["prompt_tokens"], list(choices.values())
        limit = body["max_tokens"] if body.get("context_policy") == "slide" else min(room, body.get("max_tokens", room))
        whole = sorted(choices) == list(range(body.get("n", 1))) and usage["completion_tokens"] == sum(len(it["ids"]) for it in every)
        ended = [len(it["ids"]) == limit if it["finish"] == "length" else it["finish"] == "stop" and len(it["ids"]) <= limit for it in every]
        stopped = "echo" in body or not any(stop in it["text"] for it in every for stop in body.get("stop", []))
        assert whole and all(ended) and stopped, f"an answer is not what was asked for: {json.dumps([body, choices, usage])}"
        key = json.dumps([path, {name: it for name, it in body.items() if name not in (*STREAM, "priority")}])
        self.counts.update(["streams ended" if "stream" in body else "whole answers"] + ["same again"] * (key in self.known))
        before = self.known.setdefault(key, choices) if len(self.known) < FIXED + OWN else self.known.get(key, choices)
        assert choices == before or response.headers["x-exactness"] == "sampling-exact", f"{key} had {before} and now has {choices}"

    def read(self, response, body):
        """Returns a whole or streamed answer in one form: its choices by index, and the token counts."""
        choices, usage, ended = {}, None, False
        for line in response if "stream" in body else [b"data: " + response.read(), b"data: [DONE]"]:
            if ended := line.strip() == b"data: [DONE]":
                break
            event = json.loads(line[6:]) if line.startswith(b"data: ") else {"choices": []}
            assert "error" not in event, f"a stream failed: {event}"
            usage = event.get("usage") or usage
            for part in event["choices"]:
                choice = choices.setdefault(part["index"], {"text": "", "ids": [], "finish": None})
                said = part.get("delta") or part.get("message") or part
                choice["text"] += said.get("content") or said.get("text") or ""
                choice["ids"] += part.get("token_ids") or []
                choice["finish"] = part["finish_reason"] or choice["finish"]
                for name, values in (part.get("logprobs") or {}).items():
                    choice.setdefault(name, []).extend(values or [])
        assert ended and not response.read().strip(), "a stream was lost: [DONE] is not its end"
        return choices, usage

    def ask(self):
        """Sends a new request, or repeats one that was answered before, on the idle server or under load."""
        path, body = self.request()
        if self.known and self.draw.random() < 0.3:
            path, body = json.loads(self.draw.choice(list(self.known)[: self.draw.choice([FIXED, None])]))
        body |= self.draw.choice([STREAM, STREAM, {}]) | {"priority": self.draw.choice(["low", "normal", "high"])}
        self.finish(self.server.send(path, body, self.connection), path, body)

    def hang_up(self):
        """Disconnects before or in the middle of an answer, which may be endless."""
        path, body = self.request()
        body = {name: it for name, it in body.items() if name not in ("max_tokens", *CHOICE)} | STREAM | {"ignore_eos": True}
        self.connection.request("POST", path, json.dumps(body))
        if self.draw.random() < 0.8 and self.accepted(response := self.connection.getresponse()):
            response.read(int(60 * min(1000, self.draw.paretovariate(0.5))))
        self.connection.close()
        self.counts["cancels"] += 1

    def leave(self):
        """Leaves before an answer that is not streamed: after extra bytes, with one direction closed, or without the last byte of the request."""
        text = json.dumps({"prompt": "a", "n": 4, "max_tokens": 400, "ignore_eos": True}).encode()
        text = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text
        try:
            with self.server.connect_bare() as bare:
                bare.sendall(self.draw.choice([text[:-1], text, text + b"\r\n", text + text, text + b"x" * 200_000]))
                time.sleep(self.draw.choice([0, 0.1, 3]))
                if self.draw.random() < 0.3:
                    bare.shutdown(socket.SHUT_WR)
                    while bare.recv(65536):
                        pass
        except ConnectionError:
            pass  # The server may have closed the connection already.
        self.counts["left"] += 1

    def bomb(self):
        """Sends a chat that the hostile template cannot render, for any content."""
        body = {"model": "bomb", "messages": [{"role": "user", "content": self.draw.choice(["deep", "work", "long", "again"])}]}
        response = self.server.send(CHAT, body, self.connection)
        assert b'"error"' in response.read() and 400 <= response.status < 500, f"{response.status} for a bomb: {body}"
        self.counts["bombs"] += 1

    def boast(self):
        """Sends a name too long for any log, and a batch of more texts than the queue holds."""
        if self.accepted(response := self.server.send(TEXT, {"prompt": "a", "max_tokens": 1, "user": "x" * 10_000_000}, self.connection)):
            response.read()
        if self.accepted(response := self.server.send(EMBED, {"input": ["a b c"] * self.draw.choice([100, 2000])}, self.connection)):
            response.read()

    def others(self):
        """Requests embeddings, and a round trip of tokens."""
        text = self.server.words(self.draw, 0.5)
        there = json.load(self.server.send("/tokenize", {"content": text}, self.connection))["tokens"]
        back = json.load(self.server.send("/detokenize", {"tokens": there}, self.connection))["content"]
        assert back.strip() == text, f"{text!r} comes back as {back!r}"
        if self.accepted(response := self.server.send(EMBED, {"input": [text, there[:5]]}, self.connection)):
            assert len(json.load(response)["data"]) == 2, "a text has no vector"

    def nonsense(self):
        """Sends invalid requests: truncated, not UTF-8, a field twice, too deep, a wrong type, too long."""
        path, body = self.request()
        text, long = json.dumps(body).encode(), {"prompt": self.server.words(self.draw, 1) * self.draw.choice([2, 50])}
        bad = [text[: self.draw.randrange(len(text))], b"\xff" + text, text[:-1] + b', "seed": 1}', b"[" * 50_000, body | {"n": "x"}]
        response = self.server.send(*self.draw.choice([*((path, it) for it in bad), (TEXT, long)]), self.connection)
        assert b'"error"' in response.read() and response.status == 400, f"{response.status} for {path}, one of {bad} {long}"
        self.counts["status 400"] += 1

    def crowd(self):
        """Sends more concurrent requests than the queue holds."""
        body = {"prompt": self.server.words(self.draw, 0.3), "max_tokens": 20, "n": 8, "seed": 1, "return_token_ids": True}
        guests = [self.server.connect() for _ in range(CROWD)]
        for guest in guests:
            guest.request("POST", TEXT, json.dumps(body))
        for guest in guests:
            self.finish(guest.getresponse(), TEXT, body)
        self.connection.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deaths", action="store_true", help="kill all engines every minute; a request that dies three times before its first token fails")
    parser.add_argument("command", nargs="+", help="the server's command, after --")
    arguments = parser.parse_args()
    server, failures, ending = Server(arguments.command, arguments.seed), [], threading.Event()
    idle = server.figures()
    first = Client(server, random.Random(arguments.seed), {}, failures)
    while len(first.known) < FIXED:
        first.ask()
    clients = [Client(server, random.Random(f"{arguments.seed} {i}"), dict(first.known), failures) for i in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        pool.map(lambda client: client.run(ending), clients)
        counts = server.watch(arguments.minutes, failures, arguments.deaths)
        ending.set()
    end = time.time() + 60
    while any((now := server.figures())[name] != idle[name] for name in GAUGES) and time.time() < end:
        time.sleep(0.5)
    server.process.terminate()
    failures += [f"the server ended with {code}"] if (code := server.process.wait(60)) else []
    counts |= {name: int(now[name]) for name in COUNTERS} | sum((client.counts for client in clients), Counter())
    failures += [f"{name} is {now[name]:.0f} when all have gone; it was {idle[name]:.0f}" for name in GAUGES if now[name] != idle[name]]
    failures += [f"{name}: {it:.0f}" for name, it in now.items() if it and re.search('status="5|reason="error"', name)]
    failures += [f"the load did not cause any {name}" for name in WANTED if not counts.get(name)]
    print(*(f"{name:>24} {value}" for name, value in counts.items()), *server.warnings[:5], sep="\n")
    print(f"FAILED: {failures[-1][:500]}" if failures else "OK: no request was lost or wrong, and no memory leaked.")
    print(json.dumps(counts | {"warnings": len(server.warnings), "failures": len(failures)}))
    sys.exit(bool(failures))


main()
