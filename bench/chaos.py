"""Deaths of engines under load: 64 clients get the answers of a run without deaths, to the byte, with their usage and event numbers.

    python bench/chaos.py [--moments 200] [--seed 0] -- target/debug/mlx-server

chaos_workers.py does the same to the ranks of a divided model, with the server and the clients of this file.

It starts the server with two tiny checkpoints, each in a child process. The clients use four protocols, streamed and whole, with grammars, tools,
drafts, several choices and pictures. At each moment one child gets a signal, too little memory, or a fault of its test hook. The next moment comes
after two more answers of each model: a request that dies too often without a token in between fails. The last lines are a table of the faults: their number, and the time from each to the next token of a stream."""

import argparse
import atexit
import base64
import http.client
import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "tests/golden"
CLIENTS, VARIANTS, PATIENCE, SHOWN = 64, 6, 300, 4
SIGNALS, HOOKS = ["KILL", "ABRT", "STOP"], ["wedge", "abort", "exit", "garbage", "memory"]
# Fields that differ between two runs: ids, times, and counts that depend on other requests.
VOLATILE = {
    "id", "item_id", "call_id", "created", "created_at", "completed_at", "timings", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration",
    "cached_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens", "seed",
}  # fmt: skip
TEMPLATE = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
SCHEMA = {
    "type": "object", "properties": {"kind": {"enum": ["calm", "storm"]}, "n": {"type": "integer"}},
    "required": ["kind", "n"], "additionalProperties": False,
}  # fmt: skip


def requests(picture):
    """Returns model, path and body of each request."""
    function = {"name": "report", "description": "Reports the sea.", "parameters": SCHEMA}
    tool = {"type": "function", "function": function}
    data = base64.b64encode(picture).decode()
    made = []
    for i in range(VARIANTS):
        text, count, stream = ["The waves", "The keeper counts", "A lamp and a lamp and a"][i % 3] + f" {i}", 40 + 16 * i, i % 2 == 0
        said = [{"role": "user", "content": text}]
        usage = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        see = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        shown = [{"role": "user", "content": [see, {"type": "text", "text": text}]}]
        source = {"type": "base64", "media_type": "image/png", "data": data}
        form = {"type": "json_schema", "json_schema": {"name": "sea", "schema": SCHEMA}}
        exact = {"max_tokens": count, "seed": i}
        made += [("tiny", *request) for request in [
            ("/v1/chat/completions", {"messages": said, "logprobs": True, "top_logprobs": 2, "repetition_penalty": 1.1, "ignore_eos": True} | exact | usage),
            ("/v1/chat/completions", {"messages": said, "response_format": form} | exact | usage),
            ("/v1/chat/completions", {"messages": said, "tools": [tool], "tool_choice": "required"} | exact | usage),
            ("/v1/chat/completions", {"messages": said, "temperature": 0, "speculate": "lookup", "ignore_eos": True} | exact | usage),
            ("/v1/completions", {"prompt": text, "n": 1 + i % 3, "stop": ["zq"], "logprobs": 1, "ignore_eos": True, "stream": stream} | exact),
            ("/v1/messages", {"messages": said, "max_tokens": count, "stream": stream, "temperature": 0}),
            ("/v1/messages", {"messages": said, "max_tokens": count, "stream": not stream, "temperature": 0, "tool_choice": {"type": "any"},
                              "tools": [{"name": "report", "input_schema": SCHEMA}]}),
            ("/v1/responses", {"input": text, "max_output_tokens": count, "stream": stream, "temperature": 0}),
            ("/v1/responses", {"input": text, "max_output_tokens": count, "stream": not stream, "temperature": 0, "tools": [{"type": "function"} | function]}),
            ("/api/chat", {"messages": said, "stream": stream, "options": {"num_predict": count, "seed": i}}),
            ("/api/generate", {"prompt": text, "stream": not stream, "options": {"num_predict": count, "seed": i}, "format": SCHEMA}),
        ]]  # fmt: skip
        made += [("eye", *request) for request in [
            ("/v1/chat/completions", {"messages": shown, "ignore_eos": True} | exact | usage),
            ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": text}]}],
                              "max_tokens": count, "stream": stream, "temperature": 0}),
            ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": see["image_url"]["url"]}]}],
                               "max_output_tokens": count, "stream": stream, "temperature": 0}),
            ("/api/chat", {"messages": [said[0] | {"images": [data]}], "stream": stream, "options": {"num_predict": count, "seed": i}}),
        ]]  # fmt: skip
    return made


def stable(value):
    """Returns a value without its volatile fields."""
    if isinstance(value, dict):
        return {name: stable(it) for name, it in value.items() if name not in VOLATILE}
    return [stable(it) for it in value] if isinstance(value, list) else value


def copy_model(folder):
    """Copies a tiny checkpoint, with a template for tools and a long context. Returns its folder."""
    model = Path(folder) / "tiny"
    shutil.copytree(GOLDEN / "models/llama-f32", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return model


class Server:
    """The server, its models and its children."""

    def __init__(self, command, models, options, variables):
        self.models = models
        own = {name: value for name, value in os.environ.items() if not name.startswith("MLX_")}
        shared = ["--port", "0", "--exact", "--preload", "--prefix-cache", "0", "--max-waiting", "999", "--keep-alive", "1000"]
        named = [word for name, folder in models.items() for word in ("-m", f"{name}={folder}")]
        self.process = subprocess.Popen(command + shared + options + named, env=own | variables, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        found = (re.search(r'"address":"([^"]*)', line) for line in self.process.stderr)
        self.address = next((it[1] for it in found if it), None) or sys.exit("the server ended before it listened")
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
        self.wait("all models are loaded", lambda: self.get("/ready")[0] == 200)

    def wait(self, what, condition, limit=PATIENCE):
        end = time.monotonic() + limit
        while not (result := condition()):
            if time.monotonic() > end or self.process.poll() is not None:
                sys.exit(f"FAILED: {what}: not within {limit} s\n" + "".join(self.log[-20:]))
            time.sleep(0.01)
        return result

    def get(self, path):
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()

    def figures(self, name):
        """Returns the sum of a metric for each model."""
        sums = dict.fromkeys(self.models, 0)
        for model, value in re.findall(rf'(?m)^{name}\{{model="(\w+)".*\}} (\d+)$', self.get("/metrics")[1]):
            sums[model] += int(value)
        return sums

    def restarts(self):
        return self.figures("mlx_engine_restarts_total")

    def children(self):
        return children(self.process.pid)

    def died(self, before):
        """Returns the models whose engines were restarted since these counts."""
        now = self.restarts()
        return [model for model in now if now[model] > before[model]]

    def end(self):
        """Returns the number of failures at the end: of the server, and children that are left."""
        self.wait("the server is ready", lambda: self.get("/ready")[0] == 200)
        self.wait("nothing runs", lambda: not sum(self.figures("mlx_requests_running").values()))
        left = self.children()
        self.process.terminate()
        return bool(self.process.wait(60)) + sum(Path(f"/proc/{child}").exists() for child in left)


def children(process):
    return [int(it) for it in subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=False).stdout.split()]


def signal(process, name):
    subprocess.run(["kill", "-s", name, str(process)], check=False, stderr=subprocess.DEVNULL)


def harm(server, fault, kind, draw):
    """Has a fault happen to a child. Returns a function that takes it back, if nothing came of it."""
    if kind in HOOKS:
        new = fault.with_suffix(".new")
        new.write_text(kind)
        new.rename(fault)
        return lambda: None
    child = draw.choice(server.children())
    if kind == "limit":
        limits = resource.prlimit(child, resource.RLIMIT_AS)
        used = int(Path(f"/proc/{child}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(child, resource.RLIMIT_AS, (used, limits[1]))
        return lambda: resource.prlimit(child, resource.RLIMIT_AS, limits)
    signal(child, kind)
    return lambda: None


class Load:
    """The clients, and the answers that differ."""

    def __init__(self, server, picture):
        self.server, self.requests = server, [it for it in requests(picture) if it[0] in server.models]
        self.expected, self.wrong, self.answered = [None] * len(self.requests), [], dict.fromkeys(server.models, 0)
        self.tokens, self.lock, self.ending = dict.fromkeys(server.models, 0.0), threading.Lock(), threading.Event()

    def answer(self, place):
        """Returns the stable part of each event of an answer."""
        model, path, body = self.requests[place]
        connection = http.client.HTTPConnection(self.server.address, timeout=PATIENCE)
        connection.request("POST", path, json.dumps(body | {"model": model}), {"Content-Type": "application/json"})
        response, events = connection.getresponse(), []
        for line in response:
            self.tokens[model] = time.monotonic()
            line = line.decode().removeprefix("data: ").strip()
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            # A long pause and a slow prompt have more of these.
            if event.get("type") != "ping" and "prompt_progress" not in event:
                events.append(json.dumps(stable(event)))
        # The choices of a request are interleaved.
        return [str(response.status), *(sorted(events) if body.get("n", 1) > 1 else events)]

    def learn(self):
        places = iter(range(len(self.requests)))

        def work():
            while (place := self.take(places)) is not None:
                self.expected[place] = self.answer(place)

        self.run(work, 16)
        for request, events in zip(self.requests, self.expected, strict=True):
            if events is None or events[0] != "200" or len(events) < 2:
                sys.exit(f"FAILED: {request[:2]} without a death: {events}")

    def take(self, places):
        with self.lock:
            return next(places, None)

    def run(self, work, count):
        finish(start(work, count))

    def clients(self, count, seed):
        """Starts the clients. Returns a function that ends them."""
        numbers = iter(range(count))
        threads = start(lambda: self.client(f"{seed} {self.take(numbers)}"), count)

        def end():
            self.ending.set()
            finish(threads)

        return end

    def wait_for_answers(self, count):
        """Waits for so many more answers of each model."""
        mark = dict(self.answered)
        self.server.wait("more answers", lambda: all(self.answered[model] >= mark[model] + count for model in mark))

    def client(self, seed):
        draw = random.Random(seed)
        while not self.ending.is_set():
            place = draw.randrange(len(self.requests))
            try:
                events = self.answer(place)
            except Exception as error:  # Any exception is a finding; the load continues.
                events = [repr(error)]
            with self.lock:
                self.answered[self.requests[place][0]] += 1
                if events != self.expected[place]:
                    self.wrong.append(events)
                    if len(self.wrong) <= SHOWN:
                        self.show(place, events)

    def show(self, place, events):
        expected = self.expected[place]
        first = next((i for i, pair in enumerate(zip(events, expected, strict=False)) if pair[0] != pair[1]), min(len(events), len(expected)))
        print(f"FAILED: {self.requests[place][:2]}: event {first} of {len(events)}, expected {len(expected)}")
        for name, found in [("got ", events), ("want", expected)]:
            print(f"  {name} {' '.join(found[first : first + 2])[:400] or 'nothing'}", flush=True)


def start(work, count):
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def finish(threads):
    for thread in threads:
        thread.join()


def disturb(server, fault, load, moments, draw):
    """Has the faults happen. Returns the seconds from each fault to the next token, by kind."""
    kinds = SIGNALS + HOOKS + (["limit"] if sys.platform == "linux" else [])
    if sys.platform != "linux":
        kinds.remove("memory")  # The system does not enforce the limit.
    pauses = {kind: [] for kind in kinds}
    for moment in range(moments):
        load.wait_for_answers(2)
        time.sleep(draw.uniform(0, 0.8))
        kind, before, begin = kinds[moment % len(kinds)] if moment < len(kinds) else draw.choice(kinds), server.restarts(), time.monotonic()
        undo = harm(server, fault, kind, draw)
        limit = time.monotonic() + (3 if kind == "limit" else PATIENCE)
        while not (dead := server.died(before)) and time.monotonic() < limit:
            time.sleep(0.005)
        if not dead:
            undo()
            if kind != "limit":
                sys.exit(f"FAILED: {kind} killed no child\n" + "".join(server.log[-20:]))
            continue
        seen = time.monotonic()
        server.wait(f"a token after {kind}", lambda: load.tokens[dead[0]] > seen)
        pauses[kind].append(load.tokens[dead[0]] - begin)
        if moment % 20 == 19:
            print(f"{moment + 1} moments, {sum(load.answered.values())} answers, {len(load.wrong)} wrong", flush=True)
    return pauses


def report(pauses, load, begin):
    """Prints the pauses by kind, and the number of answers."""
    server, width = load.server, max(map(len, pauses))
    resumed, drafted = (sum(server.figures(f"mlx_{name}_total").values()) for name in ("requests_resumed", "drafted_tokens"))
    print(f"\n{'fault':>{width}} {'deaths':>7} {'median s':>9} {'longest s':>10}")
    for kind, times in pauses.items():
        print(f"{kind:>{width}} {len(times):7} {statistics.median(times or [0]):9.2f} {max(times or [0]):10.2f}")
    answers, seconds = sum(load.answered.values()), time.monotonic() - begin
    print(f"{answers} answers in {seconds:.0f} s, {len(load.wrong)} wrong; {resumed} sequences resumed, {drafted} tokens drafted", flush=True)


def verdict(failures):
    print("FAILED" if failures else "OK: no accepted request was lost, and no answer shows a death.")
    sys.exit(bool(failures))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("command", nargs="+", help="the server's command, after --")
    arguments = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    fault, eye = Path(folder.name) / "fault", GOLDEN / "pictures/mistral3-f32"
    hooks = {"MLX_ENGINE_FAULT_FILE": str(fault), "MLX_ENGINE_DEADLINE_MS": "2000"}
    server = Server(arguments.command, {"tiny": copy_model(folder.name), "eye": eye}, ["--max-running", "16"], hooks)
    load, begin = Load(server, (eye / "41x30.png").read_bytes()), time.monotonic()
    load.learn()
    print(f"{len(load.requests)} requests without a death: {time.monotonic() - begin:.1f} s", flush=True)
    end_clients = load.clients(CLIENTS, arguments.seed)
    pauses = disturb(server, fault, load, arguments.moments, random.Random(arguments.seed))
    end_clients()
    report(pauses, load, begin)
    verdict(len(load.wrong) + server.end())


if __name__ == "__main__":
    main()
