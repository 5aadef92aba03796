"""Vercel's AI SDK, unmodified, against the server on a scripted model: python ai_sdk.py BASE_URL. Run by `cargo xtask clients`, which sets
MLX_SERVER and NODE_MODULES. It starts a server of its own; BASE_URL is not used. The tests are in ai_sdk.mjs."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from scripted_server import Server

TESTS = Path(__file__).with_suffix(".mjs")


def call(name, arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


# Without its own form for objects, the SDK forces a call of a tool with the name `json`.
SCRIPT = [
    {"when": "'When is' in asked and results == 0", "say": ["<think>", "A table ", "helps.", "</think>", "I look it up.", "\n" + call("tide_at", {"place": "Brest"})]},
    {"when": "'When is' in asked and messages[-2].reasoning_content == 'A table helps.'", "say": ["At ", "six."]},
    {"when": "'Call tide_at' in asked", "say": [call("tide_at", {"place": "Dover"})]},
    {"when": "'Look up' in asked and results == 0", "say": [call("tide_at", {"place": "Brest"})]},
    {"when": "'escribe' in asked and tools and tools[-1].function.name == 'json'", "say": [call("json", {"is_high": True, "kind": "spring"})]},
    {"when": "'escribe' in asked", "say": ['{"is_high":', " true,", ' "kind":', ' "spring"}']},
    {"when": "true", "say": ["Hello ", "from ", "the ", "model."]},
]


if __name__ == "__main__":
    # Modules are looked for beside the file that imports them.
    with Server(SCRIPT) as server, tempfile.TemporaryDirectory() as folder:
        os.symlink(os.environ["NODE_MODULES"], Path(folder) / "node_modules")
        shutil.copy(TESTS, folder)
        subprocess.run(["node", Path(folder) / TESTS.name, server.base], check=True, timeout=300)
