"""Prints what src/quant/tests.rs compares with: for each GGUF format a hash of the numbers that the gguf package makes
of the test's pattern of bytes. Run with gguf 0.17 or later: python gguf_blocks.py

The pattern is a linear congruential generator's top bytes, with the exponents of floats made small. The hash is 64-bit
FNV-1a of the numbers as f32, little-endian, zeros without a sign. Formats of grids have enough blocks for every point.
"""
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

# Format: blocks, and the high bytes of its f16 scales; other floats are tamed below.
FORMATS = {
    "Q4_0": (4, [1]), "Q4_1": (4, [1, 3]), "Q5_0": (4, [1]), "Q5_1": (4, [1, 3]), "Q8_0": (4, [1]),
    "Q2_K": (4, [81, 83]), "Q3_K": (4, [109]), "Q4_K": (4, [1, 3]), "Q5_K": (4, [1, 3]), "Q6_K": (4, [209]),
    "IQ4_NL": (4, [1]), "IQ4_XS": (4, [1]), "MXFP4": (4, []), "TQ1_0": (4, [53]), "TQ2_0": (4, [65]),
    "IQ1_S": (512, [1]), "IQ1_M": (512, []), "IQ2_XXS": (512, [1]), "IQ2_XS": (512, [1]), "IQ2_S": (512, [1]),
    "IQ3_XXS": (512, [1]), "IQ3_S": (512, [1]),
}


def pattern(name, blocks, halves):
    kind = GGMLQuantizationType[name]
    size = GGML_QUANT_SIZES[kind][1]
    state, out = 1, np.empty(blocks * size, np.uint8)
    for i in range(len(out)):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        out[i] = state >> 24
    out = out.reshape(blocks, size)
    for at in halves:
        out[:, at] = out[:, at] & 0x83 | 0x24
    if name == "MXFP4":
        out[:, 0] = out[:, 0] & 7 | 0x78
    if name == "IQ1_M":
        out[:, 55] = out[:, 55] & 0x8F | 0x20
        out[:, 53] = out[:, 53] & 0x3F | 0x40
    return kind, out.reshape(-1)


def fingerprint(numbers):
    value = 0xCBF29CE484222325
    for byte in (numbers.astype("<f4") + np.float32(0)).tobytes():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


for name, (blocks, halves) in FORMATS.items():
    kind, data = pattern(name, blocks, halves)
    hexes = f"{fingerprint(dequantize(data, kind)):016x}"
    print(f"(Format::{name}, {blocks}, 0x{'_'.join(hexes[i:i + 4] for i in range(0, 16, 4))}),")
