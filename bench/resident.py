"""Measures the startup time of a server, and its resident memory without the files of its model.

    python bench/resident.py [--limit GIB] MODEL -- SERVER COMMAND WITH {port}

The memory is that of the server and its engine; the peak is that of the larger process. The files are read once before the server starts, so that they are in the page cache. When `/ready` succeeds, it gets a chat, and then four at
once. --limit sets the server's address space (RLIMIT_AS), which includes all its memory; macOS does not enforce it. Prints the figures as one
line of JSON. Needs only Python.
"""

import argparse
import contextlib
import http.client
import json
import pathlib
import platform
import resource
import threading
import time

from load import chat, free_port, resident, server, wait_for

TOKENS, STREAMS = 64, 4
# The units of `load.resident`, and of the peak memory of processes.
MIB, PEAK = 1 << 20, 1 if platform.system() == "Darwin" else 1 << 10


def warmed(folder):
    """Reads a model's weights into the page cache; returns their bytes."""
    read = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while part := len(file.read(1 << 24)):
                read += part
    return read


def ask(port, text):
    """Runs a chat. Returns the seconds to its first token, the tokens per second after it, and the number of tokens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    with contextlib.closing(connection):
        marks, count = chat(connection, text, TOKENS, None)
    return marks[0], (count - 1) / (marks[-1] - marks[0]), count


def several(port):
    """Returns the tokens per second of concurrent chats, including prompts."""
    counts = []
    threads = [threading.Thread(target=lambda number=number: counts.append(ask(port, f"hello {number}")[2])) for number in range(STREAMS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(counts) < STREAMS:
        raise RuntimeError(f"{STREAMS - len(counts)} of {STREAMS} chats failed")
    return sum(counts) / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, help="the maximum address space of the server, in GiB")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("server", nargs="+", help="the server's command, with {port} as a placeholder for its port")
    arguments = parser.parse_args()
    files, port = warmed(arguments.model), free_port()
    if arguments.limit:
        # The server inherits the limit.
        resource.setrlimit(resource.RLIMIT_AS, (arguments.limit << 30, arguments.limit << 30))
    begin = time.perf_counter()
    with server(arguments.server, port) as process:
        wait_for(process, port, "/ready")
        ready, holds = time.perf_counter() - begin, resident(process) * MIB
        first, rate, _ = ask(port, "hello")
        together = several(port)
        after = resident(process) * MIB
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * PEAK
    figures = {"files, MB": files / 1e6, "ready after, s": ready, "resident when ready, MB": holds / 1e6, "resident over files": holds / files}
    figures |= {"first token, s": first, f"answer of {TOKENS}, tok/s": rate, f"{STREAMS} chats at once, tok/s": together}
    print(json.dumps(figures | {"resident afterwards, MB": after / 1e6, "resident at most, MB": most / 1e6}))


if __name__ == "__main__":
    main()
