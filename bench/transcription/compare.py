"""Compares the transcripts of `mlx transcribe` with the reference and with the spoken text.

    mlx transcribe -m MODEL --temperature 0 --no-previous-text --format verbose_json --output-dir OUT FOLDER
    python bench/transcription/compare.py FOLDER OUT

FOLDER is that of clips.py and reference.py. Prints the clips that differ and the word errors by group. Needs only Python.
"""

import json
import pathlib
import re
import sys

NO_SPEECH = {"silence", "whitenoise", "music", "sweep", "plucks"}
NOISE = {"noisy1", "noisy2", "midnoise", "white1", "white2", "white3", "pink1", "pink2", "brown1", "under1", "under2", "echo", "phone", "phonede", "quiet",
         "clipped", "fast", "slow"}


def group(name):
    if name in NO_SPEECH:
        return "no speech"
    return "noise" if name in NOISE else "German" if name.startswith("de") or name in ("german", "germanlong", "midde") else "English"


def words(text):
    return re.sub(r"[^\w ]", "", text.lower().replace("-", " ")).split()


def errors(expected, found):
    row = list(range(len(found) + 1))
    for place, word in enumerate(expected):
        last, row[0] = row[0], place + 1
        for other, candidate in enumerate(found):
            last, row[other + 1] = row[other + 1], min(last + (word != candidate), row[other] + 1, row[other + 1] + 1)
    return row[-1]


def main():
    clips, out = map(pathlib.Path, sys.argv[1:3])
    reference, spoken = (json.loads((clips / name).read_text()) for name in ("reference.json", "spoken.json"))
    groups, equal = {}, 0
    for name, expected in reference.items():
        transcript = json.loads((out / f"{name}.wav.json").read_text())
        theirs = [tuple(it) for it in expected["segments"]]
        ours = [(round(it["start"], 2), round(it["end"], 2), it["text"]) for it in transcript["segments"]]
        equal += ours == theirs
        if ours != theirs:
            print(f"{name} differs: {[it for it in theirs if it not in ours]} became {[it for it in ours if it not in theirs]}")
        if name not in spoken:
            continue
        text = words(spoken[name])
        row = groups.setdefault(group(name), dict(clips=0, words=0, theirs=0, ours=0))
        row["clips"] += 1
        row["words"] += len(text)
        for side, segments in (("theirs", theirs), ("ours", ours)):
            row[side] += errors(text, words("".join(it[2] for it in segments)))
    print(f"{equal} of {len(reference)} clips have equal texts and times")
    for name, row in groups.items():
        print(name, row)


main()
