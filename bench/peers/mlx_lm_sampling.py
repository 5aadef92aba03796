"""mlx-lm's samplers on rows of the same kind as those of bench/src/sampling.rs; the wall time of one call in microseconds.

The log-softmax that its steps always take first is counted; ours takes none unless log-probabilities are requested.
"""

import time

import mlx.core as mx
from load import percentile, report
from mlx_lm.sample_utils import make_logits_processors, make_sampler

CALLS = 60
FILTERS = {
    "greedy": dict(temp=0.0),
    "temperature": dict(temp=0.8),
    "top-k 40": dict(temp=0.8, top_k=40),
    "top-p 0.9": dict(temp=0.8, top_p=0.9),
    "min-p 0.05": dict(temp=0.8, min_p=0.05),
    "top-k, top-p, min-p": dict(temp=0.8, top_k=40, top_p=0.9, min_p=0.05),
}


def microseconds(call):
    times = []
    for _ in range(CALLS + 5):
        begin = time.perf_counter()
        mx.eval(call())
        times.append((time.perf_counter() - begin) * 1e6)
    return percentile(times[5:], 50)


def sixteen_rows():
    rows = mx.random.normal((16, 32_000)) * 2.8
    history = mx.random.randint(0, 32_000, (500,))
    mx.eval(rows, history)
    chains = [make_logits_processors(None, 1.1, 20, 0.2, 20, 0.2, 20) for _ in range(16)]

    def step():
        edited = []
        for row, chain in enumerate(chains):
            logits = rows[row : row + 1]
            for process in chain:
                logits = process(history, logits)
            edited.append(logits)
        return mx.argmax(mx.concatenate(edited), axis=-1)

    return microseconds(step)


def main():
    figures = {}
    for width in (32_000, 151_936, 262_144):
        logits = mx.random.normal((1, width)) * 2.8
        mx.eval(logits)
        for name, settings in FILTERS.items():
            sampler = make_sampler(**settings)
            figures[f"{name}, {width}, µs"] = microseconds(lambda: sampler(logits - mx.logsumexp(logits, keepdims=True)))
    figures["sixteen rows with three penalties each, 32000, µs"] = sixteen_rows()
    report(figures)


main()
