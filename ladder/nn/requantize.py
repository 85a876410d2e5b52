# SPDX-License-Identifier: Apache-2.0
"""A packed weight whose values have changed a little, quantised anew to the type that it has.

Its values are on the grid of their codes. A change of less than half a step, as most adapters make,
is therefore gone when each sum takes its nearest code: not part of it at random, but all of it. So
codes go on in the direction of the change, to the next value at most: those that are nearest to the
weight plus the change times a factor, one for each row, with which the row has moved along its
change as far as it was to. That is the least that all weights of a row can move for it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ladder import ops
from ladder.compensation import levels_of, step_and_shift
from ladder.errors import Unsupported
from ladder.quantization import quantize
from ladder.weight import Weight

#: Weights of which rows are looked at together: some hundred bytes each.
_AT_ONCE = 1 << 21


def requantized(values: Tensor, like: Weight) -> Weight:
    """``values``, those of ``like`` and a change, of the type of ``like``: its groups, kinds of
    scales and zero points, and its act-order. Scales are found as :func:`ladder.quantize` does.

    Args:
        values: [N, K], float32, finite.
    Raises:
        InvalidArgument: as :func:`ladder.quantize`.
        Unsupported: columns that the ``g_idx`` of ``like`` gives to a group are more or fewer than
            the type has.
    """
    before = like.dequantize()
    if like.g_idx is None:
        return _moved(quantize(values, like.type), before, values - before)
    order = like.g_idx.argsort(stable=True)
    k, size = len(order), like.type.group_size
    of_type = torch.arange(k, device=order.device) // (size if size > 0 else k)
    if not torch.equal(like.g_idx[order].to(of_type.dtype), of_type):
        counts = like.g_idx.bincount()
        raise Unsupported(
            f"g_idx gives {int(counts.max())} columns to group {int(counts.argmax())}, and groups "
            f"of {like.type} have {size}: such a weight is not quantised anew"
        )
    change = (values - before)[:, order]
    packed = _moved(quantize(values[:, order], like.type), before[:, order], change)
    codes = torch.empty_like(packed.codes())
    codes[:, order] = packed.codes()
    return replace(packed, qweight=ops.pack(codes, like.type.bits), g_idx=like.g_idx)


def _moved(packed: Weight, before: Tensor, change: Tensor) -> Weight:
    """``packed``, whose codes are nearest to ``before + change``, with codes that go on."""
    if packed.type.bits > 8:
        return packed
    levels, code_of = (tensor.to(change.device) for tensor in levels_of(packed.type))
    step, shift = step_and_shift(packed, levels, code_of)
    rows, made = max(1, _AT_ONCE // change.shape[1]), []
    pieces = (tensor.split(rows) for tensor in (before, change, step, shift))
    for old, by, unit, zero in zip(*pieces, strict=True):
        made.append(code_of[_levels(old, by, unit, zero, levels)])
    return replace(packed, qweight=ops.pack(torch.cat(made), packed.type.bits))


def _levels(before: Tensor, change: Tensor, step: Tensor, shift: Tensor, levels: Tensor) -> Tensor:
    """[rows, K]: which of ``levels`` each weight has."""
    inverse = torch.where(step == 0, 0, 1 / step)
    middles = (levels[1:] + levels[:-1]) / 2
    at = torch.bucketize(((before + change - shift) * inverse).contiguous(), middles)
    on = (at + torch.sign(change * step).long()).clamp(0, len(levels) - 1)
    gain = (levels[on] - levels[at]) * step * change
    # By what factor the change would have to be larger for the code to be the next one.
    factor = ((levels[on] + levels[at]) / 2 * step + shift - before) / change
    order = torch.where(gain > 0, factor, torch.inf).argsort(1)
    gained = gain.gather(1, order).clamp(min=0).cumsum(1)
    wanted = ((before + change - levels[at] * step - shift) * change).sum(1, keepdim=True)
    # As many as bring the row nearest to what is wanted.
    half = gain.gather(1, order).clamp(min=0) / 2
    goes = (gained - half < wanted) & (half > 0)
    return torch.where(torch.zeros_like(goes).scatter(1, order, goes), on, at)
