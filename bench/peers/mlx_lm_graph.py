"""Counts the operations of a step of mlx-lm per layer, including embedding and head: `mlx_lm_graph.py FOLDER...`."""

import pathlib
import sys
import tempfile

import mlx.core as mx
from load import report
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

PROMPT = 40


def operations(array):
    with tempfile.NamedTemporaryFile("r", suffix=".dot") as file:
        mx.export_to_dot(file.name, array)
        return file.read().count("shape=rectangle")


def a_layer(folder):
    model, config = load_model(pathlib.Path(folder))
    cache = make_prompt_cache(model)
    model(mx.array([list(range(5, 5 + PROMPT))]), cache=cache)
    mx.eval([part.state for part in cache])
    step = model(mx.array([[7]]), cache=cache)
    return config["model_type"], round(operations(step) / config["num_hidden_layers"])


def main():
    figures = {}
    for folder in sys.argv[1:]:
        try:
            family, count = a_layer(folder)
        except Exception as error:  # mlx-lm cannot load every checkpoint and fails with various exceptions.
            print(f"{folder}: {error}", file=sys.stderr)
            continue
        figures[f"{family}, a layer of a step"] = count
    report(figures)


main()
