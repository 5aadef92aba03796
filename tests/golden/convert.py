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
]


def shapes(config):
    """The tensors of a checkpoint in the format of transformers."""
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


def write_source(folder, config):
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(HERE / "models/llama-f32" / file, folder / file)
    (folder / "config.json").write_text(json.dumps(config))
    weights = {name: mx.array(numbers(seed, shape)) for seed, (name, shape) in enumerate(shapes(config))}
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
            write_source(Path(place) / name, config)
            result["sources"][name] = dict(config=config, tensors=list(map(list, shapes(config))))
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
