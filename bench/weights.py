"""Runs a command on a model with weights of a given type: `weights.py MLX MODEL TYPE COMMAND WITH {model}`. The model is written if missing, and
the conversion is stored next to it. With the type f32 or `as written`, the original model is used."""

import pathlib
import subprocess
import sys

TYPES = {"bf16": ["--dtype", "bf16"], "f16": ["--dtype", "f16"]}
TYPES |= {f"{bits} bits": ["--bits", str(bits), "--dtype", "bf16"] for bits in (2, 3, 4, 5, 6, 8)}
TYPES |= {mode: ["--mode", mode, "--dtype", "bf16"] for mode in ("mxfp4", "mxfp8", "nvfp4")}


def main():
    program, model, kind, *command = sys.argv[1:]
    source = pathlib.Path(model)
    if not (source / "config.json").exists():
        subprocess.run([sys.executable, pathlib.Path(__file__).with_name("models.py"), source.parent, source.name], check=True)
    folder = source if kind in ("f32", "as written") else source.with_name(f"{source.name}-{kind.replace(' ', '-')}")
    if not (folder / "config.json").exists():
        subprocess.run([program, "convert", model, "--output", folder, "--force", *TYPES[kind]], check=True, stdout=sys.stderr)
    subprocess.run([part.replace("{model}", str(folder)) for part in command], check=True)


if __name__ == "__main__":
    main()
