"""The same files on llama.cpp: perplexity, greedy texts, tokens and speed. Needs the environment of `cargo xtask bench`."""

import json
import os
import pathlib
import subprocess
import sys

from load import free_port, server
from plain_questions import call
from quality import mixed, perplexity, references
from turns import Contestant, compare

PEERS = pathlib.Path(__file__).parents[1] / "peers"
THREADS = os.cpu_count()
TURNS = 3


def llama_cpp(file, jobs):
    command = [sys.executable, PEERS / "llama_cpp_real.py", file, str(THREADS)]
    done = subprocess.run(list(map(str, command)), input=json.dumps(jobs), check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def scores(options, name, texts):
    """Perplexity of the same ids on llama.cpp, and its agreement with the references."""
    ids = {title: perplexity.score(options.mlx, options.files[name], text)[0] for title, text in texts.items()}
    cases = json.loads((references.FOLDER / f"{name}.json").read_text())
    forced = [case["prompt_ids"] + case["tokens"] for case in cases]
    jobs = {"score": [*ids.values(), *forced], "greedy": [case["prompt_ids"] for case in cases]}
    done = llama_cpp(options.files[name], jobs)
    scored = done["score"][len(ids) :]
    differences = [
        abs(ours - theirs)
        for case, logprobs in zip(cases, scored)
        for ours, theirs in zip(logprobs[len(case["prompt_ids"]) - 1 :], case["logprobs"], strict=True)
    ]
    margins = [references.margin(case, tokens) for case, tokens in zip(cases, done["greedy"])]
    return {
        "perplexity": {title: perplexity.figures(logprobs) for title, logprobs in zip(ids, done["score"])},
        "margins of forks": [it for it in margins if it is not None],
        "tokens": len(differences),
        "mean difference": sum(differences) / len(differences),
        "largest difference": max(differences),
    }


def tokens(options, name):
    """The texts whose ids differ from those of llama.cpp."""
    file, texts = options.files[name], mixed.texts()
    port = free_port()
    with server([options.mlx, "serve", "-m", str(file), "--port", "{port}"], port):
        ours = [call(port, "/tokenize", {"content": text, "add_special": False})["tokens"] for text in texts]
    theirs = llama_cpp(file, {"tokenize": texts})["tokenize"]
    different = [{"text": text, "ours": mine, "theirs": other} for text, mine, other in zip(texts, ours, theirs, strict=True) if mine != other]
    return {"texts": len(texts), "different": different}


def speeds(options, name):
    """Speeds by turns: ours, ours again as a measure of the noise, and llama.cpp."""
    file = options.files[name]
    ours = [sys.executable, "-m", "quality.speed", options.mlx, file]
    llama = [sys.executable, PEERS / "llama_cpp_single.py", file, THREADS]
    bench = {"PYTHONPATH": str(PEERS.parent)}
    contestants = [Contestant("ours", ours, bench), Contestant("noise", ours, bench), Contestant("llama.cpp", llama)]
    results = compare(contestants, TURNS, lambda text: print(text, file=sys.stderr, flush=True))
    starts = [llama_cpp(file, {}) for _ in range(TURNS)]
    figures = {who: {figure: results.of(who, figure) for figure in results.figures()} for who in results.names()}
    figures["llama.cpp"] |= {figure: [start[figure] for start in starts] for figure in starts[0]}
    return figures


def measure(options, name, results, texts):
    results.measure(f"{name} beside llama.cpp", scores, options, name, texts)
    results.measure(f"{name} tokens", tokens, options, name)
    results.measure(f"{name} speeds beside llama.cpp", speeds, options, name)
