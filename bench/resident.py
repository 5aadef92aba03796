"""How soon a server answers, and the memory that it has resident beside the files of its model.

    python bench/resident.py [--limit GIB] MODEL -- SERVER COMMAND WITH {port}

The files are read once before the server starts, so that they come from the page cache. It is ready when `/ready` says so; then come a chat, and four
at once. With a limit the server may have so much address space (RLIMIT_AS), which no memory of a process is outside of; macOS does not enforce it.
The figures come as one line of JSON. Nothing but Python is needed.
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
# What `load.resident` counts in, and what processes are said to have had at most.
MIB, PEAK = 1 << 20, 1 if platform.system() == "Darwin" else 1 << 10


def warmed(folder):
    """The bytes of a model's weights, which are in the page cache afterwards."""
    read = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while part := len(file.read(1 << 24)):
                read += part
    return read


def ask(port, text):
    """A chat: seconds until its first token, tokens a second behind it, and how many tokens there were."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    with contextlib.closing(connection):
        marks, count = chat(connection, text, TOKENS, None)
    return marks[0], (count - 1) / (marks[-1] - marks[0]), count


def several(port):
    """Tokens a second of chats that come at once, prompts included."""
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
    parser.add_argument("--limit", type=int, help="the most address space of the server, in GiB")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("server", nargs="+", help="the server's command, with {port} where its port belongs")
    arguments = parser.parse_args()
    files, port = warmed(arguments.model), free_port()
    if arguments.limit:
        # The server inherits it.
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
