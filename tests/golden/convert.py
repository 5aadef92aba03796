#!/usr/bin/env python3
"""Record the output of mlx-lm's `convert` for small models: type, shape and crc32 of every tensor, and `quantization` of config.json.

    python convert.py        writes expected/convert.json here; make.py does that, too

The weights are no files: both sides make the same ones up, from the number of the tensor, exact in every float type but bf16.
"""
import json, os, shutil, struct, sys, tempfile, zlib
from fnmatch import fnmatchcase
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
import mlx.core as mx
mx.set_default_device(mx.cpu)  # before mlx_lm, which keeps a stream of the default device
import mlx_lm
import numpy as np

import families
import hybrids

HERE = Path(__file__).resolve().parent
PLAIN = dict(vocab_size=320, max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu", bos_token_id=1,
             eos_token_id=4, pad_token_id=0, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
SOURCES = {
    "llama": dict(PLAIN, model_type="llama", num_hidden_layers=2, intermediate_size=128, tie_word_embeddings=False),
    "llama-tied": dict(PLAIN, model_type="llama", num_hidden_layers=1, intermediate_size=96, tie_word_embeddings=True),
    "qwen3_moe": dict(PLAIN, model_type="qwen3_moe", num_hidden_layers=2, intermediate_size=128, tie_word_embeddings=False,
                      num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, mlp_only_layers=[1], decoder_sparse_step=1,
                      norm_topk_prob=True),
    "granite": dict(PLAIN, model_type="granite", num_hidden_layers=1, intermediate_size=128, tie_word_embeddings=False,
                    logits_scaling=1.0, attention_multiplier=0.25, embedding_multiplier=1.0, residual_multiplier=1.0,
                    attention_bias=False, mlp_bias=False),
}
DELTA = dict(PLAIN, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
             linear_conv_kernel_dim=4, num_hidden_layers=2, full_attention_interval=2, intermediate_size=96, tie_word_embeddings=False,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))
SOURCES |= {
    "qwen3_5": dict(model_type="qwen3_5", tie_word_embeddings=False, text_config=DELTA),
    "qwen3_5_moe": dict(model_type="qwen3_5_moe", tie_word_embeddings=False, text_config=dict(
        DELTA, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=64)),
    "lfm2": dict(PLAIN, model_type="lfm2", num_hidden_layers=2, layer_types=["conv", "full_attention"], conv_L_cache=3, conv_bias=False,
                 norm_eps=1e-5, block_dim=64, block_ff_dim=96, block_multiple_of=32, block_ffn_dim_multiplier=1.0,
                 block_auto_adjust_ff_dim=False, tie_word_embeddings=True),
}
# Families of families.py that mlx-lm stacks, splits, renames or keeps from quantization, wide enough for groups of 32 and routers' of 64.
WIDE = dict(hidden_size=64, intermediate_size=64, moe_intermediate_size=32, shared_expert_intermediate_size=32, hidden_size_per_layer_input=32,
            q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=32, v_head_dim=32)
WIDENED = ("deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe", "gemma4", "gemma4_text", "glm4_moe", "glm4_moe_lite", "granitemoe", "kimi_k25",
           "lfm2_moe", "minicpm3", "minimax_m2", "mistral4", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen2_vl", "qwen3_next", "qwen3_vl",
           "qwen3_vl_moe")


def widened(name):
    config = families.config_of(name)
    text = config.get("text_config", config)
    text.update({key: size for key, size in WIDE.items() if text.get(key)})
    if name == "minicpm3":  # mlx-lm knows no other width
        text["v_head_dim"] = text["hidden_size"] // text["num_attention_heads"]
    if name == "qwen2_moe":  # nor layers without experts
        text["mlp_only_layers"] = []
    for part in (config, text):
        part.pop("torch_dtype", None)
    if "vision_config" in config and "out_hidden_size" in config["vision_config"]:
        config["vision_config"] = config["vision_config"] | dict(out_hidden_size=text["hidden_size"])
    return config


SOURCES |= {name: widened(name) for name in WIDENED}
SOURCES |= {name: dict(PLAIN, **(config | dict(model_type=name.split("-")[0]))) for name, config in hybrids.CONVERTS.items()}
CASES = [  # the source and the flags of `mlx convert`
    dict(source="llama", bits=4, group=64),
    dict(source="llama", bits=8, group=32),
    dict(source="llama", bits=3, group=32),
    dict(source="llama", mode="mxfp4"),
    dict(source="llama", mode="mxfp8"),
    dict(source="llama", mode="nvfp4"),
    dict(source="llama", bits=4, group=32, rules=["lm_head=8", "*.down_proj=6:128", "*.v_proj=keep", "model.layers.1.*_proj=2"]),
    dict(source="llama", mode="mxfp4", rules=["lm_head=8", "model.embed_tokens=keep"]),
    dict(source="llama", bits=5, group=64, dtype="bfloat16"),
    dict(source="llama", dtype="float16"),
    dict(source="llama-tied", bits=6, group=64),
    dict(source="qwen3_moe", bits=4, group=32),
    dict(source="qwen3_moe", mode="nvfp4", rules=["*.switch_mlp.down_proj=8:32", "*mlp.gate=8:64"]),
    dict(source="granite", bits=4, group=64),
    dict(source="qwen3_5", bits=4, group=32),
    dict(source="qwen3_5", dtype="float16"),
    dict(source="qwen3_5_moe", bits=4, group=32),
    dict(source="lfm2", bits=8, group=32),
    *(dict(source=name, bits=4, group=32) for name in WIDENED),
    *(dict(source=name, dtype="bfloat16") for name in ("deepseek_v3", "gemma4", "glm4_moe", "kimi_k25", "lfm2_moe", "minimax_m2", "qwen3_vl_moe")),
    *(dict(source=name, bits=4, group=32) for name in hybrids.CONVERTS),
    *(dict(source=name, dtype="bfloat16") for name in ("nemotron_h", "falcon_h1", "kimi_linear", "granitemoehybrid-dense")),
]


def delta_shapes(config):
    """The tensors of a model that sees, of which only those of the text are converted."""
    text = config["text_config"]
    hidden, inner, prefix = text["hidden_size"], text["intermediate_size"], "model.language_model"
    queries, keys = text["num_attention_heads"] * text["head_dim"], text["num_key_value_heads"] * text["head_dim"]
    heads, values = text["linear_num_value_heads"], text["linear_num_value_heads"] * text["linear_value_head_dim"]
    convolved = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + values
    yield from ((f"model.visual.{name}", [4, 8]) for name in ("merger.weight", "patch_embed.weight"))
    yield from (("mtp.fc.weight", [4, 8]), ("mtp.norm.weight", [4]))
    yield f"{prefix}.embed_tokens.weight", [text["vocab_size"], hidden]
    for layer in range(text["num_hidden_layers"]):
        name = f"{prefix}.layers.{layer}"
        yield from ((f"{name}.{norm}_layernorm.weight", [hidden]) for norm in ("input", "post_attention"))
        if (layer + 1) % text["full_attention_interval"]:
            name += ".linear_attn"
            for part, outputs in (("qkv", convolved), ("z", values), ("b", heads), ("a", heads)):
                yield f"{name}.in_proj_{part}.weight", [outputs, hidden]
            yield from ((f"{name}.conv1d.weight", [convolved, 1, 4]), (f"{name}.A_log", [heads]), (f"{name}.dt_bias", [heads]))
            yield from ((f"{name}.norm.weight", [text["linear_value_head_dim"]]), (f"{name}.out_proj.weight", [hidden, values]))
        else:
            name += ".self_attn"
            for part, shape in (("q", [2 * queries, hidden]), ("k", [keys, hidden]), ("v", [keys, hidden]), ("o", [hidden, queries])):
                yield f"{name}.{part}_proj.weight", shape
            yield from ((f"{name}.{part}_norm.weight", [text["head_dim"]]) for part in "qk")
        name = f"{prefix}.layers.{layer}.mlp"
        if "num_experts" in text:
            experts, width, shared = text["num_experts"], text["moe_intermediate_size"], text["shared_expert_intermediate_size"]
            yield from ((f"{name}.gate.weight", [experts, hidden]), (f"{name}.shared_expert_gate.weight", [1, hidden]))
            yield from ((f"{name}.experts.gate_up_proj", [experts, 2 * width, hidden]), (f"{name}.experts.down_proj", [experts, hidden, width]))
            name, inner = f"{name}.shared_expert", shared
        for part, shape in (("gate", [inner, hidden]), ("up", [inner, hidden]), ("down", [hidden, inner])):
            yield f"{name}.{part}_proj.weight", shape
    yield f"{prefix}.norm.weight", [hidden]
    yield "lm_head.weight", [text["vocab_size"], hidden]


def conv_shapes(config):
    hidden, inner, keys = config["hidden_size"], config["block_ff_dim"], config["num_key_value_heads"] * config["head_dim"]
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    for layer, kind in enumerate(config["layer_types"]):
        name = f"model.layers.{layer}"
        yield from ((f"{name}.{norm}_norm.weight", [hidden]) for norm in ("operator", "ffn"))
        yield from ((f"{name}.feed_forward.{part}.weight", shape) for part, shape in (
            ("w1", [inner, hidden]), ("w3", [inner, hidden]), ("w2", [hidden, inner])))
        if kind == "conv":
            yield from ((f"{name}.conv.in_proj.weight", [3 * hidden, hidden]), (f"{name}.conv.out_proj.weight", [hidden, hidden]))
            yield f"{name}.conv.conv.weight", [hidden, 1, 3]
        else:
            for part, outputs in (("q_proj", hidden), ("k_proj", keys), ("v_proj", keys), ("out_proj", hidden)):
                yield f"{name}.self_attn.{part}.weight", [outputs, hidden]
            yield from ((f"{name}.self_attn.{part}_layernorm.weight", [config["head_dim"]]) for part in "qk")
    yield "model.embedding_norm.weight", [hidden]


def shapes(name, config):
    """The tensors of a checkpoint in the format of transformers."""
    if name in WIDENED or name in hybrids.CONVERTS:
        with tempfile.TemporaryDirectory() as folder:
            return sorted(families.published_tensors(name, Path(folder), config).items())
    return list(named_shapes(config))


def named_shapes(config):
    if "text_config" in config or config["model_type"] == "lfm2":
        yield from (conv_shapes if config["model_type"] == "lfm2" else delta_shapes)(config)
        return
    hidden, inner, keys = config["hidden_size"], config["intermediate_size"], config["num_key_value_heads"] * config["head_dim"]
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        yield from ((f"{name}.{norm}_layernorm.weight", [hidden]) for norm in ("input", "post_attention"))
        for part, outputs in (("q", hidden), ("k", keys), ("v", keys), ("o", hidden)):
            yield f"{name}.self_attn.{part}_proj.weight", [outputs, hidden]
        if config["model_type"] == "qwen3_moe":
            yield from ((f"{name}.self_attn.{part}_norm.weight", [config["head_dim"]]) for part in "qk")
        places = [("mlp", inner)]
        if config["model_type"] == "qwen3_moe" and layer not in config["mlp_only_layers"]:
            yield f"{name}.mlp.gate.weight", [config["num_experts"], hidden]
            places = [(f"mlp.experts.{expert}", config["moe_intermediate_size"]) for expert in range(config["num_experts"])]
        for place, width in places:
            for part, shape in (("gate", [width, hidden]), ("up", [width, hidden]), ("down", [hidden, width])):
                yield f"{name}.{place}.{part}_proj.weight", shape
    yield "model.norm.weight", [hidden]
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", [config["vocab_size"], hidden]


def numbers(seed, shape):
    """The numbers of `Dice` in tests/support: up to 1000 multiples of 1/8192 around 0, or around 1 for norms."""
    state, mask, values = (seed * 2_862_933_555_777_941_757 + 3_037_000_493) % 2**64, 2**64 - 1, []
    for _ in range(int(np.prod(shape))):
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) & mask
        values.append((state >> 33) % 2001 - 1000)
    return np.array(values, np.float32).reshape(shape) / np.float32(8192) + np.float32(len(shape) == 1)


def write_source(folder, config, tensors):
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(HERE / "models/llama-f32" / file, folder / file)
    (folder / "config.json").write_text(json.dumps(config))
    weights = {name: mx.array(numbers(seed, shape)) for seed, (name, shape) in enumerate(tensors)}
    mx.save_safetensors(str(folder / "model.safetensors"), weights)


def predicate(case):
    """The rules in the form of mlx-lm."""
    def choose(path, _):
        for rule in case["rules"]:
            pattern, choice = rule.rsplit("=", 1)
            if fnmatchcase(path, pattern):
                bits, _, group = choice.partition(":")
                usual = case.get("group", 64)
                return choice != "keep" and dict(group_size=int(group or usual), bits=int(bits), mode="affine")
        return True
    return choose if "rules" in case else None


def tensors(folder):
    found = {}
    for path in sorted(folder.glob("model*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + length])
        assert header.pop("__metadata__") == {"format": "mlx"}
        for name, entry in header.items():
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            found[name] = [entry["dtype"], entry["shape"], zlib.crc32(data[begin:end])]
    return dict(sorted(found.items()))


def write(target):
    result = dict(mlx=mx.__version__, mlx_lm=mlx_lm.__version__, sources={}, cases=[])
    with tempfile.TemporaryDirectory() as place:
        for name, config in SOURCES.items():
            tensors_of_it = [[key, list(shape)] for key, shape in shapes(name, config)]
            write_source(Path(place) / name, config, tensors_of_it)
            result["sources"][name] = dict(config=config, tensors=tensors_of_it)
        for number, case in enumerate(CASES):
            output = Path(place) / f"out-{number}"
            mlx_lm.convert(str(Path(place) / case["source"]), str(output), quantize="bits" in case or "mode" in case,
                           q_bits=case.get("bits"), q_group_size=case.get("group"), q_mode=case.get("mode", "affine"),
                           dtype=case.get("dtype"), quant_predicate=predicate(case))
            quantization = json.loads((output / "config.json").read_text()).get("quantization")
            result["cases"].append(dict(case, quantization=quantization, tensors=tensors(output)))
    (target / "convert.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    write(HERE / "expected")
