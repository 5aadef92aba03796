#!/usr/bin/env python3
"""Fixtures for vision towers: tiny random checkpoints of towers and projectors, pictures, and their features in transformers.

    pictures.py [FOLDER]    default: beside this file

Sides of the pictures are multiples of a merged patch, so that nothing is resized.
"""
import sys
from pathlib import Path

import families, make  # make first sets the environment
import numpy as np
import torch
from PIL import Image
from transformers import Mistral3Config, Mistral3Model
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

PATCH, MERGE = 8, 2
SIZES = [(32, 16), (48, 32), (32, 80)]  # width and height in pixels; transformers fails where there is one row
VISION = dict(
    model_type="pixtral", hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, head_dim=12,
    patch_size=PATCH, image_size=96, hidden_act="silu", rope_theta=10000.0,
)
TEXT = dict(
    model_type="mistral", hidden_size=40, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    head_dim=16, vocab_size=64, rms_norm_eps=1e-5,
)
CONFIG = dict(
    model_type="mistral3", text_config=TEXT, vision_config=VISION, image_token_index=10, spatial_merge_size=MERGE,
    projector_hidden_act="gelu", multimodal_projector_bias=False, vision_feature_layer=-1,
)


def main(root):
    folder = root / "pictures" / "mistral3-f32"
    folder.mkdir(parents=True, exist_ok=True)
    own = {key: value for key, value in CONFIG.items() if key != "model_type"}
    model = Mistral3Model(Mistral3Config(**own)).eval()
    model.vision_tower.config._attn_implementation = "eager"
    tensors = {}
    for key, value in sorted(model.state_dict().items()):
        if key.startswith(("vision_tower.", "multi_modal_projector.")):
            tensors[f"model.{key}"] = families.random_tensor("mistral3", key, tuple(value.shape))
            value.copy_(torch.from_numpy(tensors[f"model.{key}"]))
    make.write_json(folder / "config.json", CONFIG, 1)
    processor = PixtralImageProcessorPil(patch_size=PATCH * MERGE, size=dict(longest_edge=96))
    settings = dict(image_mean=processor.image_mean, image_std=processor.image_std, size=dict(longest_edge=96))
    make.write_json(folder / "preprocessor_config.json", settings, 1)
    make.write_safetensors(folder / "model.safetensors", [(key, "F32", value) for key, value in tensors.items()])
    expected = []
    for width, height in SIZES:
        noise = make.generator("pictures", f"{width}x{height}")
        pixels = noise.integers(0, 256, (height, width, 3), dtype=np.uint8)
        inputs = processor(Image.fromarray(pixels), return_tensors="pt")
        assert tuple(inputs["pixel_values"].shape[-2:]) == (height, width)
        with torch.no_grad():
            features = model.get_image_features(**inputs, vision_feature_layer=-1).pooler_output[0]
        # Pixels as numbers, so that one type is enough.
        expected += [(f"{width}x{height}.pixels", "F32", pixels.astype(np.float32)), (f"{width}x{height}.features", "F32", features.numpy())]
    make.write_safetensors(folder / "expected.safetensors", expected)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
