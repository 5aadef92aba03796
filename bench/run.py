"""Measures the figures of docs/benchmarks.md and writes them as Markdown and JSON: `cargo xtask bench [TOPIC...] [--turns N]`.

`cargo xtask bench` prepares the optimized programs and the Python packages. A topic may be given by a prefix of its name. Without topics,
all are measured except those that need tens of gigabytes. The results are in target/bench.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys

from topics import ROOT, Kit, topics
from turns import compare, table

OUTPUT = ROOT / "target/bench"
PACKAGES = ["mlx", "mlx-lm", "llama-cpp-python"]


def tell(text):
    print(text, file=sys.stderr, flush=True)


def plain_blas():
    """Builds the library that replaces a wheel's BLAS by our OpenBLAS. None if the system has one BLAS for all programs."""
    libraries = sorted((ROOT / "target/native").glob("*/scipy_openblas32/lib"), key=lambda path: path.stat().st_mtime)
    if platform.system() != "Linux" or not libraries:
        return None
    made = OUTPUT / "libplain_blas.so"
    source = ROOT / "bench/plain_blas.cpp"
    link = [f"-L{libraries[-1]}", "-l:libscipy_openblas.so", f"-Wl,-rpath,{libraries[-1]}"]
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", source, "-o", made, *link], check=True)
    return made


def slow_device():
    """Builds the library that turns MLX's CPU stream into a device that runs concurrently with the host. None if MLX is built differently."""
    headers = sorted((ROOT / "target/native").glob("*/mlx/include"), key=lambda path: path.stat().st_mtime)
    if platform.system() != "Linux" or not headers:
        return None
    made = OUTPUT / "libslow_device.so"
    subprocess.run(["g++", "-std=c++20", "-O2", "-shared", "-fPIC", f"-I{headers[-1]}", ROOT / "bench/slow_device.cpp", "-o", made], check=True)
    return made


def make_kit(for_a_gpu):
    OUTPUT.mkdir(parents=True, exist_ok=True)
    libraries = (None, None) if for_a_gpu else (plain_blas(), slow_device())
    return Kit(pathlib.Path(sys.executable), OUTPUT / "models", *libraries, os.cpu_count())


def write_models(kit, chosen):
    """Writes the models of these topics, if they are missing."""
    for names in {topic.models for topic in chosen}:
        subprocess.run([sys.executable, ROOT / "bench/models.py", kit.models, *names], check=True)


def processor():
    if platform.system() == "Darwin":
        return subprocess.check_output(["sysctl", "-n", "machdep.cpu.brand_string"], text=True).strip()
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("model name")]
    return names[0] if names else platform.machine()


def set_up():
    """Returns the setup command of MLX. Every figure depends on the build, for example a plain one or one for a GPU."""
    written = (ROOT / "target/native/cargo.toml").read_text()
    return written.split("`")[1]


def versions():
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    installed = {package.name for package in importlib.metadata.distributions()}
    others = {name: importlib.metadata.version(name) for name in PACKAGES if name in installed}
    machine = f"{os.cpu_count()} cores of {processor()}, {platform.system()}"
    return {"date": str(datetime.date.today()), "commit": commit, "machine": machine, "set-up": set_up(), "python": platform.python_version()} | others


def write(topic, results, described):
    text = f"## {topic.title}\n\n    cargo xtask bench {topic.name}\n\n{table(results)}\n"
    (OUTPUT / f"{topic.name}.md").write_text(text)
    (OUTPUT / f"{topic.name}.json").write_text(json.dumps({"versions": described, "figures": results.values}, indent=1))
    print(text, flush=True)


def chosen(kit, names):
    every = list(topics(kit))
    unknown = [name for name in names if not any(topic.name.startswith(name) for topic in every)]
    if unknown:
        sys.exit(f"error: no topic begins with {unknown[0]!r}; there are {', '.join(topic.name for topic in every)}")
    return [topic for topic in every if (topic.name.startswith(tuple(names)) if names else not topic.named_only)]


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask bench", description=__doc__.splitlines()[0])
    parser.add_argument("topics", nargs="*", help="the topics to measure, by prefixes of their names")
    parser.add_argument("--turns", type=int, help="runs of each program; overrides the topic")
    arguments = parser.parse_args()
    described = versions()
    print("  \n".join(f"{name}: {value}" for name, value in described.items()) + "\n", flush=True)
    kit = make_kit(for_a_gpu=bool(arguments.topics) and arguments.topics[0].startswith("gpu"))
    wanted = chosen(kit, arguments.topics)
    write_models(kit, wanted)
    for topic in wanted:
        tell(topic.name)
        results = compare(topic.contestants, arguments.turns or topic.turns, tell)
        topic.derive(results)
        write(topic, results, described)


main()
