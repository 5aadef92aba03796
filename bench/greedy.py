"""Measures the latency of small requests while another client sends the largest allowed requests.

    python bench/greedy.py [--requests 200] [--clients 2] -- SERVER COMMAND WITH {port}

A small client sends short chats, texts to tokenize and embeddings, one after the other. It runs first without greedy clients, then with
each kind of them. Prints the figures as one line of JSON. Needs only Python.
"""

import argparse
import http.client
import json
import multiprocessing
import time

from load import free_port, resident, server, share

LARGEST = 16 << 20
MEGABYTE = 1 << 20


def text(bytes, part="The keeper counts the waves. "):
    return (part * (bytes // len(part) + 1))[:bytes]


def body(value):
    encoded = json.dumps(value).encode()
    assert len(encoded) <= LARGEST, len(encoded)
    return encoded


def greedy():
    """Yields the largest request of each kind: a name, a path and a body."""
    most = LARGEST - 1000
    user = lambda content: [{"role": "user", "content": content}]
    yield "words to tokenize", "/tokenize", body({"content": text(most), "with_pieces": True})
    yield "a letter to tokenize", "/tokenize", body({"content": "a" * most})
    yield "words to render", "/v1/chat/render", body({"messages": user(text(most))})
    yield "a chat of words", "/v1/chat/completions", body({"messages": user(text(most)), "max_tokens": 1})
    yield "a chat of spaces", "/v1/chat/completions", body({"messages": user(" " * most), "max_tokens": 1})
    yield "a prompt of words", "/v1/completions", body({"prompt": text(most), "max_tokens": 1})
    yield "many prompts", "/v1/completions", body({"prompt": ["a"] * 300_000, "max_tokens": 1})
    yield "many texts to embed", "/v1/embeddings", body({"input": ["a"] * 300_000})
    yield "many messages", "/v1/chat/completions", body({"messages": user("a") * 400_000, "max_tokens": 1})
    yield "many numbers", "/detokenize", body({"tokens": [5] * 5_000_000})
    yield "many tokens", "/detokenize", body({"tokens": [300] * 1_000_000})


def small(number):
    word = f"wave {number}"
    chat = {"messages": [{"role": "user", "content": word}], "max_tokens": 1, "temperature": 0}
    return [("/tokenize", {"content": word}), ("/v1/chat/completions", chat), ("/v1/embeddings", {"input": word})][number % 3]


def measure(port, requests):
    """Returns the seconds of each small request."""
    connection, waits = http.client.HTTPConnection("127.0.0.1", port, timeout=300), []
    for number in range(requests):
        path, value = small(number)
        begin = time.perf_counter()
        connection.request("POST", path, json.dumps(value), {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {answer[:200]!r}")
        waits.append(time.perf_counter() - begin)
    return waits


def send(port, path, body, ending, told):
    """Sends the same large request repeatedly, then reports the number of answers and their statuses."""
    answers, statuses = 0, set()
    while not ending.is_set():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        try:
            connection.request("POST", path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            statuses.add(str(response.status))
            while response.read(MEGABYTE):
                pass
            answers += 1
        except (OSError, http.client.HTTPException):
            statuses.add("cut off")
        finally:
            connection.close()
    told.put((answers, statuses))


class Greedy:
    """Runs clients that send large requests. Each is a process, because threads would delay the small client by the interpreter lock."""

    def __init__(self, port, path, body, clients):
        self.ending, self.told, self.answers, self.statuses = multiprocessing.Event(), multiprocessing.Queue(), 0, set()
        inputs = (port, path, body, self.ending, self.told)
        self.processes = [multiprocessing.Process(target=send, args=inputs, daemon=True) for _ in range(clients)]

    def __enter__(self):
        for process in self.processes:
            process.start()
        time.sleep(0.5)
        return self

    def __exit__(self, *error):
        self.ending.set()
        for process in self.processes:
            answers, statuses = self.told.get()
            self.answers, self.statuses = self.answers + answers, self.statuses | statuses
            process.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200, help="small requests per greedy client")
    parser.add_argument("--clients", type=int, default=2, help="concurrent greedy clients")
    parser.add_argument("--only", default="", help="run only greedy clients with this name prefix")
    parser.add_argument("server", nargs="+", help="the server's command, with {port} as a placeholder for its port")
    arguments = parser.parse_args()
    port, figures = free_port(), {}
    with server(arguments.server, port) as process:
        measure(port, 30)
        alone = share(measure(port, 3 * arguments.requests), 0.99)
        figures |= {"alone, p99 ms": alone, "alone, resident MB": resident(process)}
        for name, path, encoded in greedy():
            if not name.startswith(arguments.only):
                continue
            with Greedy(port, path, encoded, arguments.clients) as others:
                waits = measure(port, arguments.requests)
                held = resident(process)
            figures |= {f"{name}, p99 ms": share(waits, 0.99), f"{name}, p99 / alone": share(waits, 0.99) / alone}
            figures |= {f"{name}, resident MB": held, f"{name}, answers of {sorted(others.statuses)}": others.answers}
    print(json.dumps(figures))


main()
