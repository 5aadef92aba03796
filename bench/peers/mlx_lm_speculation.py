"""mlx-lm's generate_step and speculative_generate_step on the texts `copy` and `edit` of bench/src/speculation.rs, one stream:
`mlx_lm_speculation.py MODEL TEXT [DRAFT]`. mlx-lm only drafts with a model."""

import sys
import time

import mlx.core as mx
from load import file, report
from mlx_lm import load
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.sample_utils import make_sampler

TOKENS = 256


def main():
    model, _ = load(sys.argv[1])
    draft = load(sys.argv[3])[0] if len(sys.argv) > 3 else None
    edits = 0.1 * model.args.hidden_size / (mx.log(mx.array(float(model.args.vocab_size))).item() + 3.0)
    sampler = make_sampler(temp=edits if sys.argv[2] == "edit" else 0.0)
    for stream in (0, 1):
        ids = mx.array(file(stream))
        if draft is None:
            steps = ((token, False) for token, _ in generate_step(ids, model, max_tokens=TOKENS, sampler=sampler))
        else:
            steps = ((token, drafted) for token, _, drafted in speculative_generate_step(ids, model, draft, max_tokens=TOKENS, sampler=sampler))
        times, accepted = [], 0
        for _, drafted in steps:
            times.append(time.perf_counter())
            accepted += drafted
    tokens = len(times)
    report({"tok/s": (tokens - 1) / (times[-1] - times[0]), "tokens a pass and stream": tokens / (tokens - accepted)})


main()
