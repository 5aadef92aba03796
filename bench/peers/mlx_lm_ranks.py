"""mlx-lm on the load of bench/src/ranks.rs: `mlx_lm_ranks.py MODEL pipeline|tensor PROCESSES [PROMPT TOKENS ROUNDS]`, or as a program for
mlx.launch. The numbers reduce the load."""

import json
import os
import subprocess
import sys
import tempfile

import mlx.core as mx
from load import report
from mlx_lm.generate import generation_stream
from mlx_lm.utils import sharded_load
from single import figures

FIRST_PORT = 32423


def start(processes):
    """Starts the processes like mlx.launch on one machine, but without its threads. These busy-wait on pipes and take a whole core."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as hosts:
        hosts.write(json.dumps([[f"127.0.0.1:{FIRST_PORT + rank}"] for rank in range(processes)]))
        hosts.flush()
        environments = [os.environ | {"MLX_HOSTFILE": hosts.name, "MLX_RANK": str(rank)} for rank in range(processes)]
        started = [subprocess.Popen([sys.executable, *sys.argv], env=environment) for environment in environments]
        return [process.wait() for process in started]


def peak():
    """Returns the peak memory in megabytes."""
    lines = [line.split() for line in open("/proc/self/status", encoding="utf-8") if line.startswith("VmHWM:")]
    return int(lines[0][1]) * 1024 / 1e6


def compute(model, how, *load):
    group = mx.distributed.init()
    pipeline, tensor = (group, None) if how == "pipeline" else (None, group)
    model, _ = sharded_load(model, pipeline, tensor)
    found = figures(model, *load)
    # A process that still runs would mix its messages with these.
    mx.synchronize(generation_stream)
    peaks = mx.distributed.all_gather(mx.array([peak()]))
    found |= {f"rank {rank}, peak MB": megabytes for rank, megabytes in enumerate(peaks.tolist())}
    if group.rank() == 0:
        report(found)


if "MLX_RANK" in os.environ:
    compute(*sys.argv[1:3], *map(int, sys.argv[4:]))
else:
    sys.exit(any(start(int(sys.argv[3]))))
