#!/usr/bin/env python3
"""Fixtures of models that see: tiny random checkpoints, pictures, their features in transformers, and greedy tokens behind them.

    pictures.py [FOLDER]    default: beside this file

Pictures are prepared by the processors that use Pillow. Some are resized, some have the size that the model wants.
"""
import json, shutil, sys
from pathlib import Path

import families, make  # make first sets the environment
import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import Mistral3Config, Mistral3ForConditionalGeneration, PreTrainedTokenizerFast
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

STEPS = 48
PATCH, MERGE, LONGEST = 8, 2, 96
# Width and height in pixels; transformers fails where there is one row.
SIZES = [(32, 16), (48, 32), (32, 80), (41, 30), (200, 90), (60, 131)]
SPECIALS = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]
VISION = dict(
    model_type="pixtral", hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, head_dim=12,
    patch_size=PATCH, image_size=LONGEST, hidden_act="silu", rope_theta=10000.0,
)
TEXT = dict(
    model_type="mistral", hidden_size=40, intermediate_size=52, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, vocab_size=make.BPE_VOCAB + len(SPECIALS), rms_norm_eps=1e-5, max_position_embeddings=1024, rope_theta=10000.0,
    sliding_window=None, tie_word_embeddings=False,
)
CONFIG = dict(
    model_type="mistral3", text_config=TEXT, vision_config=VISION, image_token_index=make.BPE_VOCAB, spatial_merge_size=MERGE,
    projector_hidden_act="gelu", multimodal_projector_bias=False, vision_feature_layer=-1, tie_word_embeddings=False,
    bos_token_id=1, eos_token_id=4, pad_token_id=0, torch_dtype="float32",
)
TEMPLATE = (
    "{%- for message in messages -%}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string -%}{{ message.content }}{%- else -%}{%- for part in message.content -%}"
    "{{ '[IMG]' if part.type == 'image' else part.text }}{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
# Messages of the user, answers of the assistant; a number is a picture.
CHATS = [
    [["What burns at night?"]],
    [[1, "What is this?"]],
    [["First ", 3, " and then ", 4, "."]],
    [[0, 2, 5, 0, "Compare."]],
    [["Look: ", 4], "A lamp.", ["And here? ", 1, "Or here?", 3]],
]


def pixels(size):
    width, height = size
    return make.generator("pictures", f"{width}x{height}").integers(0, 256, (height, width, 3), dtype=np.uint8)


def tokenizer():
    corpus = (make.HERE / "corpus.txt").read_text(encoding="utf-8")
    plain = Tokenizer.from_str(json.dumps(make.byte_level_tokenizer(corpus, False)))
    plain.add_special_tokens(SPECIALS)
    assert [plain.token_to_id(text) for text in SPECIALS] == [make.BPE_VOCAB + place for place in range(len(SPECIALS))]
    return plain


def messages(chat):
    part = lambda part: dict(type="image", picture=part) if isinstance(part, int) else dict(type="text", text=part)
    roles = ("user", "assistant")
    return [dict(role=roles[place % 2], content=said if isinstance(said, str) else [part(it) for it in said]) for place, said in enumerate(chat)]


def placed(text, sizes):
    """The prompt with what PixtralProcessor.replace_image_token puts for each picture of these heights and widths."""
    parts, side = text.split("[IMG]"), PATCH * MERGE
    assert len(parts) == len(sizes) + 1
    rows = lambda height, width: "[IMG_BREAK]".join(["[IMG]" * (width // side)] * (height // side)) + "[IMG_END]"
    return parts[0] + "".join(rows(*size) + part for size, part in zip(sizes, parts[1:]))


def main(root):
    folder = root / "pictures" / "mistral3-f32"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = {key: value for key, value in CONFIG.items() if key not in ("model_type", "torch_dtype")}
    model = Mistral3ForConditionalGeneration(Mistral3Config(**json.loads(json.dumps(config)))).eval()
    model.set_attn_implementation("eager")
    tensors = {}
    for key, value in sorted(model.state_dict().items()):
        sees = "vision_tower" in key or "projector" in key
        name, own = ("mistral3", key.removeprefix("model.")) if sees else ("mistral", key)
        tensors[key] = families.random_tensor(name, own, tuple(value.shape))
        value.copy_(torch.from_numpy(tensors[key]))
    make.write_safetensors(folder / "model.safetensors", [(key, "F32", value) for key, value in tensors.items()])
    make.write_json(folder / "config.json", CONFIG, 1)
    text = tokenizer()
    make.write_json(folder / "tokenizer.json", json.loads(text.to_str()))
    make.write_json(folder / "tokenizer_config.json", dict(
        tokenizer_class="PreTrainedTokenizerFast", bos_token="<|bos|>", eos_token="<|im_end|>", pad_token="<|pad|>",
        clean_up_tokenization_spaces=False, chat_template=TEMPLATE), 1)
    make.write_json(folder / "generation_config.json", dict(bos_token_id=1, eos_token_id=4), 1)
    processor = PixtralImageProcessorPil(patch_size=PATCH * MERGE, size=dict(longest_edge=LONGEST))
    settings = dict(image_mean=processor.image_mean, image_std=processor.image_std, size=dict(longest_edge=LONGEST), resample=3)
    make.write_json(folder / "preprocessor_config.json", settings, 1)
    template = PreTrainedTokenizerFast(tokenizer_object=text, chat_template=TEMPLATE)
    expected, seen = [], []
    for size in SIZES:
        Image.fromarray(pixels(size)).save(folder / f"{size[0]}x{size[1]}.png")
        inputs = processor(Image.fromarray(pixels(size)), return_tensors="pt")
        with torch.no_grad():
            features = model.model.get_image_features(**inputs, vision_feature_layer=-1).pooler_output[0]
        seen.append(inputs)
        height, width = inputs["pixel_values"].shape[-2:]
        # Pixels as numbers, so that one type is enough.
        expected += [
            (f"{size[0]}x{size[1]}.pixels", "F32", pixels(size).astype(np.float32)), (f"{size[0]}x{size[1]}.features", "F32", features.numpy()),
            (f"{size[0]}x{size[1]}.size", "I32", np.array([width, height]))]
    make.write_safetensors(folder / "expected.safetensors", expected)
    cases = [case(model, template, seen, chat) for chat in CHATS]
    make.write_json(folder / "cases.json", dict(sizes=SIZES, cases=cases))


def case(model, template, seen, chat):
    said = messages(chat)
    pictures = [part["picture"] for message in said if isinstance(message["content"], list) for part in message["content"] if part["type"] == "image"]
    grids = [tuple(seen[it]["pixel_values"].shape[-2:]) for it in pictures]
    prompt = placed(template.apply_chat_template(said, tokenize=False, add_generation_prompt=True), grids)
    ids = template(prompt, add_special_tokens=False)["input_ids"]
    # One picture after the other, each in its own size, as the tower sees them here.
    with torch.no_grad():
        features = [model.model.get_image_features(**seen[it], vision_feature_layer=-1).pooler_output[0] for it in pictures]

    length = len(ids)

    def logits(ids):
        tokens = torch.tensor([ids])
        with torch.no_grad():
            rows = model.get_input_embeddings()(tokens)
            if features:
                # The answer may have the token of pictures, too.
                places = (tokens == CONFIG["image_token_index"]) & (torch.arange(tokens.shape[1]) < length)
                rows = rows.masked_scatter(places.unsqueeze(-1), torch.cat(features))
            return model(inputs_embeds=rows, use_cache=False).logits[0].numpy()

    families.STEPS = STEPS
    greedy = families.greedy_case(logits, ids)
    rows = logits(ids)
    print(f"{len(ids):4} tokens, {len(pictures)} pictures, smallest margin {min(greedy['margins']):.4f}, deviation {rows.std():.2f}", flush=True)
    if pictures:
        whole = model(
            input_ids=torch.tensor([ids]), pixel_values=padded([seen[it] for it in pictures]),
            image_sizes=torch.tensor(grids), use_cache=False).logits[0].detach().numpy()
        assert np.abs(whole - rows).max() < 2e-4 * rows.std(), np.abs(whole - rows).max()
    return dict(messages=said, prompt_ids=ids, tokens=greedy["tokens"], logprobs=greedy["logprobs"], margins=greedy["margins"])


def padded(inputs):
    """Pictures of several sizes as the processor pads them."""
    height, width = (max(it["pixel_values"].shape[axis] for it in inputs) for axis in (-2, -1))
    pad = lambda it: torch.nn.functional.pad(it, (0, width - it.shape[-1], 0, height - it.shape[-2]))
    return torch.cat([pad(it["pixel_values"]) for it in inputs])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
