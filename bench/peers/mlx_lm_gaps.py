"""mlx-lm's BatchGenerator on the loads of bench/src/gaps.rs: `mlx_lm_gaps.py MODEL STREAMS`, or `mlx_lm_gaps.py MODEL first-tokens`.

Its loop accepts new requests between two steps, like its server. The wait of a request starts with its arrival, not with its insertion.
"""

import sys
import time

from load import percentile, prompt, report
from mlx_lm import load
from mlx_lm.generate import BatchGenerator

WARM, ALONE, PROMPTS, PROMPT, SHORT, SHORTS = 32, 200, 3, 4000, 8, 30


class Streams:
    """Streams after their first tokens, the times of all steps since then, and requests that arrive meanwhile."""

    def __init__(self, model, count):
        self.model, self.vocabulary, self.times = model, model.args.vocab_size, []
        self.generator = BatchGenerator(model, stop_tokens=[])
        prompts = [prompt(sequence, 64, self.vocabulary) for sequence in range(count)]
        self.streams = set(self.generator.insert(prompts, [20000] * count))
        for _ in range(WARM):
            self.step()
        self.times.clear()

    def step(self):
        """Runs one step; returns the ids that got a token."""
        got = {response.uid for response in self.generator.next_generated()}
        if got & self.streams:
            self.times.append(time.perf_counter())
        return got

    def first_token(self, sequence, length, delay=0.0):
        """Returns the milliseconds from the arrival of a request, after `delay` seconds, to its first token."""
        tokens, begin = prompt(sequence, length, self.vocabulary), time.perf_counter() + delay
        while time.perf_counter() < begin:
            self.step()
        (uid,) = self.generator.insert([tokens], [1])
        while uid not in self.step():
            pass
        return (time.perf_counter() - begin) * 1e3

    def gaps(self):
        return [(after - before) * 1e3 for before, after in zip(self.times, self.times[1:])]


def gaps(model, count):
    Streams(model, 1).first_token(0, PROMPT)
    streams = Streams(model, count)
    streams.step()
    prompts = [streams.first_token(100 + prompt, PROMPT) / 1e3 for prompt in range(PROMPTS)]
    streams.step()
    beside = streams.gaps()
    # The control run has the same prompts and about as many tokens, because steps grow longer with the context. It has a minimum for accuracy.
    streams = Streams(model, count)
    for _ in range(max(len(beside), ALONE) + 1):
        streams.step()
    alone = streams.gaps()
    median, tail = percentile(alone, 50), percentile(beside, 99)
    return {
        "median alone, ms": median,
        "p99 alone, ms": percentile(alone, 99),
        "median beside prompts, ms": percentile(beside, 50),
        "p99 beside prompts, ms": tail,
        "longest beside prompts, ms": max(beside),
        "p99 beside / median alone": tail / median,
        "a prompt takes, s": percentile(prompts, 50),
    }


def first_tokens(model):
    streams = Streams(model, 4)
    delays = [(5000 + request * 1237 % 3000) / 1e6 for request in range(SHORTS)]
    waits = [streams.first_token(100 + request, SHORT, delay) for request, delay in enumerate(delays)]
    return {
        "first token beside four streams, median ms": percentile(waits, 50),
        "first token beside four streams, p99 ms": percentile(waits, 99),
        "a step of theirs, ms": percentile(streams.gaps(), 50),
    }


def main():
    model, _ = load(sys.argv[1])
    report(first_tokens(model) if sys.argv[2] == "first-tokens" else gaps(model, int(sys.argv[2])))


main()
