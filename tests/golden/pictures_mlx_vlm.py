#!/usr/bin/env python3
"""Compares the greedy tokens of pictures/, which are transformers', with mlx-vlm's on the same checkpoints:

    pictures_mlx_vlm.py [NAME...]    all of them without a name

Needs mlx-vlm 0.7.10 and requests beside requirements.txt. Prints, for each conversation, how many tokens are the same.
"""
import json, sys, tempfile
from pathlib import Path

import pictures  # sets the environment
import mlx.core as mx
import numpy as np
from mlx_vlm.generate import generate_step
from mlx_vlm.utils import load_model
from PIL import Image

IMAGE = pictures.make.BPE_VOCAB  # the token


def loaded(folder):
    """The model from a copy without other files of tensors. Qwen2.5-VL is laid out there as Qwen published it."""
    with tempfile.TemporaryDirectory() as copy:
        config = json.loads((folder / "config.json").read_text())
        tensors = mx.load(str(folder / "model.safetensors"))
        if config["model_type"] == "qwen2_5_vl":
            config = config["text_config"] | config
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


def main(names):
    for name in names or pictures.MODELS:
        family, folder = pictures.MODELS[name], pictures.make.HERE / "pictures" / f"{name}-f32"
        model = loaded(folder)
        prepared = [family.processor(Image.fromarray(pictures.pixels(size)), return_tensors="pt") for size in pictures.SIZES]
        for case in json.loads((folder / "cases.json").read_text())["cases"]:
            parts = [part for message in case["messages"] if isinstance(message["content"], list) for part in message["content"]]
            seen = [prepared[part["picture"]] for part in parts if part["type"] == "image"]
            ids = mx.array([case["prompt_ids"]])
            pixels, rest = inputs(name, seen, ids)
            steps = generate_step(ids, model, pixels, mx.ones_like(ids), max_tokens=pictures.STEPS, temperature=0.0, **rest)
            tokens = [int(token) for token, _ in steps][: pictures.STEPS]
            same = next((place for place, pair in enumerate(zip(tokens, case["tokens"])) if pair[0] != pair[1]), len(tokens))
            margin = f", then a margin of {case['margins'][same]}" if same < pictures.STEPS else ""
            print(f"{name}: {len(seen)} pictures, {same} of {pictures.STEPS} tokens the same{margin}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
