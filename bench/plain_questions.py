"""How many plain questions a small instruct model answers right, by sampling settings.

    python bench/plain_questions.py MODEL [--mlx target/release/mlx] [--seeds 5]

Each of 20 questions is asked with each seed through `mlx generate`: with the defaults of the terminal, at temperature 1 without a filter,
and greedily. An answer is right if it contains the expected word. The shares come as one line of JSON. Nothing but Python is needed.
"""

import argparse
import json
import re
import subprocess

QUESTIONS = [
    ("What is the capital of France?", r"\bparis\b"),
    ("What is the capital of Japan?", r"\btokyo\b"),
    ("What is the capital of Italy?", r"\brome\b"),
    ("What is the largest planet in our solar system?", r"\bjupiter\b"),
    ("Which planet is known as the Red Planet?", r"\bmars\b"),
    ("Who wrote Romeo and Juliet?", r"\bshakespeare\b"),
    ("What is the chemical formula of water?", r"\bh2o\b|h₂o"),
    ("How many days are in a week?", r"\b(7|seven)\b"),
    ("How many months are in a year?", r"\b(12|twelve)\b"),
    ("What is 2 + 2?", r"\b(4|four)\b"),
    ("What is the opposite of hot?", r"\bcold\b"),
    ("What color is the sky on a clear day?", r"\bblue\b"),
    ("At how many degrees Celsius does water boil?", r"\b100\b"),
    ("Which gas do plants take in for photosynthesis?", r"carbon dioxide|\bco2\b"),
    ("On which continent is Egypt?", r"\bafrica\b"),
    ("What language do people speak in Brazil?", r"\bportuguese\b"),
    ("Which animal is known as the king of the jungle?", r"\blion\b"),
    ("Who was the first president of the United States?", r"\bwashington\b"),
    ("What is the largest ocean on Earth?", r"\bpacific\b"),
    ("How many legs does a spider have?", r"\b(8|eight)\b"),
]
SETTINGS = {"defaults": [], "temperature 1": ["--temperature", "1", "--min-p", "0"], "greedy": ["--temperature", "0"]}


def answer(mlx, model, question, flags):
    command = [mlx, "generate", model, question, "--max-tokens", "64", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def share_right(mlx, model, flags, seeds):
    right = 0
    for seed in seeds:
        for question, expected in QUESTIONS:
            right += bool(re.search(expected, answer(mlx, model, question, [*flags, "--seed", str(seed)]).lower()))
    return right / (len(seeds) * len(QUESTIONS))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--mlx", default="target/release/mlx")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    shares = {}
    for name, flags in SETTINGS.items():
        # Greedy answers are the same with every seed.
        seeds = range(1, 2 if name == "greedy" else options.seeds + 1)
        shares[name] = round(share_right(options.mlx, options.model, flags, seeds), 3)
    print(json.dumps(shares))


if __name__ == "__main__":
    main()
