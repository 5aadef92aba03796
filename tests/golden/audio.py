#!/usr/bin/env python3
"""Writes `audio/`: a tone in each file format, and the log-mel features of transformers' WhisperFeatureExtractor for a computed signal.

Needs numpy, torch and transformers; for the tones also SoX and FFmpeg with libmp3lame, libvorbis and libopus."""
import json
import os
import subprocess
import sys

import numpy as np

OUT = os.path.join(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)), "audio")
# Format: sample rate, channels and the arguments of FFmpeg.
TONES = {
    "wav": (22050, 1, ["-c:a", "pcm_s16le"]),
    "flac": (48000, 2, ["-c:a", "flac"]),
    "mp3": (44100, 2, ["-c:a", "libmp3lame", "-b:a", "64k"]),
    "m4a": (44100, 1, ["-c:a", "aac", "-b:a", "48k"]),
    "ogg": (48000, 1, ["-c:a", "libvorbis", "-b:a", "64k"]),
    "webm": (48000, 2, ["-c:a", "libopus", "-b:a", "64k"]),
    "opus": (48000, 1, ["-c:a", "libopus", "-b:a", "32k", "-f", "ogg"]),
}


def tones():
    for name, (rate, channels, arguments) in TONES.items():
        source = f"{OUT}/source.wav"
        tone = ["synth", "0.5"] + ["sine", "440"] * channels + ["gain", "-6"]
        subprocess.run(["sox", "-R", "-n", "-r", str(rate), "-c", str(channels), "-b", "16", source, *tone], check=True)
        subprocess.run(["ffmpeg", "-loglevel", "error", "-y", "-i", source, *arguments, "-bitexact", f"{OUT}/tone.{name}"], check=True)
        os.remove(source)


def signal(count=3 * 16000 + 77):
    """A rising tone with noise, and a quarter of a second of silence."""
    t = np.arange(count) / 16000
    noise, state = [], 1
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        noise.append(state / 2**31 - 1)
    samples = (0.3 * np.sin(2 * np.pi * (200 + 700 * t) * t) + 0.05 * np.array(noise)).astype(np.float32)
    samples[16000:20000] = 0
    return samples


def gemma_log_mel():
    """Frames in the middle, where silence begins and ends, and the last whole one."""
    from transformers import Gemma4AudioFeatureExtractor

    computed = Gemma4AudioFeatureExtractor()([signal()], sampling_rate=16000, return_tensors="np")
    frames = computed.input_features[0][computed.input_features_mask[0]]
    numbers = lambda row: [round(float(value), 5) for value in row]
    return {"gemma": {frame: numbers(frames[frame]) for frame in (0, 1, 50, 98, 99, 100, 110, 124, 125, 126, 200, len(frames) - 1)}}


def log_mel():
    from transformers import WhisperFeatureExtractor

    expected, samples = {}, signal()
    for bins in (80, 128):
        extractor = WhisperFeatureExtractor(feature_size=bins)
        short = extractor(samples, sampling_rate=16000, return_tensors="np").input_features[0]
        long = extractor(np.tile(samples, 11), sampling_rate=16000, return_tensors="np", truncation=False, padding="longest").input_features[0]
        numbers = lambda row: [round(float(value), 5) for value in row]
        expected[f"{bins} short"] = {frame: numbers(short[:, frame]) for frame in (0, 1, 2, 50, 100, 101, 126, 200, 299, 300, 301, 302, 2999)}
        expected[f"{bins} long"] = {frame: numbers(long[:, frame]) for frame in (0, 300, 1500, 3200, 3301)}
    json.dump(expected | gemma_log_mel(), open(f"{OUT}/log_mel.json", "w"), separators=(",", ":"))


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    tones()
    log_mel()
