"""Writes a vision model with random f32 weights: Qwen3-VL's layout, the text model of 25 M, and a tower of 12 M parameters.

    python bench/seeing_model.py FOLDER
"""

import json
import pathlib
import sys

import models
import numpy as np
from safetensors.numpy import save_file

TOWER = dict(
    model_type="qwen3_vl", depth=6, hidden_size=384, intermediate_size=1536, num_heads=6, in_channels=3, patch_size=16, spatial_merge_size=2,
    temporal_patch_size=2, num_position_embeddings=48 * 48, out_hidden_size=models.SIZES["25m"]["hidden_size"], hidden_act="gelu_pytorch_tanh",
    deepstack_visual_indexes=[1, 3],
)


def config():
    text = models.config("25m") | dict(
        model_type="qwen3_vl_text", rope_scaling=dict(rope_type="default", type="default", mrope_section=[12, 10, 10], mrope_interleaved=True))
    ids = dict(image_token_id=text["vocab_size"] - 3, vision_start_token_id=text["vocab_size"] - 2, vision_end_token_id=text["vocab_size"] - 1)
    same = {key: text[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "torch_dtype")}
    return same | ids | dict(architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl", text_config=text, vision_config=TOWER)


def shapes(text):
    for name, shape in models.shapes(text):
        yield name.replace("model.", "model.language_model.", 1), shape
    for layer in range(text["num_hidden_layers"]):
        for part in "qk":
            yield f"model.language_model.layers.{layer}.self_attn.{part}_norm.weight", (text["head_dim"],)
    width, inner, patch = TOWER["hidden_size"], TOWER["intermediate_size"], TOWER["patch_size"]
    wide = width * TOWER["spatial_merge_size"] ** 2

    def module(name, *shape):
        yield f"model.visual.{name}.weight", shape
        yield f"model.visual.{name}.bias", shape[:1]

    yield from module("patch_embed.proj", width, 3, TOWER["temporal_patch_size"], patch, patch)
    yield "model.visual.pos_embed.weight", (TOWER["num_position_embeddings"], width)
    for block in range(TOWER["depth"]):
        for name, *shape in [("attn.qkv", 3 * width, width), ("attn.proj", width, width), ("mlp.linear_fc1", inner, width), ("mlp.linear_fc2", width, inner), ("norm1", width), ("norm2", width)]:
            yield from module(f"blocks.{block}.{name}", *shape)
    mergers = [("merger", width)] + [(f"deepstack_merger_list.{place}", wide) for place in range(len(TOWER["deepstack_visual_indexes"]))]
    for name, normed in mergers:
        for part, *shape in [("norm", normed), ("linear_fc1", wide, wide), ("linear_fc2", TOWER["out_hidden_size"], wide)]:
            yield from module(f"{name}.{part}", *shape)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    described, draw = config(), np.random.default_rng(7)
    tensors = {name: models.tensor(draw, shape, name) for name, shape in shapes(described["text_config"])}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    models.write_tokenizer(folder, described["text_config"]["vocab_size"])
    settings = dict(
        image_processor_type="Qwen2VLImageProcessor", size=dict(shortest_edge=65536, longest_edge=16777216), resample=3, image_mean=[0.5] * 3, image_std=[0.5] * 3,
        patch_size=TOWER["patch_size"], merge_size=TOWER["spatial_merge_size"], temporal_patch_size=TOWER["temporal_patch_size"])
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(described))


main()
