#!/usr/bin/env python3
"""Fixtures of models that hear: tiny random checkpoints, clips, their features in transformers, and greedy tokens after them.

    input_audio.py [OUTPUT] [NAME...]    all of them without a name; OUTPUT defaults to this script's folder

Gemma sees, too, so that some chats have both pictures and audio.
"""
import json, shutil, sys, wave
from pathlib import Path

import families, make, pictures  # make first sets the environment
import numpy as np
import torch
from PIL import Image
from transformers import Gemma4AudioFeatureExtractor, Gemma4UnifiedAudioFeatureExtractor, PreTrainedTokenizerFast, Qwen3ASRFeatureExtractor

families.STEPS = 32
# Lengths of the clips in samples: less than two rows of Gemma, the bounds of a frame, and more than the window of the attention.
LENGTHS = [1000, 8480, 8481, 16000, 36960]
PICTURE = (41, 30)
# As in pictures.py, where a number is a clip and None is the picture.
CHATS = [
    [["What burns at night?"]],
    [[1, "What is this?"]],
    [["First ", 3, " and then ", 4, "."]],
    [[0, 2, 4, 0, "Compare."]],
    [["Look: ", None, " and hear: ", 2], "A lamp.", [3, "And here? ", None]],
]
SPECIALS = ["<|audio|>", "<|audio>", "<audio|>"]
IMAGE = make.BPE_VOCAB
AUDIO = IMAGE + len(pictures.Gemma4.specials)
TOKENS = dict(audio_token_id=AUDIO, boa_token_id=AUDIO + 1, eoa_token_index=AUDIO + 2)
VOCAB = AUDIO + len(SPECIALS)


INPUTS = ("input_features", "input_features_mask")


class Gemma4(pictures.Gemma4):
    token, pad = AUDIO, "<|audio|>"
    specials = pictures.Gemma4.specials + SPECIALS
    extractor = Gemma4AudioFeatureExtractor(feature_size=32)
    config = pictures.Gemma4.config | TOKENS | dict(
        text_config=pictures.Gemma4.config["text_config"] | dict(vocab_size=VOCAB, vocab_size_per_layer_input=VOCAB),
        audio_config=dict(
            model_type="gemma4_audio", hidden_size=48, num_hidden_layers=2, num_attention_heads=4, subsampling_conv_channels=[32, 8], conv_kernel_size=5,
            output_proj_dims=40, use_clipped_linears=True))

    def hears(model, inputs):
        """The rows of a clip; those of padding are dropped."""
        heard = model.model.get_audio_features(**inputs)
        return heard.pooler_output[heard.attention_mask]

    def frames(inputs):
        return inputs["input_features"][0][inputs["input_features_mask"][0]].numpy()

    def joined_clips(clips):
        inputs = Gemma4.extractor(clips, sampling_rate=16000, return_tensors="pt")
        return {key: inputs[key] for key in INPUTS}

    def tokens_of(rows):
        return "<|audio>" + "<|audio|>" * rows + "<audio|>"

    def kinds(tokens):
        return dict(mm_token_type_ids=(tokens == IMAGE).int() + 3 * (tokens == AUDIO).int())


class Gemma4Unified(pictures.Gemma4Unified):
    specials = pictures.Gemma4.specials + SPECIALS
    extractor = Gemma4UnifiedAudioFeatureExtractor()
    config = pictures.Gemma4Unified.config | TOKENS | dict(
        text_config=pictures.Gemma4Unified.config["text_config"] | dict(vocab_size=VOCAB),
        audio_config=dict(model_type="gemma4_unified_audio", audio_embed_dim=640))
    token, pad = Gemma4.token, Gemma4.pad
    hears, tokens_of, kinds = Gemma4.hears, Gemma4.tokens_of, Gemma4.kinds

    def joined_clips(clips):
        inputs = Gemma4Unified.extractor(clips, sampling_rate=16000, return_tensors="pt")
        return {key: inputs[key] for key in INPUTS}

    def published(key):
        return pictures.Gemma4Unified.published(key.replace("embed_audio.multimodal_embedder.", "embed_audio."))


class Qwen3Asr:
    """Hears only. The template writes the tokens around a clip. Two chunks of a second are a window of the attention."""
    token, pad = make.BPE_VOCAB, "<|audio_pad|>"
    specials, image, text_of = [pad, "<|audio_start|>", "<|audio_end|>"], "<|audio_start|><|audio_pad|><|audio_end|>", "qwen3"
    config = dict(
        model_type="qwen3_asr", bos_token_id=1, eos_token_id=4, pad_token_id=0, torch_dtype="float32", tie_word_embeddings=True, audio_token_id=token,
        text_config=families.TINY | dict(
            model_type="qwen3", head_dim=16, vocab_size=make.BPE_VOCAB + 3, max_position_embeddings=1024, tie_word_embeddings=True),
        audio_config=dict(
            model_type="qwen3_asr_encoder", num_mel_bins=30, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=72, d_model=48, n_window=50,
            n_window_infer=200, downsample_hidden_size=12, output_dim=32))

    def extractor(clips, **options):
        """The processor pads to the longest clip, not to 30 seconds."""
        inputs = EXTRACTOR(clips, padding=True, return_attention_mask=True, **options)
        return dict(input_features=inputs["input_features"], input_features_mask=inputs["attention_mask"])

    def hears(model, inputs):
        return model.model.get_audio_features(**inputs).pooler_output

    def frames(inputs):
        return np.ascontiguousarray(inputs["input_features"][0].numpy().T[: inputs["input_features_mask"].sum()])

    def joined_clips(clips):
        """The last frames of a clip reflect its end. So clips are extracted one by one: in a batch, zeros follow the shorter ones."""
        inputs = [Qwen3Asr.extractor([one], sampling_rate=16000, return_tensors="pt") for one in clips]
        longest = max(it["input_features"].shape[-1] for it in inputs)
        pad = lambda it: torch.nn.functional.pad(it, (0, longest - it.shape[-1]))
        return {key: torch.cat([pad(it[key]) for it in inputs]) for key in INPUTS}

    def tokens_of(rows):
        return "<|audio_pad|>" * rows

    def kinds(tokens):
        return {}


EXTRACTOR = Qwen3ASRFeatureExtractor(feature_size=30)
MODELS = {"gemma4": Gemma4, "gemma4_unified": Gemma4Unified, "qwen3_asr": Qwen3Asr}


def clip(length):
    """A rising tone with noise, in 16 bits."""
    time = np.arange(length) / 16000
    noise = make.generator("input_audio", str(length)).standard_normal(length)
    samples = 0.3 * np.sin(2 * np.pi * (150 + 400 * time) * time) + 0.03 * noise
    return np.clip(samples * 32768, -32768, 32767).astype(np.int16)


def template(family):
    if not sees(family):
        return pictures.template(family).replace("part.type == 'image'", "part.type == 'audio'")
    kinds = "{{ '<|image|>' if part.type == 'image' else '<|audio|>' if part.type == 'audio' else part.text }}"
    return pictures.template(Gemma4).replace("{{ '<|image|>' if part.type == 'image' else part.text }}", kinds)


def sees(family):
    return hasattr(family, "processor")


def messages(family, chat):
    def part(part):
        if isinstance(part, str):
            return dict(type="text", text=part)
        return dict(type="image") if part is None else dict(type="audio", audio=part)

    roles = ("user", "assistant")
    return [dict(role=roles[place % 2], content=said if isinstance(said, str) else [part(it) for it in said if it is not None or sees(family)]) for place, said in enumerate(chat)]


def write(name, root):
    family, folder = MODELS[name], root / "input_audio" / f"{name}-f32"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model, text = pictures.build(name, family, folder), pictures.tokenizer(family)
    if sees(family):
        make.write_json(folder / "processor_config.json", dict(
            audio_ms_per_token=40, audio_seq_length=750, feature_extractor=json.loads(family.extractor.to_json_string()),
            image_processor=json.loads((folder / "preprocessor_config.json").read_text())), 1)
        (folder / "preprocessor_config.json").unlink()
    else:
        make.write_json(folder / "processor_config.json", dict(feature_extractor=json.loads(EXTRACTOR.to_json_string())), 1)
    make.write_json(folder / "tokenizer.json", json.loads(text.to_str()))
    make.write_json(folder / "tokenizer_config.json", dict(
        tokenizer_class="PreTrainedTokenizerFast", bos_token="<|bos|>", eos_token="<|im_end|>", pad_token="<|pad|>",
        clean_up_tokenization_spaces=False, chat_template=template(family)), 1)
    make.write_json(folder / "generation_config.json", dict(bos_token_id=1, eos_token_id=4), 1)
    expected = []
    for length in LENGTHS:
        inputs = family.extractor([samples(length)], sampling_rate=16000, return_tensors="pt")
        with torch.no_grad():
            features = family.hears(model, inputs)
        expected += [(f"{length}.frames", "F32", family.frames(inputs))] if length < 16000 and hasattr(family, "frames") else []
        expected += [(f"{length}.features", "F32", features.numpy())]
    make.write_safetensors(folder / "expected.safetensors", expected)
    chat = PreTrainedTokenizerFast(tokenizer_object=text, chat_template=template(family))
    seen = family.processor(Image.fromarray(pictures.pixels(PICTURE)), return_tensors="pt") if sees(family) else None
    make.write_json(folder / "cases.json", dict(lengths=LENGTHS, picture=PICTURE, cases=[case(name, model, chat, seen, said) for said in CHATS]))


def samples(length):
    return clip(length).astype(np.float32) / np.float32(32768)


def case(name, model, chat, seen, said):
    family = MODELS[name]
    said = messages(family, said)
    parts = [part for message in said if isinstance(message["content"], list) for part in message["content"]]
    clips = [samples(LENGTHS[part["audio"]]) for part in parts if part["type"] == "audio"]
    views = [seen for part in parts if part["type"] == "image"]
    inputs = family.joined(views) if views else {}
    inputs |= family.joined_clips(clips) if clips else {}
    prompt = chat.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    if sees(family):
        prompt = prompt.replace("<|image|>", family.rows(family.grid(seen)))
    texts = prompt.split(family.pad)
    assert len(texts) == len(clips) + 1
    for place, one in enumerate(clips):
        with torch.no_grad():
            rows = len(family.hears(model, family.extractor([one], sampling_rate=16000, return_tensors="pt")))
        texts[place] += family.tokens_of(rows)
    ids = chat("".join(texts), add_special_tokens=False)["input_ids"]

    def logits(tokens):
        assert not {IMAGE, family.token} & set(tokens[len(ids):]), "choose another seed"
        tokens = torch.tensor([tokens])
        kinds = family.kinds(tokens)
        if hasattr(family, "masks"):
            kinds["attention_mask"] = family.masks(model, tokens, kinds["mm_token_type_ids"])
        with torch.no_grad():
            return model(input_ids=tokens, use_cache=False, **inputs, **kinds).logits[0].numpy()

    greedy, rows = families.greedy_case(logits, ids), logits(ids)
    margin = min(greedy["margins"])
    print(f"{name}: {len(ids):4} tokens, {len(clips)} clips, {len(views)} pictures, smallest margin {margin:.4f}, deviation {rows.std():.2f}", flush=True)
    assert margin > 4e-4 * rows.std()
    return dict(messages=said, prompt_ids=ids, tokens=greedy["tokens"], logprobs=greedy["logprobs"], margins=greedy["margins"])


def write_all(root, names=()):
    (root / "input_audio").mkdir(exist_ok=True)
    for length in LENGTHS:
        with wave.open(str(root / "input_audio" / f"{length}.wav"), "wb") as file:
            file.setnchannels(1), file.setsampwidth(2), file.setframerate(16000)
            file.writeframes(clip(length).astype("<i2").tobytes())
    Image.fromarray(pictures.pixels(PICTURE)).save(root / "input_audio" / "picture.png")
    for name in names or MODELS:
        write(name, root)


if __name__ == "__main__":
    given = sys.argv[1:]
    output = Path(given.pop(0)) if given and given[0] not in MODELS else make.HERE
    write_all(output, given)
