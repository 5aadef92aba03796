"""Writes pillow.json and sizes.json: the results of Pillow and transformers for pictures and sizes that the tests generate too.

Run it with Pillow 13.0.0, numpy and transformers 5.24.0: python pillow.py
"""

import hashlib
import json
import random
from pathlib import Path

import numpy as np
from PIL import Image
from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size
from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

HERE = Path(__file__).parent
FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}


def picture(width, height, smooth):
    """Returns the picture of tests/pillow.rs: noise of a linear congruential generator, or slow triangle waves."""
    if smooth:
        y, x = np.mgrid[0:height, 0:width]
        bands = [abs((x * 7 + y * 3) % 510 - 255), abs((x * 2 + y * 5) % 510 - 255), (x * y // 16) % 256]
        return np.stack(bands, -1).astype(np.uint8)
    state, values = 1, []
    for _ in range(width * height * 3):
        state = (state * 1664525 + 1013904223) % 2**32
        values.append(state >> 24)
    return np.array(values, np.uint8).reshape(height, width, 3)


def resized():
    draw = random.Random(32)
    cases = [(50, 40, 50, 40), (1, 1, 7, 5), (90, 3, 2, 60), (64, 64, 64, 17), (64, 64, 17, 64), (9, 240, 8, 16)]
    while len(cases) < 240:
        most = 160 if len(cases) < 200 else 400
        cases.append(tuple(draw.randint(2, most) for _ in range(4)))
    rows = []
    for number, (width, height, to_width, to_height) in enumerate(cases):
        name = ["bicubic", "bilinear", "bicubic", "lanczos"][number % 4]
        smooth = number % 3 == 0
        made = Image.fromarray(picture(width, height, smooth)).resize((to_width, to_height), FILTERS[name])
        digest = hashlib.sha256(made.tobytes()).hexdigest()[:32]
        rows.append([width, height, to_width, to_height, name, smooth, digest])
    return rows


def attempt(rule):
    try:
        return [int(side) for side in rule()]
    except (ValueError, ZeroDivisionError):
        return None


def sizes():
    draw = random.Random(33)
    shapes = [(1, 1), (16, 16), (48, 80), (100, 20001), (1, 201), (3000, 4000), (1080, 1920), (1024, 1024), (1, 3000)]
    shapes += [(draw.randint(8, 5000), draw.randint(8, 5000)) for _ in range(100)]
    # Half multiples, where the rounding mode matters.
    shapes += [(16 * draw.randint(1, 99), 14 * draw.randint(1, 99)) for _ in range(100)]
    rows = []
    for height, width in shapes:
        blank = np.empty((height, width, 1), np.uint8)
        rows.append({
            "size": [height, width],
            "qwen3_vl": attempt(lambda: smart_resize(height, width, 32, 65536, 16777216)),
            "qwen2_vl": attempt(lambda: smart_resize(height, width, 28, 3136, 1003520)),
            "pixtral": attempt(lambda: get_resize_output_image_size(blank, 1024, 16, "channels_last")),
            "mistral3": attempt(lambda: get_resize_output_image_size(blank, 1540, 28, "channels_last")),
            "gemma4": attempt(lambda: get_aspect_ratio_preserving_size(height, width, 16, 280 * 9, 3)),
            "gemma4_70": attempt(lambda: get_aspect_ratio_preserving_size(height, width, 16, 70 * 9, 3)),
        })
    return rows


def write(name, rows):
    lines = ",\n".join(json.dumps(row) for row in rows)
    (HERE / name).write_text(f"[\n{lines}\n]\n")


write("pillow.json", resized())
write("sizes.json", sizes())
