"""Compares the time of a decode step, on a device that runs concurrently with the host, with the time of the device itself:

    ahead.py PROGRAM PRELOAD MILLISECONDS ROWS POSITION SAMPLING PIPELINE MODEL

PRELOAD is the compiled bench/slow_device.cpp. Two runs without a delay count the operations of a step. The delay is then set so that they
take MILLISECONDS. Prints the output of `mlx-bench ahead`, and the ratio to MILLISECONDS.
"""

import json
import os
import re
import subprocess
import sys


def run(tokens, nanoseconds):
    program, preload, _, rows, position, sampling, pipeline, model = sys.argv[1:]
    environment = os.environ | {"LD_PRELOAD": preload, "SLOW_DEVICE_NS": str(nanoseconds)}
    command = [program, "ahead", model, rows, position, sampling, pipeline, str(tokens)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    operations = re.search(r"operations: (\d+)", done.stderr)
    return json.loads(done.stdout.splitlines()[-1]), int(operations[1])


def main():
    wanted = float(sys.argv[3])
    # Streams start one after the other. All must decode before the first one ends.
    tokens = 120 + 40 * int(sys.argv[4])
    operations = (run(2 * tokens, 0)[1] - run(tokens, 0)[1]) / tokens
    figures, _ = run(tokens, round(wanted * 1e6 / operations))
    figures |= {"step over ideal": figures["step, ms"] / wanted, "operations a step": operations}
    print(json.dumps(figures))


main()
