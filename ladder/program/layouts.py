# SPDX-License-Identifier: Apache-2.0
"""How the threads of a block hold a tile."""

from __future__ import annotations

from ladder._C import program as _core
from ladder.types import _checked

Layout = _core.Layout
Index = _core.Index


def local(*shape: int) -> Layout:
    """One thread holds the whole tile, row-major."""
    return _core.local(shape)


def spatial(*shape: int) -> Layout:
    """One element per thread, row-major over the threads."""
    return _core.spatial(shape)


def column_local(*shape: int) -> Layout:
    """:func:`local` with the first dimension running fastest."""
    return _core.column_local(shape)


def column_spatial(*shape: int) -> Layout:
    """:func:`spatial` with the first dimension running fastest."""
    return _core.column_spatial(shape)


def replicated(count: int, rank: int = 2) -> Layout:
    """``count`` threads that all hold the one element of a tile of ``rank`` dimensions."""
    return _core.replicated(count, rank)


def operand(type: str, which: str) -> Layout:
    """How a warp holds an operand of the matrix instruction of "f16" or "bf16": "a" [1, 16, 16],
    "b" [1, 8, 16], the sum "d" [1, 16, 8]. The first dimension is there for several warps:
    ``spatial(4, 1, 1) * operand("f16", "a")``."""
    return _checked(_core.operand, type, which)
