#!/usr/bin/env python3
"""Compares the greedy tokens of pictures/, which are transformers', with mlx-vlm's on the same checkpoints:

    pictures_mlx_vlm.py [NAME...]              all of them without a name
    pictures_mlx_vlm.py --mlx MLX [NAME...]    the same for what `MLX convert` makes of them, in floats and in 4 bits

Needs mlx-vlm 0.7.10 and requests beside requirements.txt. Prints, for each conversation, how many tokens are the same. Those of 4 bits are
compared with the tokens of `MLX generate` on the same conversion, where the pictures stand before the text, as it puts them.
"""
import json, subprocess, sys, tempfile
from pathlib import Path

import pictures  # sets the environment
import mlx.core as mx
import numpy as np
from mlx_vlm.generate import generate_step
from mlx_vlm.utils import load_model
from PIL import Image

IMAGE = pictures.make.BPE_VOCAB  # the token


def flat(config):
    """The text of Qwen2-VL and 2.5-VL is described there beside its tower, as Qwen published it."""
    return config["text_config"] | config if config["model_type"] in ("qwen2_vl", "qwen2_5_vl") else config


def loaded(folder):
    """The model from a copy without other files of tensors. Qwen2-VL and 2.5-VL are laid out there as Qwen published it."""
    with tempfile.TemporaryDirectory() as copy:
        config = flat(json.loads((folder / "config.json").read_text()))
        tensors = mx.load(str(folder / "model.safetensors"))
        if config["model_type"] in ("qwen2_vl", "qwen2_5_vl"):
            published = lambda key: key.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
            tensors = {published(key): value for key, value in tensors.items()}
        mx.save_safetensors(copy + "/model.safetensors", tensors)
        (Path(copy) / "config.json").write_text(json.dumps(config))
        model = load_model(Path(copy))
        mx.eval(model.parameters())
        return model


def inputs(name, seen, ids):
    """Pixels, and what else the model is given beside them."""
    if not seen:
        return None, {}
    joined = {key: mx.array(value.numpy()) for key, value in pictures.MODELS[name].joined(seen).items()}
    pixels = joined.pop("pixel_values")
    if name.startswith("mistral3"):
        joined["image_sizes"] = joined["image_sizes"].tolist()
    if name.startswith("gemma4"):
        joined["mm_token_type_ids"] = (ids == IMAGE).astype(mx.int32)
    return pixels, joined


def parts(case):
    return [part for message in case["messages"] if isinstance(message["content"], list) for part in message["content"]]


def compare(label, name, model, cases, expected):
    """`expected` gives the tokens of a case, if there are some to compare with."""
    family = pictures.MODELS[name]
    prepared = [family.processor(Image.fromarray(pictures.pixels(size)), return_tensors="pt") for size in pictures.SIZES]
    for case in cases:
        theirs = expected(case)
        if theirs is None:
            continue
        seen = [prepared[part["picture"]] for part in parts(case) if part["type"] == "image"]
        ids = mx.array([case["prompt_ids"]])
        pixels, rest = inputs(name, seen, ids)
        steps = generate_step(ids, model, pixels, mx.ones_like(ids), max_tokens=pictures.STEPS, temperature=0.0, **rest)
        tokens = [int(token) for token, _ in steps][: pictures.STEPS]
        same = next((place for place, pair in enumerate(zip(tokens, theirs)) if pair[0] != pair[1]), len(tokens))
        margin = f", then a margin of {case['margins'][same]}" if theirs is case["tokens"] and same < pictures.STEPS else ""
        print(f"{label}: {len(seen)} pictures, {same} of {pictures.STEPS} tokens the same{margin}", flush=True)


def answered(mlx, folder, case):
    """The tokens of `mlx generate`, if it can put the question: one turn, whose pictures stand first."""
    kinds = [part["type"] for part in parts(case)]
    if len(case["messages"]) != 1 or kinds != sorted(kinds):
        return None
    text = "".join(part["text"] for part in parts(case) if part["type"] == "text")
    sizes = [pictures.SIZES[part["picture"]] for part in parts(case) if part["type"] == "image"]
    files = [str(pictures.make.HERE / "pictures" / "mistral3-f32" / f"{width}x{height}.png") for width, height in sizes]
    images = [word for file in files for word in ("--image", file)]
    limits = ["--max-tokens", str(pictures.STEPS), "--temperature", "0", "--ignore-eos", "--json"]
    out = subprocess.run([mlx, "generate", "-m", str(folder), "-p", text, *images, *limits], capture_output=True, text=True, check=True).stdout
    return [token["id"] for token in json.loads(out)["tokens"]]


def odd(folder):
    """Rules that keep matrices floats which mlx-vlm does not expect packed: their numbers are no multiple of 64. Those of real models are."""
    sizes = {key: value.size for key, value in mx.load(str(folder / "model.safetensors")).items() if value.ndim == 2 and key.endswith(".weight")}
    modules = {key.split(".")[-2] for key, size in sizes.items() if size % 64 and ("language_model" in key or "lm_head" in key)}
    return [word for module in sorted(modules) for word in ("--rule", f"*{module}=keep")]


def converted(mlx, name, folder, cases):
    with tempfile.TemporaryDirectory() as there:
        for label, how in (("floats", ["--dtype", "f32"]), ("4 bits", ["--bits", "4", "--group-size", "32", *odd(folder)])):
            target = Path(there) / label
            subprocess.run([mlx, "convert", str(folder), "-o", str(target), *how], check=True, capture_output=True)
            described = flat(json.loads((target / "config.json").read_text()))
            (target / "config.json").write_text(json.dumps(described))
            expected = (lambda case: case["tokens"]) if label == "floats" else lambda case: answered(mlx, target, case)
            compare(f"{name} in {label}", name, load_model(target), cases, expected)


def main(names):
    mlx = names[1] if names[:1] == ["--mlx"] else None
    known = [name for name in pictures.MODELS if not (mlx and name.endswith("-q4"))]  # those are conversions
    for name in (names[2:] if mlx else names) or known:
        folder = pictures.make.HERE / "pictures" / f"{name}-f32"
        cases = json.loads((folder / "cases.json").read_text())["cases"]
        if mlx:
            converted(mlx, name, folder, cases)
        else:
            compare(name, name, loaded(folder), cases, lambda case: case["tokens"])


if __name__ == "__main__":
    main(sys.argv[1:])
