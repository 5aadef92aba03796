"""Times a transcription by mlx-server, faster-whisper and whisper.cpp: greedy, in English, with two threads.

    python bench/transcription/speed.py CLIP ROUNDS NAME=PROGRAM:MODEL ...

PROGRAM is the path of mlx-server, `faster-whisper`, or `whisper.cpp`. MODEL is a folder, a folder of CTranslate2, or a GGML file. The programs
take turns. Prints seconds without loading and the peak of resident memory. Needs faster-whisper and pywhispercpp for these two.
"""

import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
import urllib.request

BOUNDARY = "a-boundary-of-a-form"


def form(parts, file):
    head = lambda name: f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"'
    texts = "".join(f"{head(name)}\r\n\r\n{text}\r\n" for name, text in parts.items())
    return texts.encode() + f'{head("file")}; filename="clip.wav"\r\n\r\n'.encode() + file + f"\r\n--{BOUNDARY}--\r\n".encode()


def by_server(program, model, clip):
    server = subprocess.Popen([program, "--port", "0", "--in-process", "--preload", "-m", model], stderr=subprocess.PIPE, text=True)
    try:
        address = next(found[1] for line in server.stderr if (found := re.search(r'"address":"([^"]+)"', line)))
        body = form({"language": "en", "priority": "high"}, open(clip, "rb").read())
        request = urllib.request.Request(f"http://{address}/v1/audio/transcriptions", body, {"content-type": f"multipart/form-data; boundary={BOUNDARY}"})
        begin = time.monotonic()
        json.load(urllib.request.urlopen(request))
        seconds = time.monotonic() - begin
        return seconds, int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{server.pid}/status").read())[1]) / 1024
    finally:
        server.kill()
        server.wait()


def by_library(name, model, clip):
    """Runs in a separate process, so that only its memory is counted."""
    if name == "faster-whisper":
        from faster_whisper import WhisperModel
        kind = os.environ.get("COMPUTE_TYPE", "int8")
        loaded = WhisperModel(model, device="cpu", compute_type=kind, cpu_threads=2, num_workers=1)
        run = lambda: list(loaded.transcribe(clip, language="en", beam_size=1, temperature=0.0, condition_on_previous_text=False)[0])
    else:
        from pywhispercpp.model import Model
        loaded = Model(model, n_threads=2, print_progress=False, print_realtime=False, redirect_whispercpp_logs_to=None)
        run = lambda: loaded.transcribe(clip, language="en", temperature=0.0, temperature_inc=0.0)
    begin = time.monotonic()
    run()
    print(json.dumps([time.monotonic() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def measure(program, model, clip):
    if program not in ("faster-whisper", "whisper.cpp"):
        return by_server(program, model, clip)
    found = subprocess.run([sys.executable, __file__, "--library", program, model, clip], capture_output=True, text=True, check=True)
    return json.loads(found.stdout.strip().splitlines()[-1])


def main():
    if sys.argv[1] == "--library":
        return by_library(*sys.argv[2:])
    clip, rounds, *choices = sys.argv[1:]
    choices = {name: rest.split(":", 1) for name, rest in (choice.split("=", 1) for choice in choices)}
    found = {name: [] for name in choices}
    for _ in range(int(rounds)):
        for name, (program, model) in choices.items():
            found[name].append(measure(program, model, clip))
    for name, runs in found.items():
        seconds, memory = zip(*runs)
        print(f"{name}: {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), {max(memory):.0f} MiB")


main()
