"""Measures the share of plain questions that a small instruct model answers correctly, by sampling settings.

    python bench/plain_questions.py MODEL [--mlx target/release/mlx] [--seeds 5]

Each of 20 questions is sent with each seed to a server of the model: with the sampling of the terminal and the page, with the API's
temperature of 1, and greedily. An answer is correct if it contains the expected word. Prints the shares as one line of JSON. Needs only
Python.
"""

import argparse
import json
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from load import free_port, server

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
AT_ONCE = 16


def call(port, path, body=None):
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def share_right(port, sampling, seeds):
    def is_right(job):
        seed, (question, expected) = job
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 64, "seed": seed, **sampling}
        answer = call(port, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
        return bool(re.search(expected, answer.lower()))

    jobs = [(seed, question) for seed in seeds for question in QUESTIONS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return round(sum(pool.map(is_right, jobs)) / len(jobs), 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--mlx", default="target/release/mlx")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    port, seeds = free_port(), range(1, options.seeds + 1)
    with server([options.mlx, "serve", "-m", options.model, "--port", "{port}"], port):
        chat = call(port, "/v1/models")["data"][0]["chat_sampling"]
        page = {name: chat[name]["value"] for name in ("temperature", "min_p", "top_p", "top_k")}
        shares = {
            "terminal and page": share_right(port, page, seeds),
            "temperature 1": share_right(port, {"temperature": 1}, seeds),
            # Greedy answers do not depend on the seed.
            "greedy": share_right(port, {"temperature": 0}, [1]),
        }
    print(json.dumps(shares))


if __name__ == "__main__":
    main()
