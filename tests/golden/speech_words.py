"""The segments and words of a signal by OpenAI's package, for a model that `speech.py` writes. Needs openai-whisper."""
import json
from unittest.mock import patch

import numpy as np
import tiktoken
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as File
from transformers.convert_slow_tokenizer import bytes_to_unicode
from whisper.model import ModelDimensions, Whisper
from whisper.tokenizer import Tokenizer
from whisper.transcribe import transcribe

# The texts that the random model may write, and the steps of its timestamps.
TEXTS, TIMES = "abcdefgh .,(\"'!-", [0, 20, 40, 75, 110, 150, 200, 260, 400, 650, 900, 1200, 1400]
NAMES = [("model.", ""), (".layers.", ".blocks."), ("encoder_attn_layer_norm", "cross_attn_ln"), ("encoder_attn", "cross_attn"), ("self_attn_layer_norm", "attn_ln"),
         ("self_attn", "attn"), ("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "out"), ("fc1", "mlp.0"), ("fc2", "mlp.2"),
         ("final_layer_norm", "mlp_ln"), ("encoder.layer_norm", "encoder.ln_post"), ("decoder.layer_norm", "decoder.ln"), ("embed_tokens", "token_embedding"),
         ("embed_positions.weight", "positional_embedding")]


def suppressed(ids, vocab):
    """All tokens but those of TEXTS, the end and TIMES."""
    return sorted(set(range(vocab)) - {ids[text] for text in TEXTS} - {ids["endoftext"]} - {ids["notimestamps"] + 1 + time for time in TIMES})


def load(path, alignment_heads):
    config = json.load(open(f"{path}/config.json"))
    hidden = config["d_model"]
    model = Whisper(ModelDimensions(80, 1500, hidden, config["encoder_attention_heads"], config["encoder_layers"], config["vocab_size"],
                                    config["max_target_positions"], hidden, config["decoder_attention_heads"], config["decoder_layers"]))
    if alignment_heads:
        mask = torch.zeros(config["decoder_layers"], config["decoder_attention_heads"], dtype=torch.bool)
        mask[tuple(zip(*alignment_heads))] = True
        model.register_buffer("alignment_heads", mask.to_sparse(), persistent=False)
    weights = {}
    for name, value in load_file(f"{path}/model.safetensors").items():
        for theirs, ours in NAMES:
            name = name.replace(theirs, ours)
        weights[name] = value
    model.load_state_dict(weights)
    return model.eval()


def tokenizer(path, language):
    file = File.from_file(f"{path}/tokenizer.json")
    byte = {letter: number for number, letter in bytes_to_unicode().items()}
    ranks = {bytes([byte[letter]]): file.token_to_id(letter) for letter in byte}
    special = {token.content: number for number, token in file.get_added_tokens_decoder().items()}
    special |= {f"<|{step / 50:.2f}|>": file.get_vocab_size() + step for step in range(1501)}
    made = Tokenizer(tiktoken.Encoding("random", pat_str=".", mergeable_ranks=ranks, special_tokens=special), num_languages=3, language=language, task="transcribe")
    made.sot_sequence = tuple(special[f"<|{name}|>"] for name in ("startoftranscript", language, "transcribe"))
    return made


def words(path, language, suppress, samples, alignment_heads):
    """Returns the start, the end, the tokens and the words of each segment. A word has a text, a start and an end."""
    made = tokenizer(path, language)
    with patch("whisper.transcribe.get_tokenizer", lambda *_, **__: made), patch("whisper.decoding.get_tokenizer", lambda *_, **__: made):
        found = transcribe(load(path, alignment_heads), samples.astype(np.float32), word_timestamps=True, language=language, temperature=0.0, fp16=False,
                           suppress_tokens=suppress, suppress_blank=False, condition_on_previous_text=False, compression_ratio_threshold=None,
                           logprob_threshold=None, no_speech_threshold=None)
    number = lambda seconds: round(float(seconds), 2)
    return [[number(it["start"]), number(it["end"]), it["tokens"], [[word["word"], number(word["start"]), number(word["end"])] for word in it["words"]]]
            for it in found["segments"] if it["tokens"]]
