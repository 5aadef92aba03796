"""Times our sampling chain and mlx-lm's on rows of the same kind, turn by turn, and prints the ratios.

    pip install -r tests/golden/requirements.txt
    python mlx-core/benches/compare_samplers.py

Medians of three turns each, so that a busy moment hits both. mlx-lm's figures are wall time of one call on the CPU.
"""
import re
import statistics
import subprocess
import time

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors, make_sampler

TURNS = 3
UNITS = {"ns": 1e-3, "µs": 1.0, "ms": 1e3, "s": 1e6}
PEER = {
    "greedy": dict(temp=0.0),
    "temperature": dict(temp=0.8),
    "top_k": dict(temp=0.8, top_k=40),
    "top_p": dict(temp=0.8, top_p=0.9),
    "min_p": dict(temp=0.8, min_p=0.05),
    "top_k_top_p_min_p": dict(temp=0.8, top_k=40, top_p=0.9, min_p=0.05),
}


def ours():
    """Medians in microseconds by (bench, argument)."""
    names = [*PEER, "sixteen_rows_with_three_penalties"]
    command = ["cargo", "bench", "-q", "-p", "mlx-core", "--bench", "sampling", "--", *names]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures, name = {}, None
    for line in text.splitlines():
        label = re.match(r"[│ ]*[├╰]─ (\S+)", line)
        if not label:
            continue
        columns = [column.strip() for column in line.split("│")]
        medians = [c for c in columns if re.fullmatch(r"[\d.]+ (ns|µs|ms|s)", c)]
        if not label[1].isdigit():
            name = label[1]
        if medians:
            value, unit = medians[1].split()
            figures[name, int(label[1]) if label[1].isdigit() else None] = float(value) * UNITS[unit]
    return figures


def timed(call, count):
    for _ in range(5):
        mx.eval(call())
    samples = []
    for _ in range(count):
        begin = time.perf_counter()
        mx.eval(call())
        samples.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(samples)


def theirs():
    figures = {}
    for width in (32_000, 151_936, 262_144):
        logits = mx.random.normal((1, width)) * 2.8
        mx.eval(logits)
        for name, settings in PEER.items():
            sampler = make_sampler(**settings)
            # A step always takes the log-softmax first.
            def step(sampler=sampler):
                return sampler(logits - mx.logsumexp(logits, keepdims=True))
            figures[name, width] = timed(step, 60)
    rows = mx.random.normal((16, 32_000)) * 2.8
    history = mx.random.randint(0, 32_000, (500,))
    mx.eval(rows, history)
    chains = [make_logits_processors(None, 1.1, 20, 0.2, 20, 0.2, 20) for _ in range(16)]

    def batch():
        edited = []
        for row, chain in enumerate(chains):
            logits = rows[row : row + 1]
            for process in chain:
                logits = process(history, logits)
            edited.append(logits)
        return mx.argmax(mx.concatenate(edited), axis=-1)

    figures["sixteen_rows_with_three_penalties", None] = timed(batch, 60)
    return figures


def main():
    turns = [(ours(), theirs()) for _ in range(TURNS)]
    print("| draw | vocabulary | ours, µs | mlx-lm, µs | ratio |\n| --- | --- | --- | --- | --- |")
    for key in turns[0][1]:
        mine = statistics.median(turn[0][key] for turn in turns)
        peer = statistics.median(turn[1][key] for turn in turns)
        print(f"| {key[0]} | {key[1] or '16 x 32000'} | {mine:.0f} | {peer:.0f} | {mine / peer:.3f} |")


if __name__ == "__main__":
    main()
