"""The load of bench/src/single.rs on mlx-lm's generate_step."""

import statistics
import time

import mlx.core as mx
from load import prompt
from mlx_lm.generate import generate_step

BEFORE = 32


def moments(model, sequence, length, tokens):
    """Returns the time of the request, and the arrival time of each token."""
    times = [time.perf_counter()]
    ids = prompt(sequence, length, model.args.vocab_size)
    for _ in generate_step(mx.array(ids), model, max_tokens=tokens):
        times.append(time.perf_counter())
    return times


def figures(model, length=512, tokens=128, rounds=3):
    moments(model, 0, BEFORE, 8)
    prompts, answers = [], []
    for turn in range(rounds):
        times = moments(model, 1 + turn, length, 1)
        prompts.append(length / (times[1] - times[0]))
        times = moments(model, 100 + turn, BEFORE, tokens + 1)
        answers.append(tokens / (times[-1] - times[1]))
    return {f"prompt of {length}, tok/s": statistics.median(prompts), f"answer of {tokens}, tok/s": statistics.median(answers)}
