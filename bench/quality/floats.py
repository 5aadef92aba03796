"""Writes the weights of a GGUF file as a folder in f32. The reference package `gguf` dequantizes them, so no rounding of ours is in them.

The folder that `mlx convert` made of the same file has the config and the tokenizer.
"""

import json
import shutil

import gguf
import numpy as np
from safetensors.numpy import save_file

LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
FFN_NORM = {"llama": "post_attention_layernorm", "gemma3": "pre_feedforward_layernorm"}
POST_ATTENTION_NORM = "post_attention_layernorm"


def hub_name(name, family):
    part = name.removesuffix(".weight")
    if part in TOP:
        return f"{TOP[part]}.weight"
    _, layer, part = part.split(".")
    module = {"ffn_norm": FFN_NORM[family], "post_attention_norm": POST_ATTENTION_NORM}.get(part) or LAYER[part]
    return f"model.layers.{layer}.{module}.weight"


def halves(weights, heads):
    """Reorders a projection for rope: GGUF files of llama rotate adjacent elements of a head, Hugging Face's checkpoints its two halves."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write(file, converted, folder):
    """Writes the floats of `file` into `folder`. `converted` is the folder that `mlx convert` made of it."""
    reader = gguf.GGUFReader(file)
    config = json.loads((converted / "config.json").read_text())
    family = reader.fields["general.architecture"].contents()
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]} if family == "llama" else {}
    weights = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = halves(values, heads[part])
        # GGUF files of Gemma contain the norms plus 1.
        if family == "gemma3" and values.ndim == 1:
            values = values - 1
        weights[hub_name(tensor.name, family)] = np.ascontiguousarray(values)
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for key in ("quantization", "quantization_config"):
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (converted / name).exists():
            shutil.copy(converted / name, folder)
