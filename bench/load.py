"""Keeps a number of connections to an OpenAI-compatible server busy with streamed chats, and reports rates and latencies.

    python bench/load.py [--clients 1,4,8,16] [--requests 6] -- SERVER COMMAND WITH {port}

Each connection sends its chats one after the other: a system line and 40 random words, temperature 0. The first token is the
first delta with text. Prints the figures as one line of JSON. Needs only Python.
"""

import argparse
import contextlib
import http.client
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

WORDS = "river stone window garden letter engine morning paper silver number answer market winter signal bridge forest".split()


def chat(connection, text, tokens, model, at_eighth=None):
    """Runs one streamed chat, and `at_eighth` at its eighth token. Returns the arrival times of text, and the number of tokens that the server counted."""
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": text}]
    body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "max_tokens": tokens}
    if model:
        body["model"] = model
    if at_eighth:
        body["ignore_eos"] = True
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
            if at_eighth and len(marks) == 8:
                at_eighth()
    response.read()
    if not done or not marks:
        raise RuntimeError("the stream ended early")
    return [mark - begin for mark in marks], count


def again_if_closed(connection, text, arguments):
    """Runs a chat. Reconnects if needed, because some servers close the connection after each stream."""
    try:
        return chat(connection, text, arguments.tokens, arguments.model)
    except ConnectionError:
        connection.close()
        return chat(connection, text, arguments.tokens, arguments.model)


def client(number, arguments, results, failures):
    draw = random.Random(1000 * arguments.seed + number)
    connection = http.client.HTTPConnection("127.0.0.1", arguments.port, timeout=300)
    for _ in range(arguments.requests):
        text = " ".join(draw.choice(WORDS) for _ in range(40))
        try:
            results.append(again_if_closed(connection, text, arguments))
        except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
            failures.append(repr(error)[:200])
            connection.close()


def gaps(port, body):
    """Runs a streamed completion. Yields the time of each token and the gap before it, without the first one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(body | {"stream": True}), {"content-type": "application/json"})
        last = None
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                if last is not None:
                    yield now, now - last
                last = now


def share(values, part):
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def children(process):
    """Returns the ids of a process's children, such as the engines of a server."""
    return subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False).stdout.split()


def resident(process, with_children=True):
    """Returns the resident memory of a process and its children in megabytes. On Linux, a page that several processes share counts once."""
    processes = [str(process.pid), *(children(process) if with_children else [])]
    if sys.platform == "darwin":
        return sum(map(int, subprocess.check_output(["ps", "-o", "rss=", "-p", ",".join(processes)]).split())) / 1024
    kilobytes = 0
    for one in processes:
        # A child may have ended by now.
        with contextlib.suppress(OSError), open(f"/proc/{one}/smaps_rollup", encoding="ascii") as sums:
            kilobytes += next(int(line.split()[1]) for line in sums if line.startswith("Pss:"))
    return kilobytes / 1024


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def server(command, port):
    """Starts the server and waits until it answers."""
    command = [part.replace("{port}", str(port)) for part in command]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_for(process, port)
            yield process
        finally:
            process.terminate()


def wait_for(process, port, path="/v1/models"):
    """Waits until the server answers at this address, for at most five minutes."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("GET", path)
                if connection.getresponse().status == 200:
                    return
        time.sleep(0.02)
    raise RuntimeError(f"the server does not answer {path}")


def level(clients, process, arguments):
    results, failures = [], []
    threads = [threading.Thread(target=client, args=(100 * clients + i, arguments, results, failures)) for i in range(clients)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begin
    if failures:
        print(f"{clients} clients: {failures[:3]}", file=sys.stderr)
    first = [marks[0] for marks, _ in results]
    gaps = [later - earlier for marks, _ in results for earlier, later in zip(marks, marks[1:])]
    return {
        f"{clients} clients, tok/s": sum(count for _, count in results) / elapsed,
        f"{clients} clients, first token p50, ms": 1000 * statistics.median(first),
        f"{clients} clients, first token p99, ms": share(first, 0.99),
        f"{clients} clients, between tokens p50, ms": share(gaps, 0.5),
        f"{clients} clients, between tokens p99, ms": share(gaps, 0.99),
        f"{clients} clients, failed": len(failures),
        f"{clients} clients, resident MB": resident(process),
    }


def death(process, arguments):
    """Kills the engine of a running stream. Returns the milliseconds to its next token."""
    connection, killed = http.client.HTTPConnection("127.0.0.1", arguments.port, timeout=300), []

    def kill():
        killed.append(time.perf_counter())
        subprocess.run(["kill", "-9", *children(process)], check=True)

    begin = time.perf_counter()
    marks, _ = chat(connection, " ".join(WORDS), 4 * arguments.tokens, arguments.model, kill)
    # Tokens that were on their way arrive within 50 ms.
    later = (begin + mark for mark in marks if killed and begin + mark > killed[0] + 0.05)
    if not (mark := next(later, None)):
        raise RuntimeError("the stream ended before its engine was killed")
    return 1000 * (mark - killed[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="1,4,8,16")
    parser.add_argument("--requests", type=int, default=6, help="chats per client")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per answer")
    parser.add_argument("--deaths", type=int, default=0, help="kill the engine of a stream this many times, after all chats")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="the model name in requests")
    parser.add_argument("server", nargs="+", help="the server's command, with {port} as a placeholder for its port")
    arguments = parser.parse_args()
    arguments.port = free_port()
    figures = {}
    with server(arguments.server, arguments.port) as process:
        # The first request of a server includes one-time work.
        level(1, process, argparse.Namespace(**vars(arguments) | {"requests": 1}))
        for clients in arguments.clients.split(","):
            figures |= level(int(clients), process, arguments)
        if arguments.deaths:
            figures["kill -9 to next token, ms"] = statistics.median(death(process, arguments) for _ in range(arguments.deaths))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
