"""mlx-vlm's generate_step on the load of bench/src/seeing.rs: `mlx_vlm_seeing.py MODEL`. It does not cache the features of known pictures."""

import io
import statistics
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
from load import prompt, report
from mlx_vlm.generate import generate_step
from mlx_vlm.utils import load_model
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

SIDE, PIXELS, QUESTION, TIMES = 1024, 32, 24, 3


def picture(turn):
    """Returns the PNG file of a picture."""
    y, x = np.mgrid[:SIDE, :SIDE]
    pixels = np.stack([x // 4, y // 4, (x * y // 512 + 37 * turn) % 256], axis=-1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def main():
    model, processor = load_model(Path(sys.argv[1])), Qwen2VLImageProcessorPil.from_pretrained(sys.argv[1])
    mx.eval(model.parameters())
    vocabulary = model.config.text_config.vocab_size

    def first_token(file, question):
        begin = time.perf_counter()
        inputs = processor(Image.open(io.BytesIO(file)).convert("RGB"), return_tensors="np")
        ids = [vocabulary - 2] + [vocabulary - 3] * (SIDE // PIXELS) ** 2 + [vocabulary - 1] + prompt(question, QUESTION, vocabulary)
        ids = mx.array([ids])
        rest = dict(image_grid_thw=mx.array(inputs["image_grid_thw"]))
        next(iter(generate_step(ids, model, mx.array(inputs["pixel_values"]), mx.ones_like(ids), max_tokens=1, temperature=0.0, **rest)))
        return (time.perf_counter() - begin) * 1e3

    first_token(picture(TIMES), 0)
    files = [picture(turn) for turn in range(TIMES)]
    report({"first token, a new picture, ms": statistics.median(first_token(file, 1) for file in files)})


main()
