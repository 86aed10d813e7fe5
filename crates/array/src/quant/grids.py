"""Writes grids.bin: the points that codes of the IQ1, IQ2 and IQ3 formats name, as the gguf package has them.

Run with gguf 0.17 or later: python grids.py

Grids follow one another in the order below, a point in two bytes, little-endian: of 8 numbers two bits each that say
which of the 3 magnitudes, of 4 numbers four bits each that say which of 8. The first number is the lowest.
"""
import pathlib

import gguf.quants as q

GRIDS = [q.IQ2_XXS, q.IQ2_XS, q.IQ2_S, q.IQ1_S, q.IQ3_XXS, q.IQ3_S]

with open(pathlib.Path(__file__).with_suffix(".bin"), "wb") as out:
    for kind in GRIDS:
        kind.init_grid()
        points, length = kind.grid_shape
        bits = 16 // length
        for point in kind.grid.reshape(points, length):
            digits = [kind.grid_map.index(int(x)) for x in point]
            out.write(sum(digit << bits * j for j, digit in enumerate(digits)).to_bytes(2, "little"))
        print(kind.__name__, points, kind.grid_map)
