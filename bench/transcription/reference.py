"""Transcribes the clips with transformers' Whisper: greedily, without the previous text as prompt and without fallback.

    python bench/transcription/reference.py MODEL FOLDER

MODEL is a Whisper model in the layout of transformers, FOLDER that of clips.py. Writes reference.json, clip by clip; an interrupted run continues.
Needs torch and transformers.
"""

import json
import pathlib
import sys
import wave

import numpy as np
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizerFast

# The tokens that OpenAI's package suppresses in multilingual models. Folders without generation_config.json lack them.
NON_SPEECH = [1, 2, 7, 8, 9, 10, 14, 25, 26, 27, 28, 29, 31, 58, 59, 60, 61, 62, 63, 90, 91, 92, 93, 359, 503, 522, 542, 873, 893, 902, 918, 922,
              931, 1350, 1853, 1982, 2460, 2627, 3246, 3253, 3268, 3536, 3846, 3961, 4183, 4667, 6585, 6647, 7273, 9061, 9383, 10428, 10929,
              11938, 12033, 12331, 12562, 13793, 14157, 14635, 15265, 15618, 16553, 16604, 18362, 18956, 20075, 21675, 22520, 26130, 26161, 26435,
              28279, 29464, 31650, 32302, 32470, 36865, 42863, 47425, 49870, 50254, 50258, 50358, 50359, 50360, 50361, 50362]
RULES = dict(temperature=(0.0,), logprob_threshold=-1.0, no_speech_threshold=0.6, compression_ratio_threshold=2.4, condition_on_prev_tokens=False, num_beams=1,
             do_sample=False)


def configure(config, folder):
    added = {it["content"]: it["id"] for it in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]}
    end = added["<|endoftext|>"]
    config.lang_to_id = {name: token for name, token in added.items() if 50258 < token < 50358}
    config.task_to_id = {task: added[f"<|{task}|>"] for task in ("transcribe", "translate")}
    config.no_timestamps_token_id, config.prev_sot_token_id = added["<|notimestamps|>"], added["<|startofprev|>"]
    config.decoder_start_token_id = added["<|startoftranscript|>"]
    config.eos_token_id = config.pad_token_id = config.bos_token_id = end
    config.is_multilingual, config.max_initial_timestamp_index, config.max_length = True, 50, 448
    config.suppress_tokens, config.begin_suppress_tokens = NON_SPEECH, [220, end]


def main():
    torch.set_num_threads(1)
    folder, clips = map(pathlib.Path, sys.argv[1:3])
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    tokenizer = WhisperTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    config = model.generation_config
    configure(config, folder)
    codes = {token: name[2:-2] for name, token in config.lang_to_id.items()}
    path = clips / "reference.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for clip in sorted(clips.glob("*.wav"), key=lambda clip: clip.stat().st_size):
        if clip.stem in found:
            continue
        with wave.open(str(clip)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
        padding = "longest" if len(samples) > 480000 else "max_length"
        inputs = extractor(samples, sampling_rate=16000, return_tensors="pt", truncation=False, padding=padding, return_attention_mask=True)
        with torch.no_grad():
            language = codes[int(model.detect_language(input_features=inputs.input_features[:, :, :3000], generation_config=config)[0])]
            answer = model.generate(inputs.input_features, attention_mask=inputs.attention_mask, language=language, task="transcribe",
                                    return_timestamps=True, return_segments=True, **RULES)
        text = lambda segment: tokenizer.decode([token for token in segment["tokens"].tolist() if token < config.eos_token_id])
        segments = [(round(float(it["start"]), 2), round(float(it["end"]), 2), text(it)) for it in answer["segments"][0]]
        found[clip.stem] = dict(language=language, segments=segments)
        path.write_text(json.dumps(found, ensure_ascii=False))
        print(clip.stem, language, len(segments), flush=True)


main()
