"""Measures the figures of docs/quality.md on two trained models and writes them into the page: `cargo xtask real [--peers]`.

The task builds the program, fetches the models, and prepares the Python packages. The results are in target/real/results.json. A run
continues where the last one of the same program stopped. It fails if a promise of the page is broken.
"""

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys

from load import free_port, server
from quality import page, peers, perplexity, promises, references, speed, tasks

ROOT = pathlib.Path(__file__).parents[2]
MODELS = ("smollm2", "gemma3")
# The model that is trained to answer; the other one only continues texts.
INSTRUCT = "smollm2"


class Results:
    """The figures by name, stored after each measurement."""

    def __init__(self, folder, sources):
        """Continues with the figures of the same sources. Otherwise deletes them, and the models that an older program converted."""
        self.path = folder / "results.json"
        with contextlib.suppress(OSError, ValueError, KeyError):
            self.values = json.loads(self.path.read_text())
            if self.values["sources"] == sources:
                return
        for name in MODELS:
            shutil.rmtree(folder / name, ignore_errors=True)
        self.values = {"sources": sources}

    def measure(self, name, function, *arguments):
        if name not in self.values:
            print(name, file=sys.stderr, flush=True)
            self.values[name] = function(*arguments)
            self.path.write_text(json.dumps(self.values, indent=1))
        return self.values[name]


def sources(mlx, texts):
    """Returns a digest of everything that decides the figures: the program, these scripts and the texts."""
    scripts = sorted(pathlib.Path(__file__).parent.rglob("*.*"))
    parts = [path.read_bytes() for path in (pathlib.Path(mlx), *scripts) if path.is_file() and path.suffix != ".pyc"]
    return hashlib.sha256(b"".join(parts + [text.encode() for text in texts.values()])).hexdigest()


def machine():
    """Describes the processor."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
    return f"{platform.system()}, {os.cpu_count()} threads of {name}"


def version(mlx):
    return subprocess.check_output([mlx, "--version"], text=True).strip()


def served(options, name, results):
    """Measures everything that needs a server of the model."""
    measure_served(options, options.files[name], name, [("references", references.figures, (name,))], results)
    if name == INSTRUCT:
        jobs = [("questions", tasks.questions, ()), ("schemas", tasks.schemas, ()), ("drafts", tasks.drafts, ())]
        measure_served(options, options.files[name], name, jobs, results)
    # Separates the rounding of packed weights from all else.
    floats = formats(options, name).path("f32")
    measure_served(options, floats, f"{name} f32", [("references", references.figures, (name,))], results)


def measure_served(options, model, title, jobs, results):
    """Runs these jobs on a server of the model, unless all of them have results."""
    if all(f"{title} {job}" in results.values for job, _, _ in jobs):
        return
    port = free_port()
    with server([options.mlx, "serve", "-m", str(model), "--port", "{port}"], port):
        for job, function, arguments in jobs:
            results.measure(f"{title} {job}", function, port, *arguments)


def formats(options, name):
    return perplexity.Formats(options.mlx, options.files[name], options.folder / name)


def scored(options, name, results, texts):
    """Measures the perplexity of all texts by format and by type of the cache."""
    folders = formats(options, name)

    def measure(format, *flags):
        def figures(text):
            return perplexity.figures(perplexity.score(options.mlx, folders.path(format), text, *flags)[1])

        for title, text in texts.items():
            results.measure(perplexity.key(name, format, *flags, title), figures, text)

    measure("gguf")
    for bits in perplexity.CACHE_BITS:
        measure("gguf", "--kv-bits", str(bits))
    for format in perplexity.FORMATS[name]:
        measure(format)
    results.measure(f"{name} sizes", lambda: {format: perplexity.size(folders.path(format)) for format in ["gguf", *perplexity.FORMATS[name]]})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mlx", required=True)
    parser.add_argument("--smollm2", required=True, type=pathlib.Path, help="the GGUF file")
    parser.add_argument("--gemma3", required=True, type=pathlib.Path, help="the GGUF file")
    parser.add_argument("--folder", required=True, type=pathlib.Path, help="the folder of converted models and results")
    parser.add_argument("--peers", action="store_true", help="also measure llama.cpp on the same files")
    options = parser.parse_args()
    options.files = {name: getattr(options, name) for name in MODELS}
    texts = perplexity.texts(ROOT)
    results = Results(options.folder, sources(options.mlx, texts))
    results.measure("run", lambda: {"program": version(options.mlx), "day": str(datetime.date.today()), "machine": machine()})
    for name in MODELS:
        served(options, name, results)
        scored(options, name, results, texts)
    for name in MODELS:
        results.measure(f"{name} speed", speed.apart, options.mlx, options.files[name])
        if options.peers:
            peers.measure(options, name, results, texts)
    path = ROOT / "docs/quality.md"
    path.write_text(page.filled(path.read_text(), results.values))
    broken = promises.broken(results.values, MODELS)
    if broken:
        sys.exit("\n".join(["Broken promises:", *broken]))


if __name__ == "__main__":
    main()
