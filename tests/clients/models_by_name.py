"""The Python SDKs of OpenAI and Ollama load, use and unload models by name: MLX_SERVER=target/debug/mlx-server python models_by_name.py

20 copies of a model in one folder, memory for three of them, and profiles. Run by `cargo xtask clients`, whose BASE_URL is not used."""

import contextlib
import datetime
import importlib.metadata
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ollama
import openai

MODEL = Path(__file__).parent.parent / "golden/models/llama-f32"
NAMES = [f"m{number:02}" for number in range(20)]
USER = [{"role": "user", "content": "The waves"}]
PROFILES = """
[[profile]]
name = "terse"
model = "m01"
system = "Be brief."
temperature = 0
max-tokens = 4

[[profile]]
name = "long"
model = "m01"
system = "Be brief."
temperature = 0
max-tokens = 12
"""


class Server:
    """A server whose first model is `first`. It sees no models of this machine besides those of `folder`."""

    def __init__(self, folder, *flags):
        command = [os.environ["MLX_SERVER"], "--port", "0", "-m", f"first={MODEL}", "--models-dir", str(folder), *flags]
        home = {"HOME": str(folder), "HF_HOME": str(folder / "hub"), "OLLAMA_MODELS": str(folder / "ollama")}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLX_", "HF_", "XDG_"))}
        device = {name: os.environ[name] for name in ("MLX_DEVICE",) if name in os.environ}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**kept, **home, **device})
        for line in self.process.stderr:
            entry = json.loads(line)
            if entry.get("message") == "listening":
                self.base = "http://" + entry["address"]
                break
        threading.Thread(target=lambda: self.process.stderr.read(), daemon=True).start()
        self.openai = openai.OpenAI(base_url=self.base + "/v1", api_key="unused", max_retries=0)
        self.ollama = ollama.Client(host=self.base)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def loaded(self):
        """The models in memory by the SDK of OpenAI, with the fields that it does not know. A profile is in memory with its model."""
        return sorted(it.id for it in self.openai.models.list() if it.loaded and not getattr(it, "profile", False))

    def post(self, path, **body):
        """A request that the SDK of OpenAI has no method for."""
        return self.openai.post(path, body=body, cast_to=object)


@contextlib.contextmanager
def folder_of_models():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in NAMES:
            shutil.copytree(MODEL, folder / model)
        yield folder


def wait_until(is_true):
    end = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < end, "it did not happen within 30 s"
        time.sleep(0.02)


def needed(folder):
    """The memory that one model needs."""
    with Server(folder) as server:
        ask(server, "first")
        page = urllib.request.urlopen(server.base + "/metrics").read().decode()
    return int(next(line for line in page.splitlines() if line.startswith('mlx_reserved_bytes{model="first"}')).split()[1])


def ask(server, model):
    answer = server.openai.chat.completions.create(model=model, messages=USER, max_tokens=6, temperature=0)
    assert answer.model == model, answer.model
    return answer.choices[0].message.content


def test_openai_loads_uses_and_unloads(folder):
    with Server(folder) as server:
        listed = {it.id: it for it in server.openai.models.list()}
        assert list(listed)[0] == "first" and set(NAMES) <= set(listed) and server.loaded() == []
        assert listed["m03"].state == "unloaded"
        expected = ask(server, "first")
        assert ask(server, "m03") == expected and server.openai.models.retrieve("m03").state == "loaded"
        loaded = server.post("/models/load", model="m04", keep_alive="1h", pin=True)
        assert (loaded["id"], loaded["state"], loaded["pinned"]) == ("m04", "loaded", True)
        assert server.post("/models/unload", model="m04")["state"] == "unloaded"
        assert server.openai.models.retrieve("m04").state == "unloaded"
        try:
            ask(server, "../m04")
        except openai.NotFoundError as error:
            assert error.code == "model_not_found" and error.param == "model", error.body
        else:
            raise AssertionError("no request opens a path")


def test_ollama_loads_uses_and_unloads(folder):
    with Server(folder) as server:
        client = server.ollama
        names = [it.model for it in client.list().models]
        assert names[0] == "first" and set(NAMES) <= set(names)
        assert client.ps().models == []
        # Without a prompt, a request only loads the model.
        assert client.generate("m05", keep_alive="5m").done_reason == "load"
        running = client.ps().models
        assert [it.model for it in running] == ["m05"] and running[0].size > 0
        left = running[0].expires_at - datetime.datetime.now(datetime.timezone.utc)
        assert datetime.timedelta(minutes=4) < left <= datetime.timedelta(minutes=5), left
        assert client.chat("m05:latest", USER, options={"num_predict": 3}, keep_alive=-1).message.content
        assert client.ps().models[0].expires_at.year == 9999
        assert client.generate("m05", keep_alive=0).done_reason == "unload"
        assert client.ps().models == []
        answer = client.chat("m06", USER, options={"num_predict": 3}, keep_alive=0)
        assert answer.done, "the answer comes first"
        wait_until(lambda: client.ps().models == [])
        parts = list(client.chat("m07", USER, options={"num_predict": 3}, keep_alive="1s", stream=True))
        assert parts[-1].done
        wait_until(lambda: client.ps().models == [])
        try:
            client.chat("none", USER)
        except ollama.ResponseError as error:
            assert error.status_code == 404 and "none" in error.error
        else:
            raise AssertionError("there is no such model")


def test_twenty_models_by_turns_in_memory_for_three(folder):
    budget = needed(folder) * 7 // 2
    with Server(folder, "--models-budget", str(budget), "--loaded-models", "3") as server:
        expected = ask(server, "first")

        def one(worker):
            # Each worker visits all models, in another order.
            order = [NAMES[(turn * (1, 7, 13)[worker] + 5 * worker) % len(NAMES)] for turn in range(len(NAMES))]
            for name in order:
                if worker == 2:
                    options = {"temperature": 0, "num_predict": 6, "top_k": 0, "top_p": 1, "repeat_last_n": -1}
                    assert server.ollama.chat(name, USER, options=options).message.content == expected, name
                else:
                    assert ask(server, name) == expected, name

        with ThreadPoolExecutor(3) as workers:
            list(workers.map(one, range(3)))
        assert 1 <= len(server.loaded()) <= 3, server.loaded()


def test_profiles_are_models(folder):
    path = folder / "profiles.toml"
    path.write_text(PROFILES)
    with Server(folder, "--profiles", str(path)) as server:
        listed = {it.id: it for it in server.openai.models.list()}
        assert (listed["terse"].parent, listed["terse"].profile) == ("m01", True)
        system = [{"role": "system", "content": "Be brief."}, *USER]
        whole = {}
        for name, tokens in [("terse", 4), ("long", 12)]:
            spelled = server.openai.chat.completions.create(model="m01", messages=system, temperature=0, max_tokens=tokens)
            short = server.openai.chat.completions.create(model=name, messages=USER)
            whole[name] = short.choices[0].message.content
            assert (short.model, whole[name]) == (name, spelled.choices[0].message.content)
            assert server.ollama.chat(name, USER).message.content == whole[name]
            assert server.openai.responses.create(model=name, input="The waves").output_text == whole[name]
        assert whole["long"].startswith(whole["terse"]) and whole["long"] != whole["terse"]
        assert server.loaded() == ["m01"] and [it.model for it in server.ollama.ps().models] == ["m01"]
        assert server.ollama.generate("terse", keep_alive=0).done_reason == "unload"
        assert server.loaded() == []


if __name__ == "__main__":
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    with folder_of_models() as folder:
        for name, test in tests:
            test(folder)
            print(f"{name[5:].replace('_', ' ')}: ok", flush=True)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("openai", "ollama"))
    print(f"{len(tests)} tests with {versions} passed")
