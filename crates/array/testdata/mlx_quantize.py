"""Writes mlx_quantize.bin: rows, what mx.quantize makes of them on the CPU, and what mx.dequantize
makes of that in f32. Run with mlx 0.32.4: python mlx_quantize.py

A case: mode (0 affine, 1 mxfp4, 2 mxfp8, 3 nvfp4), bits, group, float type of the row (0 f32,
1 f16, 2 bf16), a byte each; then the row (256 f32), the packed codes, the scales (affine: f32, else a byte
each), of affine the biases (f32), and the numbers (256 f32; f32 rows only).
"""
import pathlib

import mlx.core as mx
import numpy as np

COLS = 256
FLOATS = [mx.float32, mx.float16, mx.bfloat16]
MODES = ["affine", "mxfp4", "mxfp8", "nvfp4"]

mx.set_default_device(mx.cpu)
rng = np.random.default_rng(1)


def row(tiny):
    x = rng.standard_normal(COLS) * np.exp2(rng.uniform(-8, 4)) + rng.uniform(-0.5, 0.5)
    x[32:64] = np.abs(x[32:64]) + 0.25
    x[64:96] = 0
    x[96:128] = 0.75
    x[128:160] = -np.abs(x[128:160])
    x[160:192] *= 1e-3
    # Ties of every sort around a peak that is a power of two times the largest code.
    x[192:224] = np.arange(32) * 0.125 * 448 / 4 - 224
    x[224:256] = np.clip(np.arange(32) * 0.25 - 4, -6, 6)
    if tiny:
        x *= 2.0**-18
    return x.astype(np.float32)


def case(out, mode, bits, group, float_type, tiny):
    x = mx.array(row(tiny)[None]).astype(FLOATS[float_type])
    codes, scales, *biases = mx.quantize(x, group_size=group, bits=bits, mode=MODES[mode])
    out.write(bytes([mode, bits, group, float_type]))
    out.write(np.array(x.astype(mx.float32)).tobytes())
    out.write(np.array(codes).tobytes())
    kept = [scales, *biases]
    out.write(b"".join(
        np.array(t if mode else t.astype(mx.float32)).tobytes() for t in kept if t is not None
    ))
    if float_type == 0:
        y = mx.dequantize(codes, scales, *biases, group_size=group, bits=bits, mode=MODES[mode],
                          dtype=mx.float32)
        out.write(np.array(y).tobytes())


with open(pathlib.Path(__file__).with_suffix(".bin"), "wb") as out:
    for at, bits in enumerate([1, 2, 3, 4, 5, 6, 8]):
        for float_type in range(3):
            case(out, 0, bits, [32, 64, 128][(at + float_type) % 3], float_type, False)
    for mode, bits, group in [(1, 4, 32), (2, 8, 32), (3, 4, 16)]:
        for float_type in range(3):
            for tiny in [False, True]:
                case(out, mode, bits, group, float_type, tiny)
print("mlx", mx.__version__)
