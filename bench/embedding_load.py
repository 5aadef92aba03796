"""Measures the gaps between the tokens of a chat, alone and beside a load of texts to embed, and the texts a second.

    python bench/embedding_load.py CHAT EMBED [--texts 10000] [--batch 256] -- SERVER COMMAND WITH {port}

CHAT and EMBED are names of models that the server has. The texts have 5 to 40 words. Prints the median and the 99th percentile of the
gaps, and the ratio of the 99th percentile beside the load to the median beside it and alone. Needs only Python.
"""

import argparse
import contextlib
import http.client
import json
import random
import statistics
import threading
import time

from load import free_port, gaps, server

WORDS = "the keeper counts waves bread is baked at six rates rise over night cats sleep near old stone lights while ships pass".split()
ALONE_SECONDS = 20


def texts(count):
    dice = random.Random(7)
    return [" ".join(dice.choices(WORDS, k=dice.randint(5, 40))) + f" {number}" for number in range(count)]


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    assert response.status == 200, answer[:500]
    return json.loads(answer)


class Chat:
    """Chats that follow one another until they are stopped; `gaps` has the time of each token and the gap before it."""

    def __init__(self, port, model):
        self.port, self.model, self.gaps, self.stopped = port, model, [], False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        body = {"model": self.model, "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True}
        while not self.stopped:
            with contextlib.closing(gaps(self.port, body)) as tokens:
                for token in tokens:
                    self.gaps.append(token)
                    if self.stopped:
                        break

    def between(self, begin, end):
        """Returns the median and the 99th percentile of the gaps, and their number."""
        found = sorted(gap for when, gap in self.gaps if begin <= when <= end)
        return statistics.median(found), found[int(len(found) * 0.99)], len(found)

    def stop(self):
        self.stopped = True
        self.thread.join()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("chat")
    parser.add_argument("embed")
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    port = free_port()
    with server(options.command, port):
        all_texts = texts(options.texts)
        post(port, "/v1/embeddings", {"model": options.embed, "input": all_texts[: options.batch]})
        post(port, "/v1/completions", {"model": options.chat, "prompt": "Once", "max_tokens": 8})
        chat = Chat(port, options.chat)
        time.sleep(2)
        begin = time.perf_counter()
        time.sleep(ALONE_SECONDS)
        middle = time.perf_counter()
        for first in range(0, len(all_texts), options.batch):
            post(port, "/v1/embeddings", {"model": options.embed, "input": all_texts[first : first + options.batch], "encoding_format": "base64"})
        end = time.perf_counter()
        chat.stop()
        alone, beside = chat.between(begin, middle), chat.between(middle, end)
        for name, (median, worst, count) in [("alone", alone), ("beside", beside)]:
            print(f"{name}: median {median * 1e3:.1f} ms, p99 {worst * 1e3:.1f} ms, {count} gaps")
        print(f"p99 beside / median beside {beside[1] / beside[0]:.2f}, p99 beside / median alone {beside[1] / alone[0]:.2f}")
        print(f"{len(all_texts) / (end - middle):.0f} texts a second beside the chat")


if __name__ == "__main__":
    main()
