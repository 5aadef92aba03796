"""Compares greedy texts and log-probabilities with those of transformers in f32 on the dequantized weights.

The files in `references` have the token ids and log-probabilities of ten prompts per model, and the margin of each token over the second
best. `python -m quality.references FOLDER OUT` writes one from the folder `f32`; it needs torch and transformers.
"""

import json
import pathlib
import sys
from itertools import zip_longest

from plain_questions import call

FOLDER = pathlib.Path(__file__).parent / "references"
TOKENS = 40
PROMPTS = [
    "The capital of France is", "def fibonacci(n):\n", "Once upon a time", "Water boils at", "In 1969, humans", "Der schnelle braune Fuchs",
    "1, 2, 3, 5, 8,", "SELECT name FROM users WHERE", "The opposite of hot is", "Dear Sir or Madam,\n\nI am writing",
]  # fmt: skip


def compare(port, case):
    """Compares one text: its ids, its greedy tokens and the log-probabilities of the reference's tokens."""
    greedy = {"prompt": case["prompt"], "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True}
    answer = call(port, "/v1/completions", greedy)["choices"][0]
    forced = {"prompt": case["prompt_ids"] + case["tokens"], "max_tokens": 0, "echo": True, "logprobs": 0}
    scored = call(port, "/v1/completions", forced)["choices"][0]["logprobs"]["token_logprobs"][len(case["prompt_ids"]) :]
    return {
        "same ids": answer["prompt_token_ids"] == case["prompt_ids"],
        "margin at the first difference": margin(case, answer["token_ids"]),
        "differences": [abs(ours - theirs) for ours, theirs in zip(scored, case["logprobs"], strict=True)],
    }


def margin(case, tokens):
    """Returns the reference's margin where the texts part; None for equal texts. Both texts include their end token."""
    pairs = enumerate(zip_longest(case["tokens"], tokens))
    return next((case["margins"][min(place, len(case["margins"]) - 1)] for place, (theirs, ours) in pairs if ours != theirs), None)


def figures(port, name):
    cases = [compare(port, case) for case in json.loads((FOLDER / f"{name}.json").read_text())]
    differences = [it for case in cases for it in case["differences"]]
    return {
        "texts": len(cases),
        "same ids": sum(case["same ids"] for case in cases),
        "margins of forks": [it for case in cases if (it := case["margin at the first difference"]) is not None],
        "tokens": len(differences),
        "mean difference": sum(differences) / len(differences),
        "largest difference": max(differences),
    }


def reference(tokenizer, model, prompt):
    import torch

    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=TOKENS, do_sample=False, output_scores=True, return_dict_in_generate=True)
    tokens = out.sequences[0, ids.shape[1] :].tolist()
    rows = [torch.log_softmax(row[0].double(), -1) for row in out.scores]
    best = [torch.topk(row, 2).values.tolist() for row in rows]
    return {
        "prompt": prompt,
        "prompt_ids": ids[0].tolist(),
        "tokens": tokens,
        "logprobs": [round(row[token].item(), 6) for row, token in zip(rows, tokens)],
        "margins": [round(first - second, 6) for first, second in best],
    }


def main():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, out = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    lines = [json.dumps(reference(tokenizer, model, prompt)) for prompt in PROMPTS]
    pathlib.Path(out).write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
