"""The load of bench/src/single.rs on mlx-lm's generate_step."""

import statistics
import time

import mlx.core as mx
from load import prompt
from mlx_lm.generate import generate_step

PROMPT, TOKENS, BEFORE, TIMES = 512, 128, 32, 3


def moments(model, sequence, length, tokens):
    """When each token came, from the moment of asking on."""
    times = [time.perf_counter()]
    ids = prompt(sequence, length, model.args.vocab_size)
    for _ in generate_step(mx.array(ids), model, max_tokens=tokens):
        times.append(time.perf_counter())
    return times


def figures(model):
    moments(model, 0, BEFORE, 8)
    prompts, answers = [], []
    for turn in range(TIMES):
        times = moments(model, 1 + turn, PROMPT, 1)
        prompts.append(PROMPT / (times[1] - times[0]))
        times = moments(model, 100 + turn, BEFORE, TOKENS + 1)
        answers.append(TOKENS / (times[-1] - times[1]))
    return {f"prompt of {PROMPT}, tok/s": statistics.median(prompts), f"answer of {TOKENS}, tok/s": statistics.median(answers)}
