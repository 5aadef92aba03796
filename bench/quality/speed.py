"""Speed and memory of `mlx` on one model: `python -m quality.speed MLX MODEL`. Prints the figures as one line of JSON."""

import json
import os
import platform
import subprocess
import sys
import time

PROMPT, ANSWER = 512, 128
UNIT = 1 if platform.system() == "Darwin" else 1 << 10
TEXT = "The capital of France is"


def first_token(command):
    """Runs a program for one token. Returns its wall time in seconds, and its largest resident memory in bytes."""
    begin = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return time.perf_counter() - begin, usage.ru_maxrss * UNIT


def figures(mlx, model):
    starts = [first_token([mlx, "generate", model, TEXT, "--raw", "--max-tokens", "1"]) for _ in range(3)]
    options = ["--prompt-lengths", PROMPT, "--generate", ANSWER, "--batch", 1, "--repeat", 3, "--json"]
    bench = subprocess.run(list(map(str, [mlx, "bench", model, *options])), check=True, stdout=subprocess.PIPE, text=True)
    (measured,) = json.loads(bench.stdout)["results"]
    return {
        f"prompt of {PROMPT}, tok/s": measured["prefill_tps"]["median"],
        f"answer of {ANSWER}, tok/s": measured["decode_tps"]["median"],
        "start to first token, s": min(seconds for seconds, _ in starts),
        "resident, MB": min(most for _, most in starts) / 1e6,
    }


def apart(mlx, model):
    """Measures in a new process: the resident memory of a child begins with that of its parent, and ours has converted models."""
    command = [sys.executable, "-m", "quality.speed", mlx, model]
    return json.loads(subprocess.check_output(list(map(str, command)), text=True))


if __name__ == "__main__":
    print(json.dumps(figures(*sys.argv[1:])))
