"""Writes golden/blocks.bin and golden/header.gguf.

    pip install gguf==0.19.0 numpy
    python make_golden.py

blocks.bin: per type the u32 type number, the u32 count of blocks, the blocks, and the f32 value of each element as the package `gguf` dequantizes it.
The package has no code for Q1_0 and Q2_0; their values are computed here: a bit selects d or -d, and a 2-bit code c means (c - 1) d.
header.gguf: metadata of every value type and three tensors, written by the package.
"""

import pathlib

import gguf
import numpy as np

FOLDER = pathlib.Path(__file__).parent / "golden"
random = np.random.default_rng(20)

# name, type number, elements, bytes of a block, offsets of 16-bit floats
TYPES = [
    ("Q4_0", 2, 32, 18, [0]), ("Q4_1", 3, 32, 20, [0, 2]), ("Q5_0", 6, 32, 22, [0]), ("Q5_1", 7, 32, 24, [0, 2]),
    ("Q8_0", 8, 32, 34, [0]), ("Q2_K", 10, 256, 84, [80, 82]), ("Q3_K", 11, 256, 110, [108]),
    ("Q4_K", 12, 256, 144, [0, 2]), ("Q5_K", 13, 256, 176, [0, 2]), ("Q6_K", 14, 256, 210, [208]),
    ("IQ4_NL", 20, 32, 18, [0]), ("IQ4_XS", 23, 256, 136, [0]), ("TQ1_0", 34, 256, 54, [52]),
    ("TQ2_0", 35, 256, 66, [64]), ("MXFP4", 39, 32, 17, []), ("NVFP4", 40, 64, 36, []),
    ("Q1_0", 41, 128, 18, [0]), ("Q2_0", 42, 64, 18, [0]),
]


def dequantize(name, number, blocks):
    if name in ("Q1_0", "Q2_0"):
        d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        bits = 1 if name == "Q1_0" else 2
        codes = (blocks[:, 2:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & (2**bits - 1)
        codes = codes.reshape(len(blocks), -1).astype(np.float32)
        return np.where(codes == 1, d, -d) if bits == 1 else (codes - 1) * d
    return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(number))


with open(FOLDER / "blocks.bin", "wb") as out:
    for name, number, elements, size, floats in TYPES:
        count = 2 if elements == 256 else 4
        blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
        if name == "MXFP4":
            blocks[:, 0] = [0, 1, 120, 130]
        if name == "NVFP4":
            blocks[:, 0] = [127, 200, 1, 130]
            blocks[:, 1:4] &= 127
        for place in floats:
            blocks[:, place:place + 2] = random.normal(0, 0.02, (count, 1)).astype(np.float16).view(np.uint8)
        values = dequantize(name, number, blocks).astype("<f4")
        assert values.size == count * elements, name
        out.write(np.array([number, count], "<u4").tobytes() + blocks.tobytes() + values.tobytes())

writer = gguf.GGUFWriter(FOLDER / "header.gguf", "llama")
writer.add_uint8("test.u8", 200)
writer.add_int8("test.i8", -100)
writer.add_uint16("test.u16", 60000)
writer.add_int16("test.i16", -30000)
writer.add_uint32("test.u32", 4_000_000_000)
writer.add_int32("test.i32", -2_000_000_000)
writer.add_uint64("test.u64", 2**64 - 1)
writer.add_int64("test.i64", -(2**63))
writer.add_float32("test.f32", 0.5)
writer.add_float64("test.f64", 0.1)
writer.add_bool("test.bool", True)
writer.add_string("test.string", "häß 😀")
writer.add_array("test.integers", [1, -2, 3])
writer.add_array("test.floats", [0.25, -1.5])
writer.add_array("test.bools", [True, False])
writer.add_array("test.strings", ["a", "", "ß"])
writer.add_custom_alignment(64)
writer.add_tensor("matrix", np.arange(6, dtype=np.float32).reshape(2, 3))
writer.add_tensor("halves", np.array([1.5, -2], np.float16))
blocks = random.integers(0, 256, (2, 36), dtype=np.uint8)
writer.add_tensor("q4", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
