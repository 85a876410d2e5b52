# SPDX-License-Identifier: Apache-2.0
"""Superblocks of any element: scales as floats first, then the integers nearest to them."""

from __future__ import annotations

import torch
from torch import Tensor

from ladder import _library, ops
from ladder.compensation import levels_of, step_and_shift
from ladder.ops.superblocks import integers_as_codes
from ladder.two_levels.levels import Levels
from ladder.types import TType, _checked, parse
from ladder.weight import Weight


def rounded(blocks: Tensor, ttype: TType) -> Levels:
    """Of superblocks [B, columns] float32. Codes are the nearest ones, chosen anew when scales
    have been rounded."""
    floats = parse(f"{ttype.element.name},group={ttype.columns},scale=float32,zero={ttype.zero}")
    if blocks.is_cuda:
        _library.find_compiler()
    qweight, scales, zeros, _ = _checked(torch.ops.ladder.quantize, blocks, str(floats), True)
    grid, dtype = ttype.grid, ttype.scale2_dtype
    assert grid is not None and dtype is not None
    # The side with one integer more is that of the largest scale.
    d, many = _integers(scales, grid.least, grid.most, dtype)
    seconds, less = d, None
    if ttype.zero == "rescale":
        e, less = _integers(zeros, grid.least, grid.minima, dtype)
        seconds = torch.cat((d, e), 1)
        zeros = integers_as_codes(less, ttype)
    elif ttype.zero == "quantized":
        less = ops.unpack(zeros, many.shape[1], ttype.bits)
    elif ttype.zero == "integer":
        less = zeros
    stored = None if less is None else zeros
    count, columns = blocks.shape
    packed = Weight(
        ttype, (count, columns), qweight, integers_as_codes(many, ttype), stored, seconds
    )
    return Levels(_nearest(blocks, packed), many, less, seconds)


def _integers(numbers: Tensor, least: int, most: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[B, G] float32 -> [B, 1] of ``dtype`` and whole numbers whose products are nearest."""
    largest = numbers.gather(1, numbers.abs().argmax(1, keepdim=True))
    second = (largest / (least if -least > most else most)).to(dtype)
    ratio = torch.where(second == 0, 0, numbers / second.float())
    return second, ratio.round().clamp(least, most)


def _nearest(blocks: Tensor, packed: Weight) -> Tensor:
    """Codes uint8 [B, columns] of the values nearest to ``blocks``."""
    levels, code_of = (each.to(blocks.device) for each in levels_of(packed.type))
    step, shift = step_and_shift(packed, levels, code_of)
    ratio = torch.where(step == 0, 0, (blocks - shift) / step)
    middles = (levels[1:] + levels[:-1]) / 2
    return code_of[torch.bucketize(ratio, middles)]
