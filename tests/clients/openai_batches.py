"""Files and batches with OpenAI's Python SDK, unmodified: python openai_batches.py BASE_URL. Run by `cargo xtask clients`, which sets
MLX_SERVER. The script starts its own servers, since files need a folder."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import openai

PROGRAM = os.environ["MLX_SERVER"]
MODEL = Path(__file__).parents[1] / "golden/models/llama-f32"
URL = "/v1/chat/completions"


class Server:
    """A server with a folder of files."""

    def __init__(self, folder):
        command = [PROGRAM, "--port", "0", "-m", f"tiny={MODEL}", "--files-dir", folder, "--exact", "--all-models=false"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if json.loads(line).get("message") == "listening":
                base = "http://" + json.loads(line)["address"]
                break
        # Nobody reads the pipe from here on; the server drops the lines that do not fit.
        self.client = openai.OpenAI(base_url=base + "/v1", api_key="unused", max_retries=0)

    def kill(self):
        self.process.kill()
        self.process.wait()


def request(seed):
    return {"model": "tiny", "messages": [{"role": "user", "content": f"The waves {seed}"}], "seed": seed, "max_tokens": 12}


def lines(count):
    line = lambda seed: {"custom_id": f"request-{seed}", "method": "POST", "url": URL, "body": request(seed)}
    return "".join(json.dumps(line(seed)) + "\n" for seed in range(count))


def begin(client, text):
    file = client.files.create(file=("requests.jsonl", text.encode()), purpose="batch")
    assert file.filename == "requests.jsonl" and file.bytes == len(text.encode()) and file.status == "processed"
    assert client.files.retrieve(file.id) == file and client.files.content(file.id).text == text
    return client.batches.create(
        input_file_id=file.id, endpoint=URL, completion_window="24h", metadata={"topic": "tides"}
    )


def wait(client, batch, until):
    limit = time.time() + 120
    while not until(batch):
        assert time.time() < limit, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def entries(client, file):
    return [json.loads(line) for line in client.files.content(file).iter_lines()] if file else []


def test_a_batch(server):
    client, count = server.client, 20
    bad = json.dumps({"custom_id": "bad", "method": "POST", "url": URL, "body": {"messages": [], "model": "nobody"}})
    batch = begin(client, lines(count) + bad + "\nno json\n")
    assert batch.object == "batch" and batch.metadata == {"topic": "tides"} and batch.errors is None
    batch = wait(client, batch, lambda batch: batch.status == "completed")
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (count + 2, count, 2)
    answers = {entry["custom_id"]: entry["response"] for entry in entries(client, batch.output_file_id)}
    assert len(answers) == count and batch.usage.total_tokens > 0
    for seed in (0, count - 1):
        direct = client.chat.completions.create(**request(seed))
        answer = openai.types.chat.ChatCompletion.model_validate(answers[f"request-{seed}"]["body"])
        assert answer.choices[0].message.content == direct.choices[0].message.content
    errors = {entry["line"]: entry for entry in entries(client, batch.error_file_id)}
    assert errors[count + 1]["response"]["status_code"] == 400 and errors[count + 2]["error"]["code"] == "invalid_body"
    assert [item.id for item in client.batches.list()] == [batch.id]
    assert {file.purpose for file in client.files.list()} == {"batch", "batch_output"}
    for file in client.files.list():
        assert client.files.delete(file.id).deleted
    assert not list(client.files.list())


def test_cancellation(server):
    batch = begin(server.client, lines(2000))
    batch = wait(server.client, batch, lambda batch: batch.request_counts.completed > 0)
    assert server.client.batches.cancel(batch.id).status == "cancelling"
    batch = wait(server.client, batch, lambda batch: batch.status == "cancelled")
    assert len(entries(server.client, batch.output_file_id)) == batch.request_counts.completed < 2000


def test_a_killed_server(folder):
    server, count = Server(folder), 60
    batch = begin(server.client, lines(count))
    wait(server.client, batch, lambda batch: batch.request_counts.completed >= 10)
    server.kill()
    server = Server(folder)
    batch = wait(server.client, batch, lambda batch: batch.status == "completed")
    ids = [entry["custom_id"] for entry in entries(server.client, batch.output_file_id)]
    assert sorted(ids) == sorted(f"request-{seed}" for seed in range(count))
    server.kill()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        server = Server(one)
        test_a_batch(server)
        test_cancellation(server)
        server.kill()
        test_a_killed_server(other)
    print("openai_batches.py: all passed")
