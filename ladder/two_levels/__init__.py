# SPDX-License-Identifier: Apache-2.0
"""Quantising with scales and minima on the grid of a k-quant of llama.cpp (:mod:`ladder.grids`)."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from ladder import ops
from ladder.errors import InvalidArgument
from ladder.grids import COLUMNS, Grid
from ladder.two_levels.search import Search
from ladder.types import TType, parse
from ladder.weight import Weight

_log = logging.getLogger("ladder")

#: Weights at once: what a core's cache holds, and what keeps a GPU busy.
_AT_ONCE, _AT_ONCE_ON_GPUS = 1 << 18, 1 << 24
_LARGEST_HALF = torch.finfo(torch.float16).max


def on_grid(source: Tensor, ttype: TType, whose: str = "") -> Weight:
    """Quantise to the nearest codes, with scales and zeros on the grid of ``ttype``.

    Args:
        source: [N, K] float32.
        whose: the name of the module, for warnings.
    Returns:
        A weight whose type, of the same spelling, has no grid.
    Raises:
        InvalidArgument: K is no multiple of 256; a weight that is not finite, with its place, or
            beyond what the scales can reach, or so small that all of it would be zero.
    """
    grid, (n, k) = ttype.grid, source.shape
    assert grid is not None
    if why := grid.objection(k):
        raise InvalidArgument(why)
    _check_finite(source)
    blocks = source.view(-1, COLUMNS)
    _check_reach(blocks, grid)
    step = max(1, (_AT_ONCE_ON_GPUS if source.is_cuda else _AT_ONCE) // COLUMNS)
    parts = [Search(some, ttype, grid).parts() for some in blocks.split(step)]
    codes, scales, zeros = (torch.cat(each) for each in zip(*parts, strict=True))
    packed = Weight(
        parse(str(ttype)),
        (n, k),
        ops.pack(codes.view(n, k), ttype.bits),
        scales=scales.view(n, -1).contiguous(),
        zeros=zeros.view(n, -1).contiguous() if grid.minima else None,
    )
    _check_left(blocks, (scales == 0).all(1) & (zeros == 0).all(1), grid, whose)
    return packed


def _check_finite(source: Tensor) -> None:
    finite = source.isfinite()
    if not bool(finite.all()):
        row, column = (~finite).nonzero()[0].tolist()
        value = source[row, column].item()
        raise InvalidArgument(
            f"weight at row {row}, column {column} is {value}, not a finite number"
        )


def _check_reach(blocks: Tensor, grid: Grid) -> None:
    """Raise InvalidArgument where float16 ends before the scales or minima do."""
    most, reach = blocks.abs().max().item(), _LARGEST_HALF * grid.most
    if most > reach:
        raise InvalidArgument(
            f"weight has magnitudes up to {most:.3g}, beyond {grid.name}, whose scales are "
            f"multiples of float16: {reach:.3g}"
        )


def _check_left(blocks: Tensor, zero: Tensor, grid: Grid, whose: str) -> None:
    """Raise InvalidArgument where nothing is left of a weight, its superblocks ``zero``; warn where
    nothing is of single ones."""
    most = blocks.abs().amax(1)
    gone = (most > 0) & zero
    if not bool(gone.any()):
        return
    what = (
        f"magnitudes up to {most[gone].max().item():.3g}, too small for {grid.name}, whose scales "
        "are multiples of float16"
    )
    if bool((gone | (most == 0)).all()):
        raise InvalidArgument(f"weight has {what}: all would be zero")
    count = int(gone.sum())
    _log.warning(
        "%s%d of %d superblocks of a weight have %s: they become zero",
        *(whose, count, len(gone), what),
    )
