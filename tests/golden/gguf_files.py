"""GGUF files made from fixtures in models/, in types that the `gguf` package can quantize, and what transformers makes of their values in f32.

    python gguf_files.py [NAME...]

`gguf/NAME.gguf` has names, orders and keys as llama.cpp's converter writes them; `expected/NAME-gguf.*` has the results of the fixture's model with each tensor
replaced by the values in the file. Blocks have 32 numbers; matrices with other rows are F16.
"""
import json, re, shutil, sys, tempfile
from importlib import metadata
from pathlib import Path

import families  # sets mlx's device before mlx_lm is imported
import make
import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type, TokenType
from safetensors.numpy import load_file

LENGTH = 40
# name: architecture, fixture, fixture with the vocabulary and the template, keys of config.json that a GGUF file cannot have
FILES = {
    "llama": ("llama", "llama-spm-f32", "llama-spm-f32", {}),
    "gemma3": ("gemma3", "gemma3_text-f32", "llama-f32", dict(query_pre_attn_scalar=16)),  # the size of a head
    "qwen3moe": ("qwen3moe", "qwen3_moe-f32", "llama-f32", dict(norm_topk_prob=True)),
    "qwen35": ("qwen35", "qwen3_5-f32", "llama-f32", {}),
}
SPLIT = {"qwen3moe": 16}  # tensors in a file of it
TYPES = {
    "token_embd": Type.Q8_0, "output": Type.Q5_1, "attn_q": Type.Q4_0, "attn_k": Type.Q4_1, "attn_v": Type.Q5_0, "attn_output": Type.Q5_1,
    "ffn_gate": Type.Q5_0, "ffn_up": Type.Q4_1, "ffn_gate_exps": Type.Q4_0, "ffn_up_exps": Type.Q5_1, "ffn_down": Type.F16, "ffn_down_exps": Type.F16,
    "attn_qkv": Type.Q5_1, "attn_gate": Type.Q4_1, "ssm_beta": Type.Q8_0, "ssm_alpha": Type.F32, "ssm_out": Type.F16,
}  # others, such as norms and routers, are F32
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp",
}
EXPERTS = {f"mlp.experts.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")}
OF_FAMILY = {
    "llama": {}, "qwen3moe": EXPERTS,
    "gemma3": {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"},
    "qwen35": {"post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
               "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.A_log": "ssm_a",
               "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out"},
}
WITHOUT_SUFFIX = ("ssm_a", "ssm_dt.bias")


def stored_name(architecture, key):
    """The name in the file, without the number of an expert; None if the file does not have the tensor."""
    key = re.sub(r"\.experts\.\d+\.", ".experts.", key.replace("model.language_model.", "model.").removesuffix(".weight"))
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if key in outer:
        return outer[key] + ".weight"
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", key)
    if layer is None:
        return None
    part = (NAMES | OF_FAMILY[architecture])[layer[2]]
    return f"blk.{layer[1]}.{part}" + ("" if part in WITHOUT_SUFFIX else ".weight")


def tiled(values, first, size, config):
    """Value heads of a gated delta layer: the first of each key head, then the second of each."""
    groups = config["linear_num_key_heads"]
    heads = values[first:].reshape(groups, config["linear_num_value_heads"] // groups, size, *values.shape[1:])
    return np.concatenate([values[:first], heads.swapaxes(0, 1).reshape(values[first:].shape)])


def part_of(name):
    return name.split(".")[2 if name.startswith("blk.") else 0]


def edited(architecture, name, values):
    """The values as the file has them, and a function that undoes it."""
    part = part_of(name)
    if "norm" in part and architecture in ("gemma3", "qwen35") and part != "ssm_norm":
        return values + np.float32(1), lambda values: values - np.float32(1)
    if part == "ssm_a":
        return -np.exp(values), lambda values: np.log(-values)
    return values, lambda values: values


def ordered(architecture, name, values, config):
    """The rows and columns in the order of the file."""
    part = part_of(name)
    if architecture == "llama" and part in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
        return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    if architecture != "qwen35":
        return values
    size = config["linear_value_head_dim"]
    keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    if part == "attn_qkv":
        return tiled(values, keys, size, config)
    if part == "ssm_conv1d":
        return tiled(values[:, 0], keys, size, config)
    if part == "attn_gate":
        return tiled(values, 0, size, config)
    if part in ("ssm_beta", "ssm_alpha", "ssm_dt", "ssm_a"):
        return tiled(values, 0, 1, config)
    if part == "ssm_out":
        return np.ascontiguousarray(tiled(values.T, 0, size, config).T)
    return values


def kind_of(name, values):
    kind = TYPES.get(part_of(name), Type.F32)
    return Type.F16 if values.shape[-1] % 32 and kind not in (Type.F16, Type.F32) else kind


def packed(values, kind):
    return values.astype({Type.F16: np.float16, Type.F32: np.float32}[kind]) if kind in (Type.F16, Type.F32) else gguf.quants.quantize(values, kind)


def unpacked(values, kind):
    return values.astype(np.float32) if kind in (Type.F16, Type.F32) else gguf.quants.dequantize(values, kind)


def write_tokenizer(writer, folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"] | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.get)
    is_bytes = tokenizer["model"]["byte_fallback"]

    def kind(token):
        if token == config.get("unk_token"):
            return TokenType.UNKNOWN
        if token in special:
            return TokenType.CONTROL
        return TokenType.BYTE if is_bytes and re.fullmatch("<0x..>", token) else TokenType.NORMAL
    writer.add_tokenizer_model("llama" if is_bytes else "gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([kind(token) for token in tokens])
    merges = tokenizer["model"]["merges"]
    if is_bytes:
        scores = {"".join(merge): -index for index, merge in reversed(list(enumerate(merges)))}
        writer.add_token_scores([float(scores.get(token, -len(merges) - index)) for index, token in enumerate(tokens)])
        writer.add_add_bos_token(True)
    else:
        writer.add_tokenizer_pre("smaug-bpe")  # the same pattern, without whole words
        writer.add_token_merges([" ".join(merge) for merge in merges])
    for name, add in [("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id), ("unk", writer.add_unk_token_id), ("pad", writer.add_pad_token_id)]:
        if f"{name}_token" in config:
            add(vocabulary[config[f"{name}_token"]])
    writer.add_chat_template(config["chat_template"])


def write_keys(writer, architecture, config):
    writer.add_name("Tiny")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters", config)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope.get("partial_rotary_factor", 1)))
    if architecture == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_uint32("gemma3.attention.sliding_window_pattern", config["sliding_window_pattern"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])
    if architecture == "qwen3moe":
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if architecture == "qwen35":
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
        writer.add_uint32("qwen35.full_attention_interval", 4)


def write_file(name, root, folder):
    """Writes the file of the checkpoint in `folder`. Returns the tensors of the checkpoint with the values in the file."""
    architecture, _, text, changes = FILES[name]
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config) | changes
    writer = gguf.GGUFWriter(root / "gguf" / f"{name}.gguf", architecture, split_max_tensors=SPLIT.get(name, 0))
    write_keys(writer, architecture, config)
    write_tokenizer(writer, root / "models" / text)
    tensors, experts = load_file(folder / "model.safetensors"), {}
    for key, values in sorted(tensors.items()):
        stored = stored_name(architecture, key)
        if stored is None:
            continue
        kind = kind_of(stored, values)
        values, undo = edited(architecture, stored, values)
        # Blocks lie within rows, so the order of rows does not change them.
        tensors[key] = undo(unpacked(packed(values, kind), kind))
        in_file = packed(ordered(architecture, stored, values, config), kind)
        if ".experts." in key:
            experts.setdefault((stored, kind), []).append((int(re.search(r"experts\.(\d+)", key)[1]), in_file))
        else:
            writer.add_tensor(stored, in_file, raw_dtype=kind)
    for (stored, kind), parts in experts.items():
        writer.add_tensor(stored, np.stack([values for _, values in sorted(parts, key=lambda part: part[0])]), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def write(name, root):
    _, fixture, _, changes = FILES[name]
    family, original = fixture.removesuffix("-f32"), root / "models" / fixture
    for path in (root / "gguf").glob(f"{name}[.-]*"):
        path.unlink()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        shutil.copytree(original, folder, dirs_exist_ok=True)
        tensors = write_file(name, root, folder)
        make.write_safetensors(folder / "model.safetensors", [(key, "F32", values) for key, values in tensors.items()])
        config = json.loads((folder / "config.json").read_text())
        make.write_json(folder / "config.json", config | changes)
        logits = families.reference(family, folder)
        salt, vocabulary = 0, config.get("text_config", config)["vocab_size"]
        while True:  # until no greedy step is nearly a tie
            ids = make.generator(f"gguf/{name}", f"ids{salt}").integers(8, vocabulary - 2, LENGTH).tolist()
            rows = logits(ids)
            cases = [families.greedy_case(logits, prompt) for prompt in (ids[:LENGTH - 8], ids[LENGTH - 8:-1], ids[-1:])]
            margin = min(min(case["margins"]) for case in cases)
            if margin > 4e-4 * float(rows.std()):
                break
            salt += 1
    lost = make.spread_error(rows, families.reference(family, original)(ids))
    print(f"{name:10} deviation {rows.std():.2f}, salt {salt}, smallest margin {margin:.4f}, lost by the types {lost:.4f}", flush=True)
    cases = [{key: case[key] for key in ("prompt_ids", "tokens", "logprobs")} | dict(top=[]) for case in cases]
    versions = dict(gguf=metadata.version("gguf"), transformers=transformers.__version__, torch=torch.__version__.split("+")[0])
    make.write_json(root / "expected" / f"{name}-gguf.json", versions | dict(cases=cases))
    make.write_safetensors(root / "expected" / f"{name}-gguf.safetensors", [("tokens", "I32", np.array(ids)), ("logits", "F32", rows)])


def write_all(root, names=()):
    (root / "gguf").mkdir(exist_ok=True)
    for name in names or FILES:
        write(name, root)


if __name__ == "__main__":
    write_all(make.HERE, sys.argv[1:])
