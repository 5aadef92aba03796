"""llama.cpp's CPU build on the load of bench/src/single.rs: `llama_cpp_single.py MODEL THREADS [TYPE [COMMAND WITH {model}]]`. The weights are the
checkpoint's own in f32, written as GGUF beside it, or what llama.cpp makes of them: BF16, F16, Q8_0, Q6_K or Q4_0. A command, such as its server's, is run instead
of the load."""

import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import time

import gguf
import json
import llama_cpp
import numpy as np
from load import prompt, report
from safetensors.numpy import load_file

PROMPT, TOKENS, BEFORE, TIMES = 512, 128, 32, 3
NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def gguf_name(name):
    if name in TOP:
        return TOP[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def interleaved(weights, heads):
    """llama.cpp turns neighbouring numbers of a head, Hugging Face's checkpoints the two halves of it."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def add_vocabulary(writer, folder):
    """A server's answers are text, so it needs the tokens' pieces."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    ids = tokenizer["model"]["vocab"] | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    pieces = sorted(ids, key=ids.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pieces)
    writer.add_token_types([gguf.TokenType.CONTROL if piece in special else gguf.TokenType.NORMAL for piece in pieces])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(ids[config["bos_token"]])
    writer.add_eos_token_id(ids[config["eos_token"]])
    writer.add_add_bos_token(False)
    writer.add_chat_template(config["chat_template"])


def write(folder, path):
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    add_vocabulary(writer, folder)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, weights in load_file(folder / "model.safetensors").items():
        for projection, count in heads.items():
            if projection in name:
                weights = interleaved(weights, count)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(weights))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextlib.contextmanager
def silence():
    """llama.cpp tells much on standard error while it loads."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)


class Context:
    def __init__(self, path, threads, length=2048):
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = length, PROMPT, PROMPT
        options.n_threads = options.n_threads_batch = threads
        # Keys and values in f32, as with the others.
        options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def next(self, ids):
        """Takes these tokens and gives the best next one."""
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        assert llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(tokens, len(ids))) == 0
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self.vocabulary,)).argmax())


def converted(path, name):
    """The file with all matrices of a type, embedding and head included."""
    to = path.with_stem(f"model-{name}")
    if not to.exists():
        options = llama_cpp.llama_model_quantize_default_params()
        options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
        options.pure = True
        assert llama_cpp.llama_model_quantize(str(path).encode(), str(to).encode(), options) == 0
    return to


def main():
    folder = pathlib.Path(sys.argv[1])
    path = folder / "model.gguf"
    if not path.exists():
        write(folder, path)
    with silence():
        if len(sys.argv) > 3:
            path = converted(path, sys.argv[3])
    if len(sys.argv) > 4:
        subprocess.run([part.replace("{model}", str(path)) for part in sys.argv[4:]], check=True)
        return
    with silence():
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
