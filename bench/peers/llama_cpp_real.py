"""llama.cpp on a GGUF file: `llama_cpp_real.py MODEL THREADS < JOBS`. Prints one line of JSON.

The jobs are a JSON object: `score` has lists of ids whose log-probabilities are wanted, `greedy` prompts to continue by 40 tokens, `tokenize`
texts. Without jobs (`{}`), only the time from loading to the first token and the resident memory are measured.
"""

import json
import platform
import resource
import sys
import time

import llama_cpp
import numpy as np
from gguf_files import silence
from load import report

CHUNK, TOKENS = 512, 40
UNIT = 1 if platform.system() == "Darwin" else 1 << 10


class Model:
    """A model with llama.cpp's default options and one context."""

    def __init__(self, path, threads, length):
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = length, CHUNK, CHUNK
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocabulary)

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def decode(self, ids, begin, every):
        """Decodes tokens from a position on. Returns the logits of every token, or of the last one."""
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for place, token in enumerate(ids):
            batch.token[place], batch.pos[place] = token, begin + place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = every or place == len(ids) - 1
        assert llama_cpp.llama_decode(self.context, batch) == 0
        llama_cpp.llama_batch_free(batch)
        rows = range(len(ids)) if every else [len(ids) - 1]
        return (np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, row), shape=(self.size,)) for row in rows)

    def score(self, ids):
        """Returns the log-probability of each token but the first."""
        self.clear()
        logprobs = []
        for begin in range(0, len(ids) - 1, CHUNK):
            part, targets = ids[begin : begin + CHUNK], ids[begin + 1 : begin + 1 + CHUNK]
            for row, target in zip(self.decode(part, begin, True), targets):
                most = float(row.max())
                total = np.exp(row.astype(np.float64) - most).sum()
                logprobs.append(float(row[target]) - most - float(np.log(total)))
        return logprobs

    def greedy(self, ids):
        self.clear()
        tokens, end = list(ids), len(ids) + TOKENS
        (row,) = self.decode(ids, 0, False)
        while len(tokens) < end:
            tokens.append(int(row.argmax()))
            if llama_cpp.llama_vocab_is_eog(self.vocabulary, tokens[-1]):
                break
            (row,) = self.decode(tokens[-1:], len(tokens) - 1, False)
        return tokens[len(ids) :]

    def tokenize(self, text):
        data = text.encode()
        tokens = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self.vocabulary, data, len(data), tokens, len(tokens), False, True)
        assert count >= 0
        return tokens[:count]


def main():
    path, threads = sys.argv[1:]
    jobs = json.load(sys.stdin)
    length = max([CHUNK, *map(len, jobs.get("score", []))]) + TOKENS
    with silence():
        begin = time.perf_counter()
        model = Model(path, int(threads), length)
        model.decode([1, 2, 3, 4, 5, 6], 0, False)
        seconds = time.perf_counter() - begin
        figures = {"load and first token, s": seconds, "resident, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT / 1e6}
        for job, values in jobs.items():
            figures[job] = [getattr(model, job)(value) for value in values]
    report(figures)


if __name__ == "__main__":
    main()
