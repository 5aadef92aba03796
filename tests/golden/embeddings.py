"""Writes expected/embeddings.json: vectors of texts as sentence-transformers computes them, from models/llama-f32 and files of its modules.

    pip install -r requirements.txt sentence-transformers==6.2.0 && python embeddings.py
"""

import json
import shutil
import tempfile
from pathlib import Path

import numpy
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer

HERE = Path(__file__).parent
MODEL = HERE / "models" / "llama-f32"
TEXTS = ["The keeper counts the waves", "Bread", "On Tuesdays the baker rows over from the harbour with two loaves"]

OLD = "sentence_transformers.models."
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}


def modules(*kinds, new=False):
    paths = ["" if kind == "Transformer" else f"{index}_{kind}" for index, kind in enumerate(kinds)]
    return [
        {"idx": index, "name": str(index), "path": path, "type": NEW[kind] if new else OLD + kind}
        for index, (kind, path) in enumerate(zip(kinds, paths))
    ]


def dense(inputs, outputs, bias, activation):
    return {
        "in_features": inputs,
        "out_features": outputs,
        "bias": bias,
        "activation_function": f"torch.nn.modules.{activation}",
    }


PROMPTS = {"prompts": {"query": "Find: ", "document": ""}, "default_prompt_name": None}

# Files of a folder beside the model's, and the prompt that is asked for.
CASES = [
    {
        "files": {
            "modules.json": modules("Transformer", "Pooling", "Normalize"),
            "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_lasttoken": True},
            "config_sentence_transformers.json": PROMPTS,
        },
        "prompts": [None, "query", "document"],
    },
    {
        "files": {
            "modules.json": modules("Transformer", "Pooling", "Dense", "Dense", "Normalize"),
            "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "include_prompt": False},
            "2_Dense/config.json": dense(32, 48, True, "activation.Tanh"),
            "3_Dense/config.json": dense(48, 16, False, "activation.GELU"),
            "config_sentence_transformers.json": {**PROMPTS, "default_prompt_name": "query"},
        },
        "prompts": [None, "query", "document"],
    },
    {
        "files": {
            "modules.json": modules("Transformer", "Pooling", "Dense", new=True),
            "1_Pooling/config.json": {"embedding_dimension": 32, "pooling_mode": "lasttoken", "include_prompt": True},
            "2_Dense/config.json": dense(32, 8, True, "linear.Identity"),
            "sentence_bert_config.json": {"max_seq_length": 6, "do_lower_case": True},
        },
        "prompts": [None],
    },
] + [
    {
        "files": {
            "modules.json": modules("Transformer", "Pooling"),
            "1_Pooling/config.json": {"embedding_dimension": 32, "pooling_mode": mode, "include_prompt": False},
            "config_sentence_transformers.json": PROMPTS,
        },
        "prompts": [None, "query"],
    }
    for mode in ["cls", "max", "mean_sqrt_len_tokens", "weightedmean"]
]


def tensor(shape, seed):
    """Numbers that the tests make in the same way."""
    count = int(numpy.prod(shape))
    return ((numpy.arange(count) * 37 + seed * 11) % 29 - 14).astype(numpy.float32).reshape(shape) / 32


def main():
    recorded = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file in ["config.json", "tokenizer.json", "tokenizer_config.json"]:
                shutil.copy(MODEL / file, folder / file)
            # As transformers saves a model without its head.
            base = {key.removeprefix("model."): value for key, value in load_file(MODEL / "model.safetensors").items() if key != "lm_head.weight"}
            save_file(base, folder / "model.safetensors", {"format": "pt"})
            for path, content in case["files"].items():
                (folder / path).parent.mkdir(exist_ok=True)
                (folder / path).write_text(json.dumps(content))
                if "Dense" in path:
                    inputs, outputs = content["in_features"], content["out_features"]
                    weights = {"linear.weight": tensor((outputs, inputs), inputs)}
                    if content["bias"]:
                        weights["linear.bias"] = tensor((outputs,), outputs)
                    save_file(weights, (folder / path).parent / "model.safetensors", {"format": "pt"})
            model = SentenceTransformer(name, device="cpu")
            # A batch pads short texts, which has no part in the promise.
            vectors = [
                [model.encode([text], prompt_name=prompt)[0].tolist() for text in TEXTS] for prompt in case["prompts"]
            ]
        recorded.append({**case, "vectors": vectors})
    (HERE / "expected" / "embeddings.json").write_text(json.dumps({"texts": TEXTS, "cases": recorded}, indent=1) + "\n")


if __name__ == "__main__":
    main()
