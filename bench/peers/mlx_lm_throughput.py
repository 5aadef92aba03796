"""mlx-lm's BatchGenerator on the load of bench/src/throughput.rs: `mlx_lm_throughput.py MODEL STREAMS,... [PROMPT TOKENS]`."""

import sys
import time

import mlx.core as mx
from load import prompt, report
from mlx_lm import load
from mlx_lm.generate import BatchGenerator

PROMPT, TOKENS = 64, 128


def run(model, vocabulary, sequences, length, tokens):
    generator = BatchGenerator(model, stop_tokens=[])
    begin = time.perf_counter()
    generator.insert([prompt(sequence, length, vocabulary) for sequence in range(sequences)], [tokens] * sequences)
    count, first = 0, 0.0
    while responses := generator.next_generated():
        if not count:
            first = time.perf_counter()
            first_count = len(responses)
        count += len(responses)
    end = time.perf_counter()
    assert count == sequences * tokens, count
    return count / (end - begin), (count - first_count) / (end - first)


def main():
    model, _ = load(sys.argv[1])
    # One with images keeps those of its text model apart.
    arguments = vars(model.args)
    vocabulary = arguments.get("text_config", arguments)["vocab_size"]
    length, tokens = map(int, sys.argv[3:] or (PROMPT, TOKENS))
    figures = {}
    for sequences in map(int, sys.argv[2].split(",")):
        # A GPU compiles kernels when their shapes first come.
        run(model, vocabulary, sequences, length, min(tokens, 8))
        mx.reset_peak_memory()
        whole, decode = run(model, vocabulary, sequences, length, tokens)
        figures[f"{sequences} at once, tok/s"] = whole
        figures[f"{sequences} at once, tok/s after the prompts"] = decode
        figures[f"{sequences} at once, peak MB"] = mx.get_peak_memory() / 2**20
    report(figures)


main()
