# SPDX-License-Identifier: Apache-2.0
"""Weights that are rounded to the nearest level of their scale, with gradients for the scale, too:
learned step sizes (Esser et al., arXiv 1902.08153), with zero points (LSQ+, Bhalgat et al., arXiv
2004.09576) and for levels at any distance from each other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ladder.compensation import levels_of
from ladder.types import TType

_MOST = torch.finfo(torch.float32).max
#: Elements that a CPU rounds at once: 256 KiB for each of some intermediate results.
_PART = 1 << 16


class Levels(NamedTuple):
    """The finite values of a type's codes, each once and in order."""

    values: tuple[float, ...]
    even: bool  #: each is one more than the one before
    shifts: bool  #: zero points are subtracted from values, not from levels

    @classmethod
    def of(cls, ttype: TType) -> Levels:
        levels = levels_of(ttype)[0]
        even = bool((levels.diff() == 1).all())
        return cls(tuple(levels.tolist()), even, ttype.zero == "rescale")

    def middle(self) -> float:
        """Between the least and the largest."""
        return (self.values[0] + self.values[-1]) / 2

    def half(self) -> float:
        """How far both are from the middle."""
        return (self.values[-1] - self.values[0]) / 2


class _Scale(NamedTuple):
    """Of the elements of a group, shapes that broadcast to theirs.

    Attributes:
        step: of two levels a distance of 1 apart.
        zero: in units of a step, or of values where ``Levels.shifts``.
    """

    step: Tensor
    zero: Tensor


def nearest(elements: Tensor, scale: _Scale, levels: Levels) -> tuple[Tensor, Tensor]:
    """Elements in units of their step, and the level that is nearest to each."""
    step, zero = scale
    inverse = torch.where(step == 0, 0, 1 / step).clamp(-_MOST, _MOST)  # times zero it is zero
    zero = zero * inverse if levels.shifts else zero
    ratio = torch.addcmul(zero, elements.to(torch.float32), inverse)
    if levels.even:
        least, most = levels.values[0], levels.values[-1]
        return ratio, (ratio - least).round_().clamp_(0, most - least).add_(least)
    values, middles = _tensors(levels.values, ratio.device)
    return ratio, values[torch.bucketize(ratio, middles, out_int32=True)]


def _tensors(values: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Levels, and what lies half way between two of them."""
    if torch.compiler.is_compiling():  # constants of the graph
        return _made(values, device)
    return _kept(values, device)


def _made(values: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    levels = torch.tensor(values, device=device)
    return levels, (levels[1:] + levels[:-1]) / 2


@functools.cache
def _kept(values: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # training may follow inference
        return _made(values, device)


class _Rounded(torch.autograd.Function):
    """Computes what it needs anew in its backward pass: only the weight itself is kept."""

    generate_vmap_rule = True

    @staticmethod
    def forward(elements: Tensor, step: Tensor, zero: Tensor, levels: Levels) -> Tensor:
        return _in_parts(functools.partial(_values, levels), elements, step, zero)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        elements, step, zero, ctx.levels = inputs
        ctx.save_for_backward(elements, step, zero)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradients = functools.partial(_gradients, ctx.levels)
        return *_in_parts(gradients, *ctx.saved_tensors, grad), None


def _values(levels: Levels, elements: Tensor, step: Tensor, zero: Tensor) -> tuple[Tensor]:
    level = nearest(elements, _Scale(step, zero), levels)[1]
    # In this order, as stored weights are decoded (docs/format.md), so that both are equal.
    return (level.mul_(step).sub_(zero) if levels.shifts else level.sub_(zero).mul_(step),)


def _gradients(
    levels: Levels, elements: Tensor, step: Tensor, zero: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    ratio, level = nearest(elements, _Scale(step, zero), levels)
    clipped = ratio.clamp(levels.values[0], levels.values[-1])
    within = torch.where(clipped == ratio, grad, 0)
    beyond = grad - within
    of_zero = -beyond.sum(-1, keepdim=True)
    # Of an element within the range what rounding adds, which is nothing of others.
    of_step = torch.addcmul((level - clipped) * grad, beyond, level).sum(-1, keepdim=True)
    if not levels.shifts:
        of_step, of_zero = of_step + zero * of_zero, of_zero * step
    return within.to(elements.dtype), of_step, of_zero


def _in_parts(of: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """What ``of`` gives of the rows of all ``tensors``. Of many on a CPU it is given some at a
    time, which stay in its cache between one operation and the next."""
    first = tensors[0]
    rows = max(1, _PART // max(1, first[0].numel())) if len(first) else 1
    if first.is_cuda or torch.compiler.is_compiling() or len(first) <= rows:
        return of(*tensors)
    parts = zip(*(each.split(rows) for each in tensors), strict=True)
    return tuple(map(torch.cat, zip(*(of(*part) for part in parts), strict=True)))


def rounded_to(elements: Tensor, step: Tensor, zero: Tensor, levels: Levels, width: int) -> Tensor:
    """The values [N, K] float32 of the levels that are nearest to ``elements``.

    Gradients go straight through the rounding of an element within the range of its scale (Bengio
    et al., arXiv 1308.3432); that of a step is of what rounding adds to such elements, and of the
    levels of others; that of a zero point is of these others.

    Args:
        elements: [N, K], of any float dtype.
        step, zero: [N, G] float32, of groups of ``width`` columns, the last of which may be
            shorter.
    """
    groups = _in_groups(elements, width)
    made: Tensor = _Rounded.apply(groups, step[..., None], zero[..., None], levels)
    return made.flatten(-2)[..., : elements.shape[-1]]


def level_codes(
    elements: Tensor, step: Tensor, zero: Tensor, levels: Levels, width: int, code_of: Tensor
) -> Tensor:
    """The codes [N, K] uint8 of these levels, of which ``code_of`` has one for each."""
    scale = _Scale(step[..., None], zero[..., None])
    level = nearest(_in_groups(elements, width), scale, levels)[1]
    values, _ = _tensors(levels.values, level.device)
    index = torch.bucketize(level, values)
    return code_of.to(index.device)[index].flatten(-2)[..., : elements.shape[-1]].contiguous()


def _in_groups(elements: Tensor, width: int) -> Tensor:
    """[N, G, width] of [N, K]."""
    if short := -elements.shape[-1] % width:
        elements = functional.pad(elements, (0, short))
    return elements.unflatten(-1, (-1, width))


def of_rows(blocks: Tensor, rows: int, n: int) -> Tensor:
    """[N, G] of [R, G], of blocks of so many ``rows``, 0 for all. Its gradient is summed in one
    order, which that of an index is not."""
    if rows == 1:
        return blocks
    return blocks[:, None].expand(-1, rows or n, -1).flatten(0, 1)[:n]


class _StraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def straight_through(weight: Tensor, values: Tensor) -> Tensor:
    """``values``, of which the gradient is that of ``weight``."""
    found: Tensor = _StraightThrough.apply(weight, values)
    return found


class _ScaledGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(parameter: Tensor, factor: float) -> Tensor:
        return parameter.view_as(parameter)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def scaled_gradient(parameter: Tensor, factor: float) -> Tensor:
    """``parameter``, whose gradient is ``factor`` times what it would be."""
    found: Tensor = _ScaledGradient.apply(parameter, factor)
    return found
