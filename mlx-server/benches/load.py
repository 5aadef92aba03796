"""Keeps a number of connections to an OpenAI-compatible server busy with streamed chats, and says how it did.

    python mlx-server/benches/load.py PORT [--clients 1,4,8,16] [--requests 6] [--pid SERVER]

Each connection sends its chats one after the other: a system line and 40 random words, temperature 0. The first token is the
first piece of text; times are in milliseconds, memory is the server's resident set (Linux). Nothing but Python is needed.
"""

import argparse
import http.client
import json
import random
import statistics
import threading
import time

WORDS = "river stone window garden letter engine morning paper silver number answer market winter signal bridge forest".split()


def chat(connection, text, tokens, model):
    """One streamed chat: the moments at which text came, and how many tokens the server counted."""
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": text}]
    body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "max_tokens": tokens}
    if model:
        body["model"] = model
    begin = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {response.read()[:200]!r}")
    marks, count, done = [], 0, False
    for line in response:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            done = True
            break
        event = json.loads(line[6:])
        count = (event.get("usage") or {}).get("completion_tokens", count)
        if any(choice.get("delta", {}).get("content") for choice in event.get("choices", [])):
            marks.append(time.perf_counter())
    response.read()
    if not done or not marks:
        raise RuntimeError("the stream ended early")
    return [mark - begin for mark in marks], count


def client(number, arguments, results, failures):
    draw = random.Random(1000 * arguments.seed + number)
    connection = http.client.HTTPConnection("127.0.0.1", arguments.port, timeout=300)
    for _ in range(arguments.requests):
        text = " ".join(draw.choice(WORDS) for _ in range(40))
        try:
            results.append(chat(connection, text, arguments.tokens, arguments.model))
        except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
            failures.append(repr(error)[:200])
            connection.close()


def share(values, part):
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmRSS"))


def level(clients, arguments):
    results, failures = [], []
    threads = [threading.Thread(target=client, args=(100 * clients + i, arguments, results, failures)) for i in range(clients)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begin
    print(f"{clients} clients, {clients * arguments.requests} requests, {len(failures)} failed {failures[:2] if failures else ''}")
    if not results:
        return
    first = [marks[0] for marks, _ in results]
    gaps = [later - earlier for marks, _ in results for earlier, later in zip(marks, marks[1:])] or [0.0]
    memory = f", {resident(arguments.pid)} MB" if arguments.pid else ""
    print(
        f"  {sum(count for _, count in results) / elapsed:.1f} tokens/s, first token p50 {1000 * statistics.median(first):.0f} p99 "
        f"{share(first, 0.99):.0f}, between tokens p50 {share(gaps, 0.5):.1f} p99 {share(gaps, 0.99):.1f}{memory}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--clients", default="1,4,8,16")
    parser.add_argument("--requests", type=int, default=6, help="chats of each client")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="the name to ask for")
    parser.add_argument("--pid", type=int, help="the server's process, to report its memory")
    arguments = parser.parse_args()
    for clients in arguments.clients.split(","):
        level(int(clients), arguments)


main()
