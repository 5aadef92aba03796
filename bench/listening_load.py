"""Measures the gaps between the tokens of four chats, by turns alone and beside the transcription of a long file.

    python bench/listening_load.py CHAT SPEECH FILE [--seconds 60] -- SERVER COMMAND WITH {port}

CHAT and SPEECH are names of models that the server has. The transcription is cancelled after each turn, by closing its connection. Prints the
median and the 99th percentile of the gaps, their ratio, and the seconds of audio for each second. Needs only Python.
"""

import argparse
import http.client
import json
import pathlib
import threading
import time

from embedding_load import Chat, post
from load import free_port, server

CHATS = 4
TURNS = 2


class Listening:
    """A streamed transcription until it is stopped."""

    def __init__(self, port, model, file):
        parts = {"model": model, "stream": "true", "language": "en"}
        text = "".join(f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in parts.items())
        head = '--b\r\nContent-Disposition: form-data; name="file"; filename="audio"\r\n\r\n'
        body = (text + head).encode() + file.read_bytes() + b"\r\n--b--\r\n"
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self.connection.request("POST", "/v1/audio/transcriptions", body, {"content-type": "multipart/form-data; boundary=b"})
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.read()[:500]
        self.windows, self.stopped = 0, False
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        while not self.stopped:
            line = self.response.readline()
            if not line:
                break
            self.windows += line.startswith(b"data: ") and "delta" in json.loads(line[6:])

    def stop(self):
        """Reads up to the end of the current window, then closes the connection."""
        self.stopped = True
        self.thread.join()
        self.response.close()
        self.connection.close()


def joined(chats, turns):
    found = sorted(gap for chat in chats for when, gap in chat.gaps if any(begin <= when <= end for begin, end in turns))
    return found[len(found) // 2] * 1e3, found[int(len(found) * 0.99)] * 1e3, len(found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("chat")
    parser.add_argument("speech")
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    port = free_port()
    with server(options.command, port):
        post(port, "/v1/completions", {"model": options.chat, "prompt": "Once", "max_tokens": 8})
        Listening(port, options.speech, options.file).stop()
        chats = [Chat(port, options.chat) for _ in range(CHATS)]
        time.sleep(2)
        turns, windows = {"alone": [], "beside": []}, 0
        for _ in range(TURNS):
            for name, found in turns.items():
                listening = Listening(port, options.speech, options.file) if name == "beside" else None
                begin = time.perf_counter()
                time.sleep(options.seconds)
                found.append((begin, time.perf_counter()))
                if listening:
                    windows += listening.windows
                    listening.stop()
        for chat in chats:
            chat.stop()
        for name, found in turns.items():
            median, worst, count = joined(chats, found)
            print(f"{name}: median {median:.1f} ms, p99 {worst:.1f} ms, ratio {worst / median:.2f}, {count} gaps")
        print(f"{30 * windows / (TURNS * options.seconds):.1f} seconds of audio a second at most, {windows} windows")


if __name__ == "__main__":
    main()
