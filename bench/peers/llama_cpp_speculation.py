"""llama.cpp's prompt lookup, as implemented in llama-cpp-python, on the text `copy` of bench/src/speculation.rs, one stream:
`llama_cpp_speculation.py MODEL THREADS [lookup]`."""

import pathlib
import sys
import time

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from gguf_files import file_of, silence
from llama_cpp_single import Context
from load import file, report

TOKENS = 256


class Spans(Context):
    def best(self, ids):
        """Decodes these tokens and returns the most likely next token after each."""
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        for place, token in enumerate(ids):
            batch.token[place], batch.pos[place], batch.n_seq_id[place], batch.seq_id[place][0], batch.logits[place] = token, self.length + place, 1, 0, True
        batch.n_tokens = len(ids)
        assert llama_cpp.llama_decode(self.context, batch) == 0
        rows = [np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, place), shape=(self.vocabulary,)).argmax() for place in range(len(ids))]
        llama_cpp.llama_batch_free(batch)
        return [int(row) for row in rows]

    def cut(self, length):
        self.length = length
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), 0, length, -1)


def run(context, stream, drafter):
    context.clear()
    ids = file(stream)
    for start in range(0, len(ids), 512):
        token = context.next(ids[start : start + 512])
    context.length = len(ids)
    ids.append(token)
    begin, passes = time.perf_counter(), 0
    end = len(ids) + TOKENS
    while len(ids) < end:
        draft = [int(token) for token in drafter(np.array(ids))] if drafter else []
        drawn = context.best([ids[-1], *draft])
        passes += 1
        right = next((place for place, token in enumerate(draft) if token != drawn[place]), len(draft))
        ids += drawn[: right + 1]
        context.cut(len(ids) - 1)
    return TOKENS / (time.perf_counter() - begin), TOKENS / passes


def main():
    with silence():
        context = Spans(file_of(pathlib.Path(sys.argv[1])), int(sys.argv[2]), 4096)
    drafter = LlamaPromptLookupDecoding(num_pred_tokens=10) if len(sys.argv) > 3 else None
    run(context, 0, drafter)
    rate, tokens = run(context, 1, drafter)
    report({"tok/s": rate, "tokens a pass and stream": tokens})


main()
