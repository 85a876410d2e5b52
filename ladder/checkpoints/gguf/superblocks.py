# SPDX-License-Identifier: Apache-2.0
"""Scales and minima that lie on the grid of a k-quant (:mod:`ladder.grids`), as its superblocks
have them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ladder.grids import COLUMNS, GRIDS, Grid
from ladder.types import TType
from ladder.weight import Weight

#: Superblocks at once.
_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Levels:
    """Of S superblocks: numbers are ``d * many``."""

    d: Tensor  #: float16 [S, 1]
    many: Tensor  #: uint8 [S, G], two's complement


def grid_of(ttype: TType) -> Grid | None:
    """The grid on which scales and zeros of such a weight may lie."""
    return next((grid for grid in GRIDS.values() if grid.spelling == str(ttype)), None)


def levels_on(weight: Weight, grid: Grid) -> tuple[Levels, Levels | None] | None:
    """The two levels of the scales of a weight, and of its zeros where the grid has minima; None
    where one superblock is not on the grid. K is a multiple of 256."""
    assert weight.scales is not None
    superblocks = weight.shape[1] // COLUMNS
    scales = _levels(_in_superblocks(weight.scales, superblocks), grid.least, grid.most)
    if scales is None or not grid.minima:
        return None if scales is None else (scales, None)
    assert weight.zeros is not None
    minima = _levels(_in_superblocks(weight.zeros, superblocks), 0, grid.minima)
    return None if minima is None else (scales, minima)


def _in_superblocks(numbers: Tensor, superblocks: int) -> Tensor:
    return numbers.reshape(len(numbers) * superblocks, -1)


def _levels(numbers: Tensor, least: int, most: int) -> Levels | None:
    found = []
    for some in numbers.split(_AT_ONCE):
        levels = _of_some(some, least, most)
        if levels is None:
            return None
        found.append(levels)
    return Levels(torch.cat([f.d for f in found]), torch.cat([f.many for f in found]))


def _of_some(numbers: Tensor, least: int, most: int) -> Levels | None:
    """[S, G] float32 -> d and integers whose products they are to the bit: the largest magnitude
    is d times one of few integers, and each is tried."""
    largest = numbers.gather(1, numbers.abs().argmax(1, keepdim=True))
    d = torch.zeros_like(largest, dtype=torch.float16)
    many = torch.zeros_like(numbers, dtype=torch.uint8)
    (left,) = (largest[:, 0] != 0).nonzero(as_tuple=True)
    integers = sorted({*range(least, most + 1)} - {0}, key=abs, reverse=True)
    for integer in integers:
        if not len(left):
            break
        own = numbers[left]
        step = (largest[left] / integer).half()
        counts = (own / step.float()).round_()
        exact = (counts * step.float() == own) & (counts >= least) & (counts <= most)
        of = exact.all(1)
        d[left[of]] = step[of]
        many[left[of]] = counts[of].to(torch.int8).view(torch.uint8)
        left = left[~of]
    return None if len(left) else Levels(d, many)
