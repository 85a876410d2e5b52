# SPDX-License-Identifier: Apache-2.0
"""The k-quants of llama.cpp, as numbers on which scales and minima of a tType may lie."""

from __future__ import annotations

from dataclasses import dataclass

#: Columns of one superblock.
COLUMNS = 256


@dataclass(frozen=True)
class Grid:
    """Two levels of scales: in a superblock of 256 columns of a row the scale of a group is an
    integer times a float16 d, and what is subtracted of its values, an integer times another.

    Attributes:
        bits: of a weight in a file, both levels included.
        spelling: the tType that holds such weights, with the products in float32, which are exact.
        least, most: of the integers that scales are of.
        minima: the largest integer that what is subtracted is of, the least is 0; 0 where the
            format has no minima.
    """

    name: str
    bits: float
    spelling: str
    least: int
    most: int
    minima: int = 0

    def objection(self, k: int) -> str:
        """Why rows of ``k`` columns have no such superblocks; "" where they have."""
        if k % COLUMNS == 0:
            return ""
        return f"{self.name} has superblocks of {COLUMNS} columns, which do not divide K, {k}"


_GRIDS = (
    Grid("q2_k", 2.625, "uint2,group=16,scale=float32,zero=rescale", 0, 15, 15),
    Grid("q3_k", 3.4375, "uint3,group=16,scale=float32,zero=midpoint", -32, 31),
    Grid("q4_k", 4.5, "uint4,group=32,scale=float32,zero=rescale", 0, 63, 63),
    Grid("q5_k", 5.5, "uint5,group=32,scale=float32,zero=rescale", 0, 63, 63),
    Grid("q6_k", 6.5625, "uint6,group=16,scale=float32,zero=midpoint", -128, 127),
)
#: Source: the k-quants' block structs (ggml-common.h) of llama.cpp.
GRIDS = {grid.name: grid for grid in _GRIDS}
