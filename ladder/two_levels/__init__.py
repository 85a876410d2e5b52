# SPDX-License-Identifier: Apache-2.0
"""Quantising to superblocks: scales, and zeros "rescale", are integers of floats that a superblock
has (docs/format.md), as in the k-quants of llama.cpp."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from ladder import ops
from ladder.errors import InvalidArgument
from ladder.ops.superblocks import integers_as_codes
from ladder.two_levels.levels import Levels
from ladder.two_levels.rounded import rounded
from ladder.two_levels.search import Search, is_searched
from ladder.types import TType
from ladder.weight import Weight

_log = logging.getLogger("ladder")

#: Weights at once: what a core's cache holds, and what keeps a GPU busy.
_AT_ONCE, _AT_ONCE_ON_GPUS = 1 << 18, 1 << 24


def in_superblocks(source: Tensor, ttype: TType, whose: str = "") -> Weight:
    """Quantise to the nearest codes.

    Both levels of scales, and of zeros "rescale", are searched together for unsigned integers with
    zero "midpoint" or "rescale". Of other types scales are found as floats first, and rounded.

    Args:
        source: [N, K] float32.
        ttype: with superblocks.
        whose: the name of the module, for warnings.
    Raises:
        InvalidArgument: K is no multiple of the superblock; a weight that is not finite, with its
            place, or beyond what the scales can reach, or so small that all of it would be zero.
    """
    n, k = source.shape
    if why := ttype.superblock_objection(k):
        raise InvalidArgument(why)
    _check_finite(source)
    _check_reach(source, ttype)
    blocks = source.view(-1, ttype.superblock)
    step = max(1, (_AT_ONCE_ON_GPUS if source.is_cuda else _AT_ONCE) // ttype.superblock)
    of_some = _searched if is_searched(ttype) else rounded
    made = [of_some(some, ttype) for some in blocks.split(step)]
    codes = torch.cat([each.codes for each in made])
    integers = torch.cat([each.many for each in made])
    less = [each.less for each in made if each.less is not None]
    zeros = torch.cat(less).view(n, -1) if less else None
    if zeros is not None and ttype.zero == "rescale":
        zeros = integers_as_codes(zeros, ttype)
    elif zeros is not None and ttype.zero == "quantized":
        zeros = ops.pack(zeros, ttype.bits)
    packed = Weight(
        ttype,
        (n, k),
        ops.pack(codes.view(n, k), ttype.bits),
        scales=integers_as_codes(integers, ttype).view(n, -1),
        zeros=zeros,
        scale2=torch.cat([each.seconds for each in made]).view(n, -1),
    )
    _check_left(blocks, packed, whose)
    return packed


def _check_finite(source: Tensor) -> None:
    finite = source.isfinite()
    if not bool(finite.all()):
        row, column = (~finite).nonzero()[0].tolist()
        value = source[row, column].item()
        raise InvalidArgument(
            f"weight at row {row}, column {column} is {value}, not a finite number"
        )


def _largest(ttype: TType) -> float:
    """Of the numbers that scales can be."""
    assert ttype.grid is not None and ttype.scale2_dtype is not None
    return torch.finfo(ttype.scale2_dtype).max * ttype.grid.most


def _check_reach(source: Tensor, ttype: TType) -> None:
    """Raise InvalidArgument where the format of second scales ends before scales or minima do."""
    most, reach = source.abs().max().item(), _largest(ttype)
    if most > reach:
        raise InvalidArgument(
            f"weight has magnitudes up to {most:.3g}, beyond {ttype}, whose scales are "
            f"multiples of {ttype.scale2}: {reach:.3g}"
        )


def _check_left(blocks: Tensor, packed: Weight, whose: str) -> None:
    """Raise InvalidArgument where nothing is left of a weight; warn where nothing is of single
    superblocks."""
    ttype, most = packed.type, blocks.abs().amax(1)
    numbers = [n for n in (packed.float_scales(), packed.float_zeros()) if n is not None]
    of_blocks = [(n == 0).view(len(blocks), -1).all(1) for n in numbers]
    gone = (most > 0) & torch.stack(of_blocks).all(0)
    if not bool(gone.any()):
        return
    what = (
        f"magnitudes up to {most[gone].max().item():.3g}, too small for {ttype}, whose scales "
        f"are multiples of {ttype.scale2}"
    )
    if bool((gone | (most == 0)).all()):
        raise InvalidArgument(f"weight has {what}: all would be zero")
    count = int(gone.sum())
    _log.warning(
        "%s%d of %d superblocks of a weight have %s: they become zero",
        *(whose, count, len(gone), what),
    )


def _searched(blocks: Tensor, ttype: TType) -> Levels:
    return Search(blocks, ttype).levels()
