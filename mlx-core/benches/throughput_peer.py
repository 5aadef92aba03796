"""mlx-lm's BatchGenerator on the load of throughput.rs: the same prompts, the same number of greedy tokens.

    python mlx-core/benches/throughput_peer.py MODEL [STREAMS,STREAMS,...]

Prints, for every number of sequences, tokens per second of the whole run (prompts included) and of the decode steps alone.
"""

import sys
import time

import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import BatchGenerator

PROMPT, TOKENS = 64, 128


def prompt(sequence, vocabulary):
    return [(place * 7919 + sequence * 104729 + 11) % (vocabulary - 10) + 5 for place in range(PROMPT)]


def run(model, vocabulary, sequences):
    generator = BatchGenerator(model, stop_tokens=[])
    begin = time.perf_counter()
    generator.insert([prompt(sequence, vocabulary) for sequence in range(sequences)], [TOKENS] * sequences)
    count, first = 0, 0.0
    while responses := generator.next_generated():
        if not count:
            first = time.perf_counter()
            first_count = len(responses)
        count += len(responses)
    end = time.perf_counter()
    assert count == sequences * TOKENS, count
    return count / (end - begin), (count - first_count) / (end - first)


def main():
    model, tokenizer = load(sys.argv[1])
    vocabulary = model.args.vocab_size
    streams = [int(it) for it in (sys.argv[2] if len(sys.argv) > 2 else "1,4,8,16,32").split(",")]
    run(model, vocabulary, 1)
    for sequences in streams:
        mx.reset_peak_memory()
        whole, decode = run(model, vocabulary, sequences)
        print(f"{sequences} sequences: {whole:.1f} tok/s, decode {decode:.1f} tok/s, peak {mx.get_peak_memory() / 2**20:.0f} MB", flush=True)


main()
