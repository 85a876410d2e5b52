# SPDX-License-Identifier: Apache-2.0
"""Tile programs written by hand: a kernel as a value that is printed, proved and run.

    from ladder import program as tile

    p = tile.Builder("doubled", grid=(4, 1), threads=64)
    x, y = p.input("x", "f32", (4, 256)), p.output("y", "f32", (4, 256))
    values = p.load(x, (p.x, 0), tile.spatial(1, 64) * tile.local(1, 4))
    p.store(values + values, y, (p.x, 0))
    doubled = p.build()
    doubled(torch.rand(4, 256), out := torch.empty(4, 256))

On CPU tensors the interpreter runs it and names the instruction that reads too early, overwrites
too early or leaves memory; on CUDA tensors the same program runs as a kernel. docs/programs.md is
the tour; csrc/program has the instructions with their rules.
"""

from __future__ import annotations

from ladder.program.builder import Builder, Tile
from ladder.program.layouts import (
    Index,
    Layout,
    column_local,
    column_spatial,
    local,
    operand,
    replicated,
    spatial,
)
from ladder.program.program import DTYPES, TOKENS, Program

__all__ = [
    "DTYPES",
    "TOKENS",
    "Builder",
    "Index",
    "Layout",
    "Program",
    "Tile",
    "column_local",
    "column_spatial",
    "local",
    "operand",
    "replicated",
    "spatial",
]
