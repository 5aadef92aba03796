"""Clients that vanish and come back, and a server that is killed: nothing of a stored response is lost or repeated.

    MLX_SERVER=target/debug/mlx-server python comes_back.py [--clients 1000] [--kills 20]

1. Clients read some events of a streamed response, hang up, and ask for the rest, by `starting_after` or `Last-Event-ID`: both parts
   together are the whole stream, to the byte.
2. A server with a journal is killed at random moments under load and started again: every response of which a client had seen the
   first event ends as it would have, to the bit. Run by `cargo xtask clients`."""

import argparse
import contextlib
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MODEL = Path(__file__).parent.parent / "golden/models/llama-f32"
# The tokens that end an answer never come.
REQUEST = {"exact": True, "logit_bias": {"2": -100, "4": -100}}
PATH = "/v1/responses"


class Server:
    def __init__(self, *flags):
        command = [os.environ["MLX_SERVER"], "--port", "0", "-m", str(MODEL), "--preload", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            entry = json.loads(line)
            if entry.get("message") == "listening":
                self.address = entry["address"]
                break
        threading.Thread(target=lambda: self.process.stderr.read(), daemon=True).start()

    def open(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(self.address, timeout=120)
        connection.request(method, path, json.dumps(body) if body else None, headers or {})
        return connection, connection.getresponse()

    def fetch(self, path):
        connection, response = self.open("GET", path)
        with contextlib.closing(connection):
            return response.status, response.read()

    def kill(self):
        self.process.kill()
        self.process.wait()


def request(seed, length, **more):
    return {"input": f"Go {seed % 7}", "seed": seed, "max_output_tokens": length, **REQUEST, **more}


def answer(response):
    """What two computations of one request have in common."""
    return [response["status"], response["seed"], [item["content"] for item in response["output"]], response["usage"]["output_tokens"]]


def events(response):
    """The events of a stream, each as its bytes."""
    event = b""
    for line in response:
        event += line
        if line == b"\n":
            if not event.startswith(b":"):
                yield event
            event = b""


def comes_back(server, seed):
    draw = random.Random(seed)
    connection, response = server.open("POST", PATH, request(seed, draw.randint(1, 60), stream=True))
    read, most = [], draw.randint(1, 50)
    for event in events(response):
        read.append(event)
        if len(read) == most:
            break
    connection.close()
    identity = json.loads(read[0].split(b"data: ")[1])["response"]["id"]
    time.sleep(draw.random() / 10)
    last = len(read) - 1
    if draw.random() < 0.5:
        path, headers = f"{PATH}/{identity}?stream=true&starting_after={last}", {}
    else:
        path, headers = f"{PATH}/{identity}?stream=true", {"Last-Event-ID": str(last)}
    connection, response = server.open("GET", path, headers=headers)
    rest = list(events(response))
    connection.close()
    connection, response = server.open("GET", f"{PATH}/{identity}?stream=true")
    whole = list(events(response))
    connection.close()
    assert read + rest == whole, f"seed {seed}: {len(read)} and {len(rest)} of {len(whole)} events"
    kind = json.loads(whole[-1].split(b"data: ")[1])["type"]
    assert kind in ("response.completed", "response.incomplete"), kind


def vanish(clients):
    server = Server("--max-waiting", "2000", "--responses-store", "1GB")
    with ThreadPoolExecutor(24) as pool:
        list(pool.map(lambda seed: comes_back(server, seed), range(clients)))
    server.kill()
    print(f"{clients} clients vanished and came back: each got exactly the missing part")


def load(server, seeds, accepted, stop):
    """Sends requests until the server is gone; notes those whose first event came."""
    while not stop.is_set():
        seed = next(seeds)
        try:
            connection, response = server.open("POST", PATH, request(seed, 40 + seed % 100, stream=True))
            with contextlib.closing(connection):
                for place, event in enumerate(events(response)):
                    if place == 0:
                        accepted[json.loads(event.split(b"data: ")[1])["response"]["id"]] = seed
        except (OSError, http.client.HTTPException):
            return


def ended(server, identity):
    while True:
        status, body = server.fetch(f"{PATH}/{identity}")
        response = json.loads(body)
        assert status == 200, f"{identity}: {body}"
        if response["status"] != "in_progress":
            return response
        time.sleep(0.02)


def killed(kills):
    folder, draw, seeds = tempfile.TemporaryDirectory(), random.Random(0), iter(range(1 << 30))
    accepted, checked, interrupted = {}, 0, 0
    flags = ("--journal", folder.name, "--max-waiting", "2000", "--responses-store", "1GB")
    for _ in range(kills):
        server, stop = Server(*flags), threading.Event()
        threads = [threading.Thread(target=load, args=(server, seeds, accepted, stop)) for _ in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(draw.uniform(0.05, 1.0))
        server.kill()
        stop.set()
        for thread in threads:
            thread.join()
    server = Server(*flags)
    interrupted = sum(json.loads(server.fetch(f"{PATH}/{it}")[1])["status"] == "in_progress" for it in accepted)
    for identity, seed in accepted.items():
        connection, response = server.open("POST", PATH, request(seed, 40 + seed % 100, store=False))
        with contextlib.closing(connection):
            expected, found = answer(json.loads(response.read())), answer(ended(server, identity))
        assert found == expected, f"{identity}, seed {seed}: {found} is not {expected}"
        checked += 1
    server.kill()
    assert checked, "no response was accepted"
    print(f"{kills} kills: {checked} accepted responses ended as they would have; {interrupted} were being computed at the last start")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("base", nargs="?", help="not used")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=20)
    given = parser.parse_args()
    if "MLX_SERVER" not in os.environ:
        sys.exit(__doc__)
    vanish(given.clients)
    killed(given.kills)
