"""The measured requests for mlx-lm: the prompts of bench/src/load.rs, and figures in its format."""

import json


def prompt(sequence, length, vocabulary):
    return [(place * 7919 + sequence * 104729 + 11) % (vocabulary - 10) + 5 for place in range(length)]


def file(stream, length=2000, chain=2048, first=5):
    """Returns tokens along a chain of bench/models.py, and a last token that leads back to the first."""

    def link(place):
        return first + (place + 97 * stream) % chain

    return [link(place) for place in range(length)] + [link(chain - 1) + chain]


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


def report(figures):
    print(json.dumps(figures), flush=True)
