#!/usr/bin/env python3
"""Writes `speech/`: random Whisper models with what transformers makes of a computed signal.

`python speech.py [OUTPUT]`. Needs torch and transformers. The greedy tokens of a window, its language and its log-probabilities are those of
transformers in f32; tokens that are nearly level stop the script. The times of words are those of OpenAI's package, openai-whisper."""
import json
import os
import shutil
import sys

import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from audio import signal
from encoders import quantized
from speech_words import suppressed, words

OUT = os.path.join(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)), "speech")
LANGUAGES = ["en", "de", "es"]
# Half of the positions, as many as a window gets.
STEPS = 32


def tokenizer(path):
    """256 bytes, then the special tokens in Whisper's order, then 1501 timestamps, which have no names."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = Tokenizer(models.BPE({letter: place for place, letter in enumerate(alphabet)}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    special = ["endoftext", "startoftranscript", *LANGUAGES, "translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
    built.add_special_tokens([f"<|{name}|>" for name in special])
    built.save(f"{path}/tokenizer.json")
    json.dump({"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>"}, open(f"{path}/tokenizer_config.json", "w"))
    ids = {name: built.token_to_id(f"<|{name}|>") for name in special}
    return ids | {chr(code): built.encode(chr(code)).ids[0] for code in range(32, 127)}, built.get_vocab_size() + 1501


def build(name, seed, positions=0.3, **sizes):
    path = f"{OUT}/{name}"
    os.makedirs(path, exist_ok=True)
    ids, vocab = tokenizer(path)
    torch.manual_seed(seed)
    config = WhisperConfig(vocab_size=vocab, max_target_positions=64, pad_token_id=ids["endoftext"], bos_token_id=ids["endoftext"], eos_token_id=ids["endoftext"],
                           decoder_start_token_id=ids["startoftranscript"], suppress_tokens=None, begin_suppress_tokens=None, **sizes)
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if value.ndim > 1 and "embed_positions" not in key:
                value.normal_(0, 0.35 if "conv" in key else 0.25)
            elif "bias" in key:
                value.normal_(0, 0.1)
        model.model.decoder.embed_positions.weight.normal_(0, positions)
    model.save_pretrained(path)
    generation = {"begin_suppress_tokens": [ids["endoftext"]], "suppress_tokens": [3, 5, ids["startoflm"]], "is_multilingual": True,
                  "lang_to_id": {f"<|{code}|>": ids[code] for code in LANGUAGES}, "max_initial_timestamp_index": 50, "no_timestamps_token_id": ids["notimestamps"],
                  "task_to_id": {"transcribe": ids["transcribe"], "translate": ids["translate"]}}
    json.dump(generation, open(f"{path}/generation_config.json", "w"), indent=1)
    for extra in ("preprocessor_config.json",):
        if os.path.exists(f"{path}/{extra}"):
            os.remove(f"{path}/{extra}")
    return model, ids


def reference(model, ids, features):
    """Detects the language and draws greedy tokens without rules, so that the numbers depend on the model alone."""
    with torch.no_grad():
        encoded = model.model.encoder(features).last_hidden_state
        run = lambda tokens: model(encoder_outputs=BaseModelOutput(encoded), decoder_input_ids=torch.tensor([tokens])).logits[0].double()
        languages = run([ids["startoftranscript"]])[-1][[ids[code] for code in LANGUAGES]]
        code = LANGUAGES[int(languages.argmax())]
        prompt = [ids["startoftranscript"], ids[code], ids["transcribe"], ids["notimestamps"]]
        first = run(prompt)
        no_speech = torch.softmax(first[0], -1)[ids["nospeech"]].item()
        tokens, logprobs, margins = [], [], []
        for step in range(STEPS):
            row = run(prompt + tokens)[-1].clone()
            row[[3, 5, ids["startoflm"]]] = -torch.inf
            if step == 0:
                row[ids["endoftext"]] = -torch.inf
            best = torch.topk(row, 2)
            token = int(best.indices[0])
            margins.append((best.values[0] - best.values[1]).item())
            logprobs.append(torch.log_softmax(row, -1)[token].item())
            if token == ids["endoftext"]:
                break
            tokens.append(token)
    assert min(margins) > 1e-3, margins
    return {"language": code, "language_probability": torch.softmax(languages, -1).max().item(), "tokens": tokens, "logprobs": logprobs,
            "no_speech": no_speech, "ended": len(logprobs) > len(tokens), "encoded": [round(v, 5) for v in encoded[0, ::300, :3].flatten().tolist()]}


def long_form(model, ids, bins):
    """The segments of a file of 33 seconds, by transformers' long-form algorithm without fallback and previous text."""
    extractor = WhisperFeatureExtractor(feature_size=bins)
    features = extractor(np.tile(signal(), 11), sampling_rate=16000, return_tensors="pt", truncation=False, padding="longest").input_features
    with torch.no_grad():
        out = model.generate(features, return_timestamps=True, return_segments=True, language="de", task="transcribe", temperature=0.0, do_sample=False, num_beams=1,
                             max_new_tokens=STEPS, condition_on_prev_tokens=False)
    end = ids["endoftext"]
    return [[round(float(it["start"]), 2), round(float(it["end"]), 2), [token for token in it["tokens"].tolist() if token != end]] for it in out["segments"][0]]


def pack(model, bits):
    """Quantizes all matrices as MLX does. Returns the tensors of each, by the name of its weight; the model gets the floats that they stand for."""
    packed = {}
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim == 2 and "embed_positions" not in name:
                packed[name], floats = quantized(value, bits, torch.float16, group=32)
                value.copy_(floats)
    return packed


def original_names(source, target, packed=None, bits=None, file="model.safetensors"):
    """The layout of mlx-community's conversions of the original."""
    from safetensors.numpy import load_file
    os.makedirs(target, exist_ok=True)
    pairs = [("model.encoder.layers.", "encoder.blocks."), ("model.decoder.layers.", "decoder.blocks."), ("encoder_attn.q_proj", "cross_attn.query"),
             ("encoder_attn.k_proj", "cross_attn.key"), ("encoder_attn.v_proj", "cross_attn.value"), ("encoder_attn.out_proj", "cross_attn.out"),
             ("encoder_attn_layer_norm", "cross_attn_ln"), ("self_attn.q_proj", "attn.query"), ("self_attn.k_proj", "attn.key"), ("self_attn.v_proj", "attn.value"),
             ("self_attn.out_proj", "attn.out"), ("self_attn_layer_norm", "attn_ln"), ("fc1", "mlp1"), ("fc2", "mlp2"), ("final_layer_norm", "mlp_ln"),
             ("model.encoder.layer_norm", "encoder.ln_post"), ("model.decoder.layer_norm", "decoder.ln"), ("model.decoder.embed_tokens", "decoder.token_embedding"),
             ("model.decoder.embed_positions.weight", "decoder.positional_embedding"), ("model.encoder.conv", "encoder.conv")]
    weights = {}
    for source_name, value in load_file(f"{source}/model.safetensors").items():
        name = source_name
        if name == "model.encoder.embed_positions.weight":
            continue                                        # mlx-community's files have no table, since it is computed
        for ours, theirs in pairs:
            name = name.replace(ours, theirs)
        if parts := (packed or {}).get(source_name):
            weights |= {name.removesuffix("weight") + part: tensor.numpy() for part, tensor in parts.items()}
            continue
        weights[name] = np.ascontiguousarray(value.swapaxes(1, 2)) if ".conv" in name and value.ndim == 3 else value
    if file.endswith("npz"):
        np.savez(f"{target}/{file}", **weights)
    else:
        save_file(weights, f"{target}/{file}")
    config = json.load(open(f"{source}/config.json"))
    original = {"n_mels": "num_mel_bins", "n_audio_state": "d_model", "n_audio_head": "encoder_attention_heads", "n_audio_layer": "encoder_layers", "n_vocab": "vocab_size",
                "n_text_ctx": "max_target_positions", "n_text_state": "d_model", "n_text_head": "decoder_attention_heads", "n_text_layer": "decoder_layers"}
    quantization = dict(quantization=dict(group_size=32, bits=bits)) if packed else {}
    json.dump({"n_audio_ctx": 1500, **{key: config[theirs] for key, theirs in original.items()}, **quantization}, open(f"{target}/config.json", "w"))
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(f"{source}/{file}", target)


def with_words(sizes):
    """The words of a model with a list of alignment heads, and without one."""
    name, heads = "whisper-words-f32", [[0, 1], [1, 0]]
    model, ids = build(name, 32, positions=1.0, **sizes)
    path = f"{OUT}/{name}/generation_config.json"
    generation = json.load(open(path))
    suppress = suppressed(ids, model.config.vocab_size)
    generation |= dict(suppress_tokens=suppress, begin_suppress_tokens=[], alignment_heads=heads)
    json.dump(generation, open(path, "w"))
    samples = np.tile(signal(), 11)
    return {name: {kind: words(f"{OUT}/{name}", "de", suppress, samples, listed) for kind, listed in (("listed", heads), ("default", None))}}


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    expected = {}
    sizes = dict(encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64)
    for name, seed, extra in (("whisper-f32", 5, {}), ("whisper-128-f32", 9, dict(num_mel_bins=128, encoder_layers=3, decoder_layers=1, decoder_attention_heads=4, encoder_ffn_dim=96))):
        model, ids = build(name, seed, **{**sizes, **extra})
        extractor = WhisperFeatureExtractor(feature_size=extra.get("num_mel_bins", 80))
        features = extractor(signal(), sampling_rate=16000, return_tensors="pt").input_features
        generation = type(model.generation_config).from_pretrained(f"{OUT}/{name}")
        generation.eos_token_id = generation.pad_token_id = generation.bos_token_id = ids["endoftext"]
        generation.decoder_start_token_id = ids["startoftranscript"]
        model.generation_config = generation
        expected[name] = reference(model, ids, features)
        expected[name]["segments"] = long_form(model, ids, features.shape[1])
        print(name, expected[name])
    # Its feed-forward blocks must be four times as wide.
    features = WhisperFeatureExtractor()(signal(), sampling_rate=16000, return_tensors="pt").input_features
    for name, seed, bits, file in (("whisper-original-f32", 11, None, "model.safetensors"), ("whisper-q4-npz", 13, 4, "weights.npz"), ("whisper-q8", 14, 8, "weights.safetensors")):
        model, ids = build("wide", seed, **{**sizes, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128})
        original_names(f"{OUT}/wide", f"{OUT}/{name}", pack(model, bits) if bits else None, bits, file)
        shutil.rmtree(f"{OUT}/wide")
        expected[name] = reference(model, ids, features)
        print(name, expected[name])
    expected |= with_words({**sizes, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128})
    json.dump(expected, open(f"{OUT}/expected.json", "w"), indent=1)


main()
