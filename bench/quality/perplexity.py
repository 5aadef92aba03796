"""The perplexity of two texts by format of the weights and type of the cache, computed by `mlx score`."""

import json
import math
import subprocess
from dataclasses import dataclass

from quality import floats

LENGTH = 10_000
AFFINE = [8, 6, 5, 4, 3, 2]
MODES = ["mxfp8", "mxfp4", "nvfp4"]
# The larger model takes three times as long.
FORMATS = {
    "smollm2": ["converted", "f32", "bf16", *map(str, AFFINE), *MODES],
    "gemma3": ["f32", "8", "4"],
}
CACHE_BITS = [8, 4]


def texts(root):
    """Returns the texts by name: our notes, and a licence that the models have read many times."""
    notes = "\n".join(path.read_text() for path in sorted((root / "docs/decisions").glob("*.md")))
    return {"notes": notes[:LENGTH], "licence": (root / "LICENSE-APACHE").read_text()[:LENGTH]}


@dataclass
class Formats:
    """The folders of one model's formats, made on first use."""

    mlx: str
    file: object
    folder: object

    def path(self, name):
        """Returns the model in this format: the GGUF file itself, or a folder."""
        if name == "gguf":
            return self.file
        target = self.folder / name
        if not (target / "config.json").exists():
            partial = target.with_name(f"{name}.partial")
            subprocess.run(["rm", "-rf", partial, target], check=True)
            self.write(name, partial)
            partial.rename(target)
        return target

    def write(self, name, target):
        if name == "converted":
            self.convert(self.file, target)
        elif name == "f32":
            floats.write(self.file, self.path("converted"), target)
        elif name == "bf16":
            self.convert(self.path("f32"), target, "--dtype", "bf16")
        elif name.isdecimal():
            self.convert(self.path("bf16"), target, "--bits", name)
        else:
            self.convert(self.path("bf16"), target, "--mode", name)

    def convert(self, source, target, *options):
        quality = ["--no-quality"] if options else []
        subprocess.run([self.mlx, "convert", source, "--output", target, *options, *quality], check=True, stdout=subprocess.DEVNULL)


def score(mlx, model, text, *options):
    """Returns the ids and the log-probabilities of a text's tokens; the first token has none."""
    command = [mlx, "score", model, "--file", "-", "--json", *options]
    done = subprocess.run(command, check=True, input=text, stdout=subprocess.PIPE, text=True)
    scored = json.loads(done.stdout)
    assert scored["windows"] == 1, "the text has to fit into the context"
    return [token["id"] for token in scored["tokens"]], [token["logprob"] for token in scored["tokens"][1:]]


def figures(logprobs):
    return {"tokens": len(logprobs), "total": sum(logprobs)}


def perplexity(*parts):
    return math.exp(-sum(part["total"] for part in parts) / sum(part["tokens"] for part in parts))


def key(model, format, *rest):
    """Returns the name of a result."""
    return " ".join(["perplexity", model, format, *rest])


def size(model):
    """Returns the bytes of a model's weights."""
    files = [model] if model.is_file() else model.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)
