"""Writes GGUF files of a llama checkpoint for llama.cpp, next to it: the f32 weights, or their conversion by llama.cpp to BF16, F16, Q8_0, Q6_K
or Q4_0. `gguf_files.py MODEL TYPE COMMAND WITH {model}` runs a command, such as that of llama.cpp's server, on such a file."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import gguf
import llama_cpp
import numpy as np
from safetensors.numpy import load_file

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
    """Reorders a projection for rope: llama.cpp rotates adjacent elements of a head, Hugging Face's checkpoints its two halves."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def add_vocabulary(writer, folder):
    """Adds the texts of tokens, which a server needs for its answers."""
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
    """Silences llama.cpp, which logs a lot to standard error while loading."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)


def file_of(folder, kind=""):
    """Returns the GGUF file itself, or the file of a checkpoint. With a type, all matrices have it, including embedding and head."""
    if folder.suffix == ".gguf":
        return folder
    path = folder / "model.gguf"
    if not path.exists():
        write(folder, path)
    to = path.with_stem(f"model-{kind}") if kind else path
    if not to.exists():
        options = llama_cpp.llama_model_quantize_default_params()
        options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
        options.pure = True
        assert llama_cpp.llama_model_quantize(str(path).encode(), str(to).encode(), options) == 0
    return to


def main():
    folder, kind, *command = sys.argv[1:]
    with silence():
        path = file_of(pathlib.Path(folder), kind)
    subprocess.run([part.replace("{model}", str(path)) for part in command], check=True)


if __name__ == "__main__":
    main()
