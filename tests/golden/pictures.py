#!/usr/bin/env python3
"""Fixtures of models that see: tiny random checkpoints, pictures, their features in transformers, and greedy tokens behind them.

    pictures.py [OUTPUT] [NAME...]    all of them without a name; OUTPUT defaults to this script's folder

Pictures are prepared by the processors that use Pillow. Some are resized, some have the size that the model wants.
"""
import json, shutil, sys
from pathlib import Path
from types import SimpleNamespace

import families, make  # make first sets the environment
import mlx.core as mx
import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.image_processing_backends import TorchvisionBackend
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

STEPS = families.STEPS = 48
PATCH, MERGE, LONGEST = 8, 2, 96
SIDE = PATCH * MERGE
# Width and height in pixels; transformers' Mistral 3 fails where there is one row.
SIZES = [(32, 16), (48, 32), (32, 80), (41, 30), (200, 90), (60, 131)]
# Messages of the user, answers of the assistant; a number is a picture.
CHATS = [
    [["What burns at night?"]],
    [[1, "What is this?"]],
    [["First ", 3, " and then ", 4, "."]],
    [[0, 2, 5, 0, "Compare."]],
    [["Look: ", 4], "A lamp.", ["And here? ", 1, "Or here?", 3]],
]
COMMON = dict(bos_token_id=1, eos_token_id=4, pad_token_id=0, torch_dtype="float32", tie_word_embeddings=False)
TEXT = dict(families.TINY, max_position_embeddings=1024, vocab_size=make.BPE_VOCAB + 3)
EYES = dict(hidden_size=48, intermediate_size=80, patch_size=PATCH)


class Mistral3:
    side = SIDE  # in pixels, of what becomes one row
    specials, image = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"], "[IMG]"
    text_of = "mistral"
    config = COMMON | dict(
        model_type="mistral3", image_token_index=make.BPE_VOCAB, spatial_merge_size=MERGE, projector_hidden_act="gelu",
        multimodal_projector_bias=False, vision_feature_layer=-1,
        text_config=TEXT | dict(model_type="mistral", hidden_size=40, head_dim=16, sliding_window=None),
        vision_config=EYES | dict(
            model_type="pixtral", num_hidden_layers=3, num_attention_heads=4, head_dim=12, image_size=LONGEST, hidden_act="silu", rope_theta=10000.0))
    settings = dict(size=dict(longest_edge=LONGEST), resample=3)
    processor = PixtralImageProcessorPil(patch_size=SIDE, size=dict(longest_edge=LONGEST))

    def rows(grid):
        """What PixtralProcessor.replace_image_token puts for a picture."""
        return "[IMG_BREAK]".join(["[IMG]" * grid[1]] * grid[0]) + "[IMG_END]"

    def grid(inputs):
        return [side // SIDE for side in inputs["pixel_values"].shape[-2:]]

    def features(model, inputs):
        return model.model.get_image_features(**inputs, vision_feature_layer=-1).pooler_output[0]

    def joined(inputs):
        """Pictures of several sizes as the processor pads them."""
        height, width = (max(it["pixel_values"].shape[axis] for it in inputs) for axis in (-2, -1))
        pad = lambda it: torch.nn.functional.pad(it, (0, width - it.shape[-1], 0, height - it.shape[-2]))
        sizes = [it["pixel_values"].shape[-2:] for it in inputs]
        return dict(pixel_values=torch.cat([pad(it["pixel_values"]) for it in inputs]), image_sizes=torch.tensor(sizes))


class Qwen:
    side = SIDE
    specials, image = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"], "<|vision_start|><|image_pad|><|vision_end|>"
    settings = dict(
        size=dict(shortest_edge=1024, longest_edge=LONGEST * LONGEST), resample=3, image_mean=[0.5] * 3, image_std=[0.5] * 3,
        patch_size=PATCH, merge_size=MERGE, temporal_patch_size=2)
    processor = Qwen2VLImageProcessorPil(**settings)
    eyes = EYES | dict(
        depth=3, num_heads=4, in_channels=3, spatial_merge_size=MERGE, temporal_patch_size=2, num_position_embeddings=25, out_hidden_size=32,
        hidden_act="gelu_pytorch_tanh")
    outer = COMMON | dict(
        image_token_id=make.BPE_VOCAB, vision_start_token_id=make.BPE_VOCAB + 1, vision_end_token_id=make.BPE_VOCAB + 2)

    def rows(grid):
        return "<|image_pad|>" * (grid[0] * grid[1])

    def grid(inputs):
        return (inputs["image_grid_thw"][0, 1:] // MERGE).tolist()

    def features(model, inputs):
        seen = model.model.get_image_features(**inputs)
        deep = [it[0] if isinstance(it, tuple) else it for it in getattr(seen, "deepstack_features", None) or []]
        return torch.cat([seen.pooler_output[0], *deep], dim=1)

    def joined(inputs):
        return {key: torch.cat([it[key] for it in inputs]) for key in ("pixel_values", "image_grid_thw")}


class Qwen35(Qwen):
    text_of = "qwen3_5"
    config = Qwen.outer | dict(
        model_type="qwen3_5", text_config=TEXT | families.FAMILIES["qwen3_5"] | dict(model_type="qwen3_5_text"),
        vision_config=Qwen.eyes | dict(model_type="qwen3_5"))


class Qwen3VL(Qwen):
    text_of = "qwen3_vl"
    config = Qwen.outer | dict(
        model_type="qwen3_vl", text_config=TEXT | families.FAMILIES["qwen3_vl"] | dict(model_type="qwen3_vl_text"),
        vision_config=Qwen.eyes | dict(model_type="qwen3_vl", deepstack_visual_indexes=[0, 2]))


class Qwen35Moe(Qwen):
    text_of = "qwen3_5_moe"
    config = Qwen.outer | dict(
        model_type="qwen3_5_moe", text_config=TEXT | families.FAMILIES["qwen3_5_moe"] | dict(model_type="qwen3_5_moe_text"),
        vision_config=Qwen.eyes | dict(model_type="qwen3_5_moe"))


class Qwen3VLMoe(Qwen):
    text_of = "qwen3_vl_moe"
    config = Qwen.outer | dict(
        model_type="qwen3_vl_moe", text_config=TEXT | families.FAMILIES["qwen3_vl_moe"] | dict(model_type="qwen3_vl_moe_text"),
        vision_config=Qwen.eyes | dict(model_type="qwen3_vl_moe", deepstack_visual_indexes=[0, 2]))


class Qwen2VL(Qwen):
    settings = Qwen.settings | dict(image_mean=[0.48145466, 0.4578275, 0.40821073], image_std=[0.26862954, 0.26130258, 0.27577711])
    processor = Qwen2VLImageProcessorPil(**settings)
    text_of = "qwen2_vl"
    config = Qwen.outer | dict(
        model_type="qwen2_vl", text_config=TEXT | families.FAMILIES["qwen2_vl"] | dict(model_type="qwen2_vl_text"),
        vision_config=dict(
            model_type="qwen2_vl", depth=3, embed_dim=48, hidden_size=32, mlp_ratio=2, num_heads=4, in_channels=3, patch_size=PATCH, spatial_merge_size=MERGE,
            temporal_patch_size=2, hidden_act="quick_gelu"))


class Qwen25VL(Qwen2VL):
    text_of = "qwen2_5_vl"
    eyes = {key: value for key, value in Qwen.eyes.items() if key != "num_position_embeddings"}
    config = Qwen.outer | dict(
        model_type="qwen2_5_vl", tie_word_embeddings=True, text_config=TEXT | families.FAMILIES["qwen2_5_vl"] | dict(model_type="qwen2_5_vl_text", intermediate_size=36),
        vision_config=eyes | dict(model_type="qwen2_5_vl", hidden_act="silu", window_size=2 * SIDE, fullatt_block_indexes=[1]))


class Gemma4:
    """As the small models are: causal, with per-layer embeddings, borrowed keys and bounds of matrices."""
    side = 12
    specials, image = ["<|image|>", "<|image>", "<image|>"], "<|image|>"
    settings = dict(
        max_soft_tokens=70, patch_size=4, pooling_kernel_size=3, resample=3, do_normalize=False, image_mean=[0.0] * 3, image_std=[1.0] * 3)
    processor = Gemma4ImageProcessorPil(**settings)
    text_of = "gemma4_text"
    text = TEXT | families.GEMMA4 | dict(model_type="gemma4_text", sliding_window=48)
    eyes = dict(
        model_type="gemma4_vision", hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, head_dim=16,
        patch_size=4, pooling_kernel_size=3, position_embedding_size=210, rope_parameters=dict(rope_type="axial", rope_theta=100.0))
    outer = COMMON | dict(
        model_type="gemma4", tie_word_embeddings=True, image_token_id=make.BPE_VOCAB, boi_token_id=make.BPE_VOCAB + 1, eoi_token_id=make.BPE_VOCAB + 2)
    config = outer | dict(
        text_config=text | dict(
            num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=12, vocab_size_per_layer_input=make.BPE_VOCAB + 3),
        vision_config=eyes | dict(use_clipped_linears=True))

    def rows(grid):
        return "<|image>" + "<|image|>" * (grid[0] * grid[1]) + "<image|>"

    def grid(inputs):
        columns, rows = (inputs["image_position_ids"][0].max(dim=0).values + 1).tolist()
        return [rows // 3, columns // 3]

    def features(model, inputs):
        return model.model.get_image_features(inputs["pixel_values"], inputs["image_position_ids"]).pooler_output[0]

    def joined(inputs):
        return {key: torch.cat([it[key] for it in inputs]) for key in ("pixel_values", "image_position_ids")}


class Gemma4TwoWay(Gemma4):
    """As the large models are: rows of a picture attend to each other in layers with a window, which is shorter than most pictures."""
    config = Gemma4.outer | dict(
        text_config=Gemma4.text | dict(
            use_bidirectional_attention="vision", num_kv_shared_layers=0, num_global_key_value_heads=1, attention_k_eq_v=True,
            hidden_size_per_layer_input=0),
        vision_config=Gemma4.eyes | dict(num_key_value_heads=2, standardize=True))


class Squares:
    """Gemma 4's processor with the patches of each square side by side: that of the model without a tower resizes with torchvision alone."""
    image_mean, image_std = Gemma4.processor.image_mean, Gemma4.processor.image_std

    def __call__(self, picture, return_tensors):
        patches = Gemma4.processor(picture, return_tensors=return_tensors)
        small, side, most = Gemma4.settings["patch_size"], Gemma4.side, Gemma4.settings["max_soft_tokens"]
        columns, rows = (patches["image_position_ids"][0].max(dim=0).values + 1).tolist()
        pixels = patches["pixel_values"][0, : rows * columns].reshape(rows, columns, small, small, 3).transpose(1, 2).reshape(rows * small, columns * small, 3)
        rows, columns = (count * small // side for count in (rows, columns))
        squares = pixels.reshape(rows, side, columns, side, 3).transpose(1, 2).reshape(rows * columns, -1)
        places = torch.tensor([[column, row] for row in range(rows) for column in range(columns)])
        pad = lambda it, value: torch.nn.functional.pad(it, (0, 0, 0, most - len(it)), value=value)[None]
        return dict(pixel_values=pad(squares, 0.0), image_position_ids=pad(places, -1))


class Gemma4Unified(Gemma4):
    """Without a tower: squares of pixels become rows by one matrix. Its rows attend to each other, too, which config.json need not say."""
    processor = Squares()
    config = Gemma4.outer | dict(
        model_type="gemma4_unified",
        text_config={key: value for key, value in Gemma4.text.items() if not key.endswith("per_layer_input")} | dict(
            model_type="gemma4_unified_text", num_kv_shared_layers=0, num_global_key_value_heads=1, attention_k_eq_v=True),
        vision_config=dict(
            model_type="gemma4_unified_vision", patch_size=4, pooling_kernel_size=3, model_patch_size=12, mm_embed_dim=48, mm_posemb_size=70, output_proj_dims=48))

    def grid(inputs):
        columns, rows = (inputs["image_position_ids"][0].max(dim=0).values + 1).tolist()
        return [rows, columns]

    def masks(model, tokens, kinds):
        """Those that generate() makes for compiled models, which are Gemma 4's: the rows of a picture see each other in layers with a window. Without them forward
        has them see each other in all layers and beyond the window, as it once did for Gemma 4 (transformers#46711)."""
        places = torch.arange(tokens.shape[1])[None]
        return model.create_masks_for_generate(model.config, model.get_input_embeddings()(tokens), torch.ones_like(tokens), None, places, mm_token_type_ids=kinds)

    def published(key):
        """transformers has all in one part."""
        key = key.replace("embed_vision.multimodal_embedder.", "embed_vision.")
        return key if "embedding_projection" in key else key.replace("model.embed_vision.", "model.vision_embedder.")


class Resizes(TorchvisionBackend):
    """Resizes with Pillow, as the processors of the other models do."""
    def resize(self, image, size, resample=None, **kwargs):
        pictures = image if image.ndim == 4 else image[None]
        sized = [Image.fromarray(it.permute(1, 2, 0).numpy()).resize((size.width, size.height), Image.Resampling.BILINEAR) for it in pictures]
        sized = torch.stack([torch.from_numpy(np.array(it)).permute(2, 0, 1) for it in sized])
        return sized if image.ndim == 4 else sized[0]


class Lfm2Pictures(Lfm2VlImageProcessor, Resizes):
    pass


class Lfm2VL:
    """Large pictures become tiles, and the whole picture after them; small ones are only resized."""
    side = SIDE
    specials = ["<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"] + [
        f"<|img_row_{row}_col_{column}|>" for row in range(1, 7) for column in range(1, 7) if row * column <= 6]
    image, text_of = "<image>", "lfm2"
    settings = dict(
        downsample_factor=MERGE, encoder_patch_size=PATCH, min_image_tokens=4, max_image_tokens=36, tile_size=32, min_tiles=4, max_tiles=6,
        max_pixels_tolerance=1.5, use_thumbnail=True, do_image_splitting=True, resample=2)
    processor = Lfm2Pictures(**settings, return_row_col_info=True)
    config = COMMON | dict(
        model_type="lfm2_vl", tie_word_embeddings=True, image_token_id=make.BPE_VOCAB, downsample_factor=MERGE, projector_hidden_act="gelu", projector_hidden_size=44,
        projector_bias=True, projector_use_layernorm=True,
        text_config=TEXT | families.FAMILIES["lfm2"] | dict(model_type="lfm2", vocab_size=make.BPE_VOCAB + len(specials)),
        vision_config=EYES | dict(
            model_type="siglip2_vision_model", num_hidden_layers=3, num_attention_heads=4, num_patches=16, vision_use_head=False,
            hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6))

    def grid(inputs):
        """The rows and columns of tiles, and the rows of features of each part."""
        shapes = (inputs["spatial_shapes"] // MERGE).tolist()
        return inputs["image_rows"][0].item(), inputs["image_cols"][0].item(), shapes

    def sizes(inputs):
        return [side * PATCH for shape in inputs["spatial_shapes"].tolist() for side in reversed(shape)]

    def rows(grid):
        rows, columns, shapes = grid
        names = SimpleNamespace(image_token="<image>", image_start_token="<|image_start|>", image_end_token="<|image_end|>", image_thumbnail_token="<|img_thumbnail|>")
        of_tile, of_whole = (down * across for down, across in (shapes[0], shapes[-1]))
        return Lfm2VlProcessor._build_image_tokens(names, rows, columns, of_tile, of_whole, len(shapes) > rows * columns, True)

    def features(model, inputs):
        return torch.cat(list(model.model.get_image_features(
            inputs["pixel_values"], inputs["spatial_shapes"], inputs["pixel_attention_mask"]).pooler_output))

    def joined(inputs):
        return {key: torch.cat([it[key] for it in inputs]) for key in ("pixel_values", "spatial_shapes", "pixel_attention_mask")}

    def published(key):
        """Published files have the names of older versions."""
        return key.replace("model.vision_tower.", "model.vision_tower.vision_model.")


class Lfm2VLPlain(Lfm2VL):
    """Without the norm of the projector, and with tiles for most pictures, without the whole picture."""
    settings = Lfm2VL.settings | dict(use_thumbnail=False, min_image_tokens=2, max_image_tokens=6, min_tiles=2)
    processor = Lfm2Pictures(**settings, return_row_col_info=True)
    config = Lfm2VL.config | dict(projector_use_layernorm=False, projector_bias=False)
    published = str


# Every width is a multiple of the group.
GROUP, BITS = 32, 4
WIDE = dict(hidden_size=64, intermediate_size=96)


def widened(family, **text):
    """The same model as mlx-vlm writes it with every module quantized, also those of the tower."""
    parts = dict(text_config=family.config["text_config"] | WIDE | text, vision_config=family.config["vision_config"] | WIDE)
    for part, key, width in (("vision_config", "out_hidden_size", 64), ("vision_config", "head_dim", 16)):
        parts[part] |= {key: width} if key in parts[part] else {}
    settings = dict(group_size=GROUP, bits=BITS, mode="affine")
    return type(family.__name__, (family,), dict(config=family.config | parts | dict(quantization=settings, quantization_config=settings)))


MODELS = {
    "mistral3": Mistral3, "qwen2_vl": Qwen2VL, "qwen2_5_vl": Qwen25VL, "qwen3_5": Qwen35, "qwen3_5_moe": Qwen35Moe, "qwen3_vl": Qwen3VL, "qwen3_vl_moe": Qwen3VLMoe, "gemma4": Gemma4,
    "gemma4-two-way": Gemma4TwoWay, "gemma4_unified": Gemma4Unified, "lfm2_vl": Lfm2VL, "lfm2_vl-plain": Lfm2VLPlain, "mistral3-q4": widened(Mistral3), "qwen3_vl-q4": widened(Qwen3VL, intermediate_size=128), "gemma4-q4": widened(Gemma4TwoWay)}
CLASSES = {
    "mistral3": "Mistral3", "qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe", "qwen3_vl": "Qwen3VL", "qwen3_vl_moe": "Qwen3VLMoe", "gemma4": "Gemma4",
    "gemma4_unified": "Gemma4Unified", "lfm2_vl": "Lfm2Vl", "qwen3_asr": "Qwen3ASR"}
# Another seed where two tokens would be nearly level.
SEEDS = {"qwen2_vl": "qwen2_vl-7", "qwen2_5_vl": "qwen2_5_vl-1", "qwen3_5_moe": "qwen3_5_moe-1", "qwen3_vl-q4": "qwen3_vl-q4-1"}
# What modules are called there: a beginning here, a beginning there.
MLX_VLM = [
    ("model.visual.", "vision_tower."), ("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head."),
    ("model.vision_tower.", "vision_tower."), ("model.multi_modal_projector.", "multi_modal_projector."), ("model.embed_vision.", "embed_vision.")]


def template(family):
    return (
        "{%- for message in messages -%}{{ '<|im_start|>' + message.role + '\\n' }}"
        "{%- if message.content is string -%}{{ message.content }}{%- else -%}{%- for part in message.content -%}"
        "{{ '" + family.image + "' if part.type == 'image' else part.text }}{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}")


def pixels(size):
    width, height = size
    return make.generator("pictures", f"{width}x{height}").integers(0, 256, (height, width, 3), dtype=np.uint8)


def tokenizer(family):
    corpus = (make.HERE / "corpus.txt").read_text(encoding="utf-8")
    plain = Tokenizer.from_str(json.dumps(make.byte_level_tokenizer(corpus, False)))
    plain.add_special_tokens(family.specials)
    assert [plain.token_to_id(text) for text in family.specials] == [make.BPE_VOCAB + place for place in range(len(family.specials))]
    return plain


def messages(chat):
    part = lambda part: dict(type="image", picture=part) if isinstance(part, int) else dict(type="text", text=part)
    roles = ("user", "assistant")
    return [dict(role=roles[place % 2], content=said if isinstance(said, str) else [part(it) for it in said]) for place, said in enumerate(chat)]


def tower_tensor(name, key, shape):
    noise = np.asarray(make.generator(f"pictures/{name}", key).standard_normal(shape, dtype=np.float32))
    if "norm" in key and key.endswith("weight") or key.endswith(("ln_pre.weight", "ln_q.weight", "ln1.weight", "ln2.weight", "ln_post.weight", "std_scale")):
        return np.float32(0.2) * noise + np.float32(1)
    if key.endswith(("put_min", "put_max")):  # so narrow that some numbers are beyond
        return np.float32(0.1) * noise + np.float32(1.5 if key.endswith("max") else -1.5)
    if key.endswith("bias"):
        return np.float32(0.3) * noise
    return noise if "pos_embed" in key or "position_embedding" in key else np.float32(1.6 / np.prod(shape[1:]) ** 0.5) * noise


def packed(name, tensors):
    """What mlx-vlm writes for these tensors, and what it means: the tensors again, with what was packed unpacked."""
    written, meant = {}, {}
    for key, value in tensors.items():
        begin, there = next((begin, there) for begin, there in MLX_VLM if key.startswith(begin))
        place = there + key[len(begin):]
        if name.startswith("mistral3") and there == "vision_tower.":
            place = place.replace("vision_tower.", "vision_tower.vision_model.")
        meant[key] = value
        if value.ndim == 2 and key.endswith(".weight") and value.shape[1] % GROUP == 0:  # matrices and tables
            parts = mx.quantize(mx.array(value), group_size=GROUP, bits=BITS)
            meant[key] = np.array(mx.dequantize(*parts, group_size=GROUP, bits=BITS))
            written |= {place.removesuffix("weight") + part: np.array(it) for part, it in zip(("weight", "scales", "biases"), parts)}
        else:
            written[place] = np.ascontiguousarray(np.moveaxis(value, 1, -1)) if value.ndim > 3 else value  # colors last
    return written, meant


def build(name, family, folder):
    config = {key: value for key, value in family.config.items() if key not in ("model_type", "torch_dtype", "quantization", "quantization_config")}
    kind = CLASSES[name.split("-")[0]]
    config = getattr(transformers, kind + "Config")(**json.loads(json.dumps(config)))
    model = getattr(transformers, kind + "ForConditionalGeneration")(config).eval()
    model.set_attn_implementation("eager")
    # transformers has experts the other way round than the published checkpoints have them.
    turned = lambda key, value: value.swapaxes(1, 2) if name == "qwen3_vl_moe" and ".experts." in key else value
    tensors, state = {}, model.state_dict()
    for key, value in sorted(state.items()):
        if key == "lm_head.weight" and family.config["tie_word_embeddings"]:
            continue
        sees = any(part in key for part in ("vision_tower", "projector", "visual", "embed_vision", "audio"))
        shape = turned(key, np.empty(value.shape)).shape
        tensors[key] = tower_tensor(SEEDS.get(name, name), key, shape) if sees else families.random_tensor(family.text_of, key, shape)
    written, meant = packed(name, tensors) if "quantization" in family.config else (tensors, tensors)
    for key, value in meant.items():
        state[key].copy_(torch.from_numpy(np.array(turned(key, value))))
    written = {getattr(family, "published", str)(key): value for key, value in written.items()}
    kinds = {np.dtype(np.uint32): "U32", np.dtype(np.float32): "F32"}
    make.write_safetensors(folder / "model.safetensors", [(key, kinds[np.asarray(value).dtype], np.asarray(value)) for key, value in written.items()])
    make.write_json(folder / "config.json", family.config, 1)
    if hasattr(family, "processor"):
        make.write_json(folder / "preprocessor_config.json", dict(image_mean=family.processor.image_mean, image_std=family.processor.image_std) | family.settings, 1)
    return model


def write(name, root):
    family, folder = MODELS[name], root / "pictures" / f"{name}-f32"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model, text = build(name, family, folder), tokenizer(family)
    make.write_json(folder / "tokenizer.json", json.loads(text.to_str()))
    make.write_json(folder / "tokenizer_config.json", dict(
        tokenizer_class="PreTrainedTokenizerFast", bos_token="<|bos|>", eos_token="<|im_end|>", pad_token="<|pad|>",
        clean_up_tokenization_spaces=False, chat_template=template(family)), 1)
    make.write_json(folder / "generation_config.json", dict(bos_token_id=1, eos_token_id=4), 1)
    expected, seen = [], []
    for size in SIZES:
        if name == "mistral3":  # one set of files is enough
            Image.fromarray(pixels(size)).save(folder / f"{size[0]}x{size[1]}.png")
        inputs = family.processor(Image.fromarray(pixels(size)), return_tensors="pt")
        with torch.no_grad():
            features = family.features(model, inputs)
        seen.append(inputs)
        # Pixels as numbers, so that one type is enough.
        expected += [
            (f"{size[0]}x{size[1]}.pixels", "F32", pixels(size).astype(np.float32)), (f"{size[0]}x{size[1]}.features", "F32", features.numpy()),
            (f"{size[0]}x{size[1]}.size", "I32", np.array(
                family.sizes(inputs) if hasattr(family, "sizes") else [family.side * side for side in reversed(family.grid(inputs))]))]
    make.write_safetensors(folder / "expected.safetensors", expected)
    chat = PreTrainedTokenizerFast(tokenizer_object=text, chat_template=template(family))
    make.write_json(folder / "cases.json", dict(sizes=SIZES, cases=[case(name, model, chat, seen, said) for said in CHATS]))


def case(name, model, chat, seen, said):
    family, said = MODELS[name], messages(said)
    pictures = [part["picture"] for message in said if isinstance(message["content"], list) for part in message["content"] if part["type"] == "image"]
    pictures = [seen[it] for it in pictures]
    token = family.specials[0]
    parts = chat.apply_chat_template(said, tokenize=False, add_generation_prompt=True).split(token)
    assert len(parts) == len(pictures) + 1
    prompt = parts[0] + "".join(family.rows(family.grid(it)) + part for it, part in zip(pictures, parts[1:]))
    ids = chat(prompt, add_special_tokens=False)["input_ids"]
    joined = family.joined(pictures) if pictures else {}

    def logits(tokens):
        # The answer may have the token of pictures, too, which is then a token like others.
        answer = [make.BPE_VOCAB - 1 if it == make.BPE_VOCAB else it for it in tokens[len(ids):]]
        assert answer == tokens[len(ids):], "choose another seed"
        tokens = torch.tensor([tokens])
        kinds = dict(mm_token_type_ids=(tokens == make.BPE_VOCAB).int()) if not name.startswith(("mistral3", "lfm2_vl")) else {}
        if hasattr(family, "masks"):
            kinds["attention_mask"] = family.masks(model, tokens, kinds["mm_token_type_ids"])
        with torch.no_grad():
            return model(input_ids=tokens, use_cache=False, **joined, **kinds).logits[0].numpy()

    greedy, rows = families.greedy_case(logits, ids), logits(ids)
    margin = min(greedy["margins"])
    print(f"{name}: {len(ids):4} tokens, {len(pictures)} pictures, smallest margin {margin:.4f}, deviation {rows.std():.2f}", flush=True)
    assert margin > 4e-4 * rows.std()
    return dict(messages=said, prompt_ids=ids, tokens=greedy["tokens"], logprobs=greedy["logprobs"], margins=greedy["margins"])


def write_all(root, names=()):
    for name in names or MODELS:
        write(name, root)


if __name__ == "__main__":
    given = sys.argv[1:]
    output = Path(given.pop(0)) if given and given[0] not in MODELS else make.HERE
    write_all(output, given)
