#!/usr/bin/env python3
"""Write adapters with random numbers, and what mlx-lm makes of them: greedy tokens with log-probabilities, and the tensors of fused models.

    python adapters.py        writes adapters/ and expected/adapters.json here; make.py does that, too

The modules are mlx-lm's own, put into the tiny models as `mlx_lm.lora` does; only the training is left out.
"""
import json, os, shutil, sys, tempfile, zlib
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
import mlx.core as mx
mx.set_default_device(mx.cpu)  # before mlx_lm, which keeps a stream of the default device
import mlx_lm
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import dequantize_model, load_model

import convert, make

HERE = Path(__file__).resolve().parent
ATTENTION = ["self_attn.q_proj", "self_attn.v_proj"]
CASES = {  # name: base (a model here, or a source of convert.py with how it is converted), kind, layers, rank, scale, modules, type of numbers
    "lora": dict(base="llama-f32", layers=-1, rank=4, scale=2.0),
    "lora-last": dict(base="llama-f32", layers=1, rank=2, scale=10.0, keys=ATTENTION),
    "lora-head": dict(base="llama-f32", layers=1, rank=3, scale=1.5, keys=["self_attn.o_proj", "lm_head"]),
    "lora-bias": dict(base="llama-bias-f32", layers=2, rank=3, scale=2.5, dtype="float16"),
    "lora-embed": dict(base="llama-tied-f32", layers=2, rank=4, scale=1.0, keys=["model.embed_tokens", "mlp.down_proj"]),
    "lora-q4": dict(base="llama-q4-f16", layers=2, rank=8, scale=1.5),
    "lora-mixed": dict(base="llama-mixed-f32", layers=-1, rank=4, scale=1.5),
    "lora-mxfp4": dict(base="llama-mxfp4-bf16", layers=2, rank=4, scale=1.5, dtype="bfloat16"),
    "lora-bf16": dict(base="llama-bf16", layers=2, rank=4, scale=2.0, dtype="bfloat16"),
    "lora-moe": dict(base="qwen3_moe-f32", layers=3, rank=2, scale=2.0),
    "lora-moe-q4": dict(base="qwen3_moe", convert=dict(bits=4, group=32), layers=2, rank=4, scale=2.0),
    "lora-glm4": dict(base="glm4-f32", layers=2, rank=4, scale=1.5),
    "lora-delta": dict(base="qwen3_5-q4-f32", layers=-1, rank=4, scale=1.0),
    "dora": dict(base="llama-f32", kind="dora", layers=2, rank=4, scale=2.0),
    "dora-bias": dict(base="llama-bias-f32", kind="dora", layers=1, rank=2, scale=2.0, keys=ATTENTION + ["mlp.up_proj"]),
    "dora-q4": dict(base="llama-q4-f16", kind="dora", layers=2, rank=4, scale=1.5, keys=ATTENTION + ["mlp.down_proj"]),
    "dora-bf16": dict(base="llama-bf16", kind="dora", layers=2, rank=4, scale=1.0),
    "full": dict(base="llama-f32", kind="full", layers=1),
}


def numbers(case, name, shape):
    seed = zlib.crc32(f"adapters/{case}/{name}".encode())
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(shape, dtype=np.float32)


def base_of(case, folder):
    """The folder of the model that a case adapts."""
    if "convert" not in case:
        return HERE / "models" / case["base"]
    source, target = folder / "source", folder / "base"
    config = convert.SOURCES[case["base"]]
    convert.write_source(source, config, convert.shapes(case["base"], config))
    mlx_lm.convert(str(source), str(target), quantize=True, q_bits=case["convert"]["bits"], q_group_size=case["convert"]["group"])
    return target


def write_adapter(folder, name, case, base):
    model, _ = load_model(base)
    model.freeze()
    kind = case.get("kind", "lora")
    parameters = dict(rank=case.get("rank", 8), dropout=0.0, scale=case.get("scale", 20.0))
    if "keys" in case:
        parameters["keys"] = case["keys"]
    if kind == "full":
        for layer in model.layers[-case["layers"]:]:
            layer.unfreeze()
    else:
        linear_to_lora_layers(model, case["layers"], parameters, use_dora=kind == "dora")
    tensors = {}
    for tensor, value in tree_flatten(model.trainable_parameters()):
        noise, part = mx.array(numbers(name, tensor, value.shape)), tensor.split(".")[-1]
        # Factors have few bits, so that their products are the same numbers in whatever order they are added.
        if part == "lora_a":  # as wide as mlx-lm's own beginning
            value = mx.round(64 * 0.6 * noise / np.sqrt(value.shape[-1] if value.ndim == 3 else value.shape[0])) / 64
        elif part == "lora_b":
            value = mx.round(64 * 0.3 * noise / np.sqrt(parameters["scale"])) / 64
        elif part == "m":
            value = value * (1 + 0.2 * noise)
        else:
            value = value * (1 + 0.3 * noise)
        tensors[tensor] = value.astype(getattr(mx, case.get("dtype", "float32")))
    folder.mkdir(parents=True)
    dtypes = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16"}
    items = [(tensor, dtypes[value.dtype], np.array(value.astype(mx.float32))) for tensor, value in sorted(tensors.items())]
    make.write_safetensors(folder / "adapters.safetensors", items)
    config = dict(adapter_path="adapters", batch_size=4, data="data", fine_tune_type=kind, grad_checkpoint=False, iters=100,
                  learning_rate=1e-05, lora_parameters=parameters, mask_prompt=False, model=case["base"], num_layers=case["layers"],
                  optimizer="adam", seed=0, train=True)
    make.write_json(folder / "adapter_config.json", config, 4)


def fused(base, adapter, folder):
    """The tensors that `mlx_lm.fuse` writes, and the quantization in config.json."""
    import mlx_lm.fuse
    arguments, sys.argv = sys.argv, ["fuse", "--model", str(base), "--adapter-path", str(adapter), "--save-path", str(folder)]
    mlx_lm.fuse.main()
    sys.argv = arguments
    config = json.loads((folder / "config.json").read_text())
    return dict(tensors=convert.tensors(folder), quantization=config.get("quantization"))


def prompt(name, salt, length):
    return ((np.abs(numbers(name, f"ids/{salt}", (length,))) * 1000).astype(int) % 300 + 8).tolist()


def expect(name, case, base, adapter):
    ids = prompt(name, 0, 32)
    half = {}
    if case["base"].endswith("-bf16") and "mxfp4" not in case["base"]:
        model, _ = load_model(base)
        model = load_adapters(model, str(adapter))
        model.eval()
        rows = make.full_pass(model, ids).astype(np.float64)
        rows -= np.log(np.exp(rows).sum(axis=-1, keepdims=True))
        half = dict(scores_half=[round(float(row[token]), 4) for row, token in zip(rows[:-1], ids[1:])])
    model, _ = load_model(base)
    if "convert" in case:  # this mlx-lm cannot multiply with packed experts
        model = dequantize_model(model)
    model.set_dtype(mx.float32)
    model = load_adapters(model, str(adapter))
    model.eval()
    cases = [clear_case(model, name, length) for length in (24, 5)]
    return dict(cases=cases, ids=ids, **half)


def clear_case(model, name, length):
    """The first of some prompts after which no two tokens are nearly level."""
    for salt in range(1, 30):
        case = make.greedy_case(model, None, prompt(name, salt, length))
        if min(case["margins"]) > 5e-3:
            print(f"{name:16} {length:2} tokens, prompt {salt}, smallest margin {min(case['margins']):.4f}")
            return case
    raise AssertionError(f"{name}: two tokens are always nearly level")


def write(target):
    shutil.rmtree(target.parent / "adapters", ignore_errors=True)
    result = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            folder, adapter = Path(folder), target.parent / "adapters" / name
            base = base_of(case, folder)
            write_adapter(adapter, name, case, base)
            result[name] = dict(base=case["base"], convert=case.get("convert"), **expect(name, case, base, adapter),
                                fused=fused(base, adapter, folder / "fused"))
    make.write_json(target / "adapters.json", result, 1)


if __name__ == "__main__":
    write(HERE / "expected")
