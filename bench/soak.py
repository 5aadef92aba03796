"""A soak: a server under mixed, rude and crowded load for a long time. Nothing may be lost, wrong, left over or growing.

    python bench/soak.py [--minutes 30] [--seed 0] -- target/release/mlx-server -m MODEL --memory-budget 6MB --max-running 16 --max-waiting 24

It starts the server, on a free port unless the command says --port. Clients send random chats, completions, embeddings and texts, hang up,
send nonsense and come in crowds; what was answered is asked again and must be the same to the last bit. A memory budget of a few requests and
a short queue are needed: the load must make the server put back and turn away somebody. A run of 10 minutes or more fails if the server's
resident memory still grows. The last line is one JSON object with all counts. Nothing but Python is needed.
"""

import argparse
import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

WORDS = "river stone window garden letter engine morning paper silver number answer market winter signal bridge forest".split()
CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
CLIENTS, CROWD, FIXED, RECENT, GROWTH, SAMPLE = 12, 40, 20, 30, 1.05, 10
OPTIONS = {
    "temperature": [0, 0.3, 0.8, 1.5], "top_k": [1, 5, 40], "top_p": [0.3, 0.7, 0.95], "min_p": [0.02, 0.3], "typical_p": [0.3, 0.9],
    "xtc_probability": [0.3, 1], "xtc_threshold": [0.05, 0.3], "repetition_penalty": [0.9, 1.4], "penalty_last_n": [-1, 20], "n": [2, 3, 4],
    "frequency_penalty": [-0.5, 1], "presence_penalty": [-0.5, 1], "logit_bias": [{"40": 5}, {"50": -9}], "ignore_eos": [True],
    "dry_multiplier": [0.3, 1], "dry_base": [1.2, 2], "dry_allowed_length": [1, 4], "dry_penalty_last_n": [-1, 64], "max_tokens": [1, 8, 40],
    "dry_sequence_breakers": [["."], [" and", "\n"]], "stop": [["."], [" the", "\n"], ["qu", "er "]], "priority": ["low", "normal", "high"],
}  # fmt: skip
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}}
GAUGES = ["requests_running", "requests_waiting", "reserved_bytes", "used_bytes"]
COUNTERS = ["preemptions", "prefix_cache_hits", "prefix_cache_evictions", "cached_tokens", "prompt_tokens", "completion_tokens"]
WANTED = ["preemptions", "prefix_cache_hits", "cancels", "same again", "streams ended", "status 400", "status 429"]


def send(connection, path, body=None):
    connection.request("GET" if body is None else "POST", path, json.dumps(body) if isinstance(body, dict) else body)
    return connection.getresponse()


def events(response, pause):
    """The events of a stream; only [DONE], with nothing behind it, is a proper end."""
    for line in response:
        time.sleep(pause)
        if line.strip() == b"data: [DONE]" and not response.read().strip():
            return
        assert not line.startswith(b'data: {"error"'), f"a stream failed: {line}"
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
    raise AssertionError("a stream was lost: it ended without [DONE]")


def answers(response, body, pause):
    """An answer in one form, whether it came whole or as a stream: its choices by index, and the counts of tokens."""
    choices, usage = {}, None
    for event in events(response, pause) if "stream" in body else [json.loads(response.read())]:
        usage = event.get("usage") or usage
        for part in event["choices"]:
            choice = choices.setdefault(part["index"], {"text": "", "ids": [], "finish": None})
            said = part.get("delta") or part.get("message") or part
            choice["text"] += said.get("content") or said.get("text") or ""
            choice["ids"] += part.get("token_ids") or []
            choice["finish"] = part["finish_reason"] or choice["finish"]
            for name, values in (part.get("logprobs") or {}).items():
                choice.setdefault(name, []).extend(values or [])
    return choices, usage


class Server:
    """The server's process, and what it says of itself."""

    def __init__(self, command, seed):
        port = [] if any(part.startswith("--port") for part in command) else ["--port", "0"]
        self.process = subprocess.Popen(command + port, stderr=subprocess.PIPE, text=True, errors="replace")
        found = (re.search(r'"address":"([^"]*)', line) for line in self.process.stderr)
        self.address = next((it[1] for it in found if it), None) or sys.exit("the server ended before it listened")
        self.warnings, self.beginnings, draw = [], [""], random.Random(seed)
        log = (line for line in self.process.stderr if '"level":"INFO"' not in line)
        threading.Thread(target=lambda: self.warnings.extend(log), daemon=True).start()
        # What the model takes, and what the server offers.
        self.context = int(re.search(rb"context holds (\d+)", self.post(TEXT, {"prompt": "a " * 4_000_000}))[1])
        self.ids = json.loads(self.post("/tokenize", {"content": " ".join(WORDS)}))["tokens"]
        chat = {"messages": [{"role": "user", "content": "Yes?"}], "max_tokens": 20}
        self.forms = [SCHEMA] if b"choices" in self.post(CHAT, chat | SCHEMA) else []
        self.beginnings = [""] * 6 + [self.words(draw, share / 30) + " " for share in range(2, 8)]

    def post(self, path, body):
        return send(self.connect(), path, body).read()

    def words(self, draw, share):
        """Random words for about this share of the context, 1500 tokens at most, often behind a beginning that others have, too."""
        count = 1 + int(min(1500, share * self.context) * len(WORDS) / len(self.ids))
        return draw.choice(self.beginnings) + " ".join(draw.choices(WORDS, k=count))

    def connect(self):
        return http.client.HTTPConnection(self.address, timeout=300)

    def figures(self):
        """The server's figures by name, without the model's."""
        page = send(self.connect(), "/metrics").read().decode()
        return {re.sub(r'^mlx_|_total|model="[^"]*"|[{}]', "", name): float(it) for name, it in re.findall(r"(?m)^([^#].*) (.*)$", page)}

    def resident(self):
        """Resident memory in MB."""
        if sys.platform == "darwin":
            return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(self.process.pid)])) / 1024
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return int(status.read().split("VmRSS:")[1].split()[0]) / 1024


class Client:
    """Does one random thing after the other; what must not happen goes to `failures`."""

    def __init__(self, server, draw, known, failures):
        self.server, self.draw, self.known, self.failures = server, draw, known, failures
        self.connection, self.counts = server.connect(), Counter()

    def run(self, deadline):
        often = {self.ask: 70, self.hang_up: 14, self.others: 8, self.nonsense: 7, self.crowd: 0.3}
        while time.time() < deadline:
            (kind,) = self.draw.choices(list(often), list(often.values()))
            try:
                kind()
            except Exception as error:  # Whatever it is, it is a finding, and the load goes on.
                self.failures.append(f"{kind.__name__}: {error!r}")
                print("FAILED", self.failures[-1], flush=True)
                self.connection = self.server.connect()

    def request(self):
        """A path and a body that the server must accept: a completion, a chat, or a chat that outgrows the context."""
        pick, context, top = self.draw.choice, self.server.context, self.draw.randrange(21)
        body = {"seed": self.draw.getrandbits(63), "return_token_ids": True} | pick([{}, {"max_tokens": 40}, {"max_tokens": 400}])
        body |= {name: pick(values) for name, values in OPTIONS.items() if self.draw.random() < 0.25}
        text = self.server.words(self.draw, 0.5 * self.draw.random() ** 2)
        if self.draw.random() < 0.5:
            ids = self.draw.choices(self.server.ids, k=self.draw.randrange(5, min(1500, context - 5)))
            forms = [{}, {}, {"logprobs": top}, {"logprobs": 2, "echo": True}, {"max_tokens": 0, "echo": True, "logprobs": 1}]
            return TEXT, body | {"prompt": pick([text, ids])} | pick(forms)
        forms = [{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": top}, {"context_policy": "evict-turns", "max_tokens": 40}]
        body |= pick([*forms, *self.server.forms, {"context_policy": "slide", "max_tokens": context + 100}])
        texts = [self.server.words(self.draw, 0.08) for _ in range(15)] if "context_policy" in body else [text]
        return CHAT, body | {"messages": [{"role": ("user", "assistant")[i % 2], "content": it} for i, it in enumerate(texts)]}

    def accepted(self, response):
        """Counts a response to a good request. Only a full queue may turn it away, and says when to come back."""
        self.counts[f"status {response.status}"] += 1
        text = b"" if response.status == 200 else response.read()
        assert not text or response.status == 429 and response.headers["retry-after"], f"a good request gets {response.status}: {text}"
        return not text

    def judge(self, body, choices, usage):
        """An answer is as long, as whole and as well ended as its request asks."""
        room, every = self.server.context - usage["prompt_tokens"], list(choices.values())
        limit = body["max_tokens"] if body.get("context_policy") == "slide" else min(room, body.get("max_tokens", room))
        whole = sorted(choices) == list(range(body.get("n", 1))) and usage["completion_tokens"] == sum(len(it["ids"]) for it in every)
        ended = [len(it["ids"]) == limit if it["finish"] == "length" else it["finish"] == "stop" and len(it["ids"]) <= limit for it in every]
        stopped = "echo" in body or not any(stop in it["text"] for it in every for stop in body.get("stop", []))
        assert whole and all(ended) and stopped, f"an answer is not what was asked for: {json.dumps([body, choices, usage])}"

    def finish(self, response, path, body):
        """Reads an answer, now and then slowly. The same request must have the same one, whatever ran beside it and was kept before it."""
        if not self.accepted(response):
            return time.sleep(self.draw.uniform(0.05, 0.5))
        choices, usage = answers(response, body, self.draw.choice([0] * 30 + [0.01]))
        self.judge(body, choices, usage)
        self.counts["streams ended" if "stream" in body else "whole answers"] += 1
        key = json.dumps([path, {name: it for name, it in body.items() if name not in (*STREAM, "priority")}])
        self.counts["same again"] += key in self.known
        before = self.known.setdefault(key, choices)
        if len(self.known) > FIXED + RECENT:
            self.known.pop(list(self.known)[FIXED])
        exact = response.headers["x-exactness"] != "sampling-exact"
        assert choices == before or not exact, f"an answer has changed: {key} had {json.dumps(before)} and has {json.dumps(choices)}"

    def ask(self):
        """Something new, or one of the first requests or of the latest."""
        path, body = self.request()
        if len(self.known) >= FIXED and self.draw.random() < 0.3:
            known = list(self.known)
            path, body = json.loads(self.draw.choice(self.draw.choice([known, known[:FIXED]])))
        body |= self.draw.choice([STREAM, STREAM, {}])
        self.finish(send(self.connection, path, body), path, body)

    def hang_up(self):
        """Leaves before or in the middle of an answer, which may have no end."""
        path, body = self.request()
        if body.get("context_policy") == "slide":
            body["ignore_eos"] = body.pop("max_tokens") > 0
        connection = self.server.connect()
        connection.request("POST", path, json.dumps(body | STREAM))
        if self.draw.random() < 0.8 and self.accepted(response := connection.getresponse()):
            response.read(int(60 * self.draw.paretovariate(0.5)))
            response.close()
        connection.close()
        self.counts["cancels"] += 1

    def others(self):
        """Vectors, and tokens there and back."""
        text = self.server.words(self.draw, 0.5)
        there = json.loads(self.server.post("/tokenize", {"content": text}))["tokens"]
        back = json.loads(self.server.post("/detokenize", {"tokens": there}))["content"]
        assert back.strip() == text, f"{text!r} comes back as {back!r}"
        if self.accepted(response := send(self.connection, EMBED, {"input": [text, there[:5]]})):
            assert len(json.loads(response.read())["data"]) == 2, "a text has no vector"

    def nonsense(self):
        """What is refused: cut off, no UTF-8, an unknown field, too deep, a wrong type, too long."""
        path, body = self.request()
        text, long = json.dumps(body).encode(), {"prompt": self.server.words(self.draw, 1) * self.draw.choice([2, 50])}
        bad = [text[: self.draw.randrange(len(text))], b"\xff" + text, text[:-1] + b', "other": 1}', b"[" * 50_000, body | {"n": "x"}]
        response = send(self.connection, *self.draw.choice([*((path, it) for it in bad), (TEXT, long)]))
        assert b'"error"' in response.read() and response.status == 400, f"{response.status} for {path}, one of {bad} {long}"
        self.counts["status 400"] += 1

    def crowd(self):
        """More at once than the queue holds."""
        body = {"max_tokens": 20, "n": 8, "seed": 1, "return_token_ids": True}
        guests = [(self.server.connect(), body | {"prompt": self.server.words(self.draw, 0.3)}) for _ in range(CROWD)]
        for connection, body in guests:
            connection.request("POST", TEXT, json.dumps(body))
        for connection, body in guests:
            self.finish(connection.getresponse(), TEXT, body)
            connection.close()


def watch(server, minutes, failures):
    """Samples memory until the time is over; compares the second sixth with the last, and fits a line to the last five."""
    begin, samples = time.time(), []
    while (now := time.time() - begin) < 60 * minutes:
        samples.append((now, server.resident()))
        if len(samples) % 6 == 1:
            shown = [f"{name} {it:.0f}" for name, it in server.figures().items() if name in GAUGES + COUNTERS]
            print(f"{now / 60:.0f} min, {samples[-1][1]:.1f} MB, {', '.join(shown)}, {len(failures)} failures", flush=True)
        time.sleep(SAMPLE)
    early, late = (statistics.median(mb for at, mb in samples if first <= at / minutes < last) for first, last in ((10, 20), (50, 60)))
    slope = 3600 * statistics.linear_regression(*zip(*(it for it in samples if it[0] >= 10 * minutes))).slope
    if minutes >= 10 and late > GROWTH * early:
        failures.append(f"memory grows: from {early:.1f} to {late:.1f} MB, {slope:.1f} MB an hour")
    most = max(mb for _, mb in samples)
    return {"rss_first": samples[0][1], "rss_last": samples[-1][1], "rss_max": most, "rss_ratio": late / early, "rss_mb_per_hour": slope}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("command", nargs="+", help="the server's command, behind --")
    arguments = parser.parse_args()
    server, failures = Server(arguments.command, arguments.seed), []
    try:
        first = Client(server, random.Random(arguments.seed), {}, failures)
        while len(first.known) < FIXED:
            first.ask()
        idle, deadline = server.figures(), time.time() + 60 * arguments.minutes
        clients = [Client(server, random.Random(f"{arguments.seed} {i}"), dict(first.known), failures) for i in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            pool.map(lambda client: client.run(deadline), clients)
            counts = watch(server, arguments.minutes, failures)
        deadline = time.time() + 60
        while any((now := server.figures())[name] != idle[name] for name in GAUGES) and time.time() < deadline:
            time.sleep(0.5)
        server.process.terminate()
        failures += [f"the server ended with {code}"] if (code := server.process.wait(60)) else []
    finally:
        server.process.kill()
    counts |= {name: int(now[name]) for name in COUNTERS} | sum((client.counts for client in clients), Counter())
    failures += [f"{name} is {now[name]:.0f} when all have gone; it was {idle[name]:.0f}" for name in GAUGES if now[name] != idle[name]]
    failures += [f"{name}: {it:.0f}" for name, it in now.items() if it and re.search('status="5|reason="error"', name)]
    failures += [f"the load did not cause any {name}" for name in WANTED if not counts.get(name)]
    for name, value in counts.items():
        print(f"{name:>24} {value:.10g}")
    print(f"{len(server.warnings)} warnings", *server.warnings[:5], sep="\n")
    print(f"FAILED: {failures[-1][:500]}" if failures else "Nothing was lost, wrong, left over or growing.")
    print(json.dumps(counts | {"warnings": len(server.warnings), "failures": len(failures)}))
    sys.exit(bool(failures))


main()
