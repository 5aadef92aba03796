"""Measures the gaps between the tokens of a chat, alone and beside a batch.

    python bench/batch_load.py MODEL [--lines 2000] [--max-tokens 8] -- SERVER COMMAND WITH {port}

MODEL is the name of a model that the server has. Adds `--files-dir` with a temporary folder to the command. Prints the median and the 99th
percentile of the gaps, their ratio, and the time of the batch. Needs only Python.
"""

import argparse
import http.client
import json
import tempfile
import time

from embedding_load import ALONE_SECONDS, Chat, post
from load import free_port, server

PATH = "/v1/chat/completions"


def upload(port, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    parts = [('name="purpose"', "batch"), ('name="file"; filename="lines.jsonl"', text)]
    form = "".join(f"--form\r\nContent-Disposition: form-data; {head}\r\n\r\n{part}\r\n" for head, part in parts) + "--form--\r\n"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/files", form.encode(), {"content-type": "multipart/form-data; boundary=form"})
    return json.load(connection.getresponse())["id"]


def state(port, batch):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", f"/v1/batches/{batch}")
    return json.load(connection.getresponse())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    port = free_port()

    def line(number):
        messages = [{"role": "user", "content": f"Say a word about the number {number}."}]
        body = {"model": options.model, "messages": messages, "seed": number, "max_tokens": options.max_tokens}
        return {"custom_id": str(number), "method": "POST", "url": PATH, "body": body}

    with tempfile.TemporaryDirectory() as folder, server([*options.command, "--files-dir", folder], port):
        post(port, "/v1/completions", {"model": options.model, "prompt": "Once", "max_tokens": 8})
        file = upload(port, map(line, range(options.lines)))
        chat = Chat(port, options.model)
        time.sleep(2)
        begin = time.perf_counter()
        time.sleep(ALONE_SECONDS)
        middle = time.perf_counter()
        batch = post(port, "/v1/batches", {"input_file_id": file, "endpoint": PATH, "completion_window": "24h"})["id"]
        while (now := state(port, batch))["status"] in ("validating", "in_progress", "finalizing"):
            time.sleep(0.5)
        end = time.perf_counter()
        chat.stop()
        for name, (median, worst, count) in [("alone", chat.between(begin, middle)), ("beside", chat.between(middle, end))]:
            print(f"{name}: median {median * 1e3:.1f} ms, p99 {worst * 1e3:.1f} ms, ratio {worst / median:.2f}, {count} gaps")
        print(now["status"], now["request_counts"], f"{end - middle:.0f} s")


if __name__ == "__main__":
    main()
