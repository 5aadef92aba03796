"""llama.cpp's CPU build on the load of bench/src/single.rs: `llama_cpp_single.py MODEL THREADS [TYPE]`. The types are those of gguf_files.py."""

import pathlib
import statistics
import sys
import time

import llama_cpp
import numpy as np
from gguf_files import file_of, silence
from load import prompt, report

PROMPT, TOKENS, BEFORE, TIMES = 512, 128, 32, 3


class Context:
    def __init__(self, path, threads, length=2048):
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = length, PROMPT, PROMPT
        options.n_threads = options.n_threads_batch = threads
        # Keys and values in f32, as in the other programs.
        options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def next(self, ids):
        """Decodes these tokens and returns the most likely next one."""
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        assert llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(tokens, len(ids))) == 0
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self.vocabulary,)).argmax())


def main():
    with silence():
        path = file_of(pathlib.Path(sys.argv[1]), *sys.argv[3:])
        context = Context(path, int(sys.argv[2]))
        context.next(prompt(0, BEFORE, context.vocabulary))
    prompts, answers = [], []
    for turn in range(TIMES):
        context.clear()
        begin = time.perf_counter()
        context.next(prompt(1 + turn, PROMPT, context.vocabulary))
        prompts.append(PROMPT / (time.perf_counter() - begin))
        context.clear()
        token = context.next(prompt(100 + turn, BEFORE, context.vocabulary))
        begin = time.perf_counter()
        for _ in range(TOKENS):
            token = context.next([token])
        answers.append(TOKENS / (time.perf_counter() - begin))
    report({f"prompt of {PROMPT}, tok/s": statistics.median(prompts), f"answer of {TOKENS}, tok/s": statistics.median(answers)})


if __name__ == "__main__":
    main()
