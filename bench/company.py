"""Measures the cost of a constrained row for the other streams of its batch: the gaps of seven streams, with a free or a constrained eighth.

    python bench/company.py [--turns 15] -- SERVER COMMAND WITH {port}

Each turn runs three arms in random order: an eighth row that is free, one constrained by a schema, and a free one again. Prints the
ratios of the last two to the first: the median, minimum and maximum over turns. Needs only Python.
"""

import argparse
import random
import statistics
import sys
import threading
import time

from load import free_port, gaps, server

TOKENS = 160
PAIR = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": ["x", "yy", "zzz"]}}, "required": ["a", "b"], "additionalProperties": False}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}, "n": {"type": "integer"}, "pair": PAIR},
    "required": ["name", "tags", "n", "pair"],
    "additionalProperties": False,
}


def stream(port, body, barrier, found):
    barrier.wait()
    found.extend(gap for _, gap in gaps(port, body))


def arm(port, turn, constrained):
    """Returns the median and the 99th percentile of the gaps of the seven streams."""
    barrier, found, threads = threading.Barrier(8), [], []
    for number in range(8):
        body = {"prompt": f"Tell {turn} {number} about it", "max_tokens": TOKENS, "seed": number, "temperature": 1.0}
        if number == 7 and constrained:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
        else:
            body["ignore_eos"] = True
        threads.append(threading.Thread(target=stream, args=(port, body, barrier, [] if number == 7 else found)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.sort()
    return statistics.median(found), found[int(len(found) * 0.99)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    results = {"free": [], "constrained": [], "free again": []}
    port = free_port()
    with server(arguments.command, port):
        for turn in range(arguments.turns):
            for name in random.Random(turn).sample(list(results), 3):
                results[name].append(arm(port, turn, name == "constrained"))
                print(turn, name, file=sys.stderr)
    for name in ("constrained", "free again"):
        for index, figure in enumerate(("median", "p99")):
            ratios = sorted(one[index] / free[index] for one, free in zip(results[name], results["free"]))
            print(f"{name}, {figure} gap: {statistics.median(ratios):.3f} ({ratios[0]:.2f}-{ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
