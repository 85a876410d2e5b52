# SPDX-License-Identifier: Apache-2.0
"""Codes that make up for each other's rounding, by what a layer's inputs are like.

Rounding each weight to its nearest code ignores that inputs go together. GPTQ (Frantar et al.,
2022) rounds one column after the other, and takes what a column lost, as far as inputs of later
columns tell it, from the weights of these. Only codes are chosen here: scales and zero points are
those of a weight that is packed already, so that every tType is served alike, and columns may come
in any order, those with the largest inputs first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ladder import ops
from ladder.errors import InvalidArgument
from ladder.types import TType, dtype_name
from ladder.weight import Weight

#: Added to the diagonal of the Hessian, of its mean; ten times as much where that does not do.
_DAMPING = 0.01
#: Added to it as well, of each number there: inputs that go together in the calibration data do so
#: a little less in what a model is given later. A part of the mean would, where a few inputs are
#: large, leave nothing of how the others go together.
_DOUBT = 0.3
#: With more nothing would be left of it.
_MOST_DAMPING = 1e3
#: What the regression that undoes changes of inputs adds to the diagonal, of each number there, so
#: that scales of inputs do not matter. Both were chosen on one small model, by how far its
#: predictions move for texts like the data and unlike them (benchmarks/results/type_quality.md).
_RIDGE = 1.0
#: Columns between two updates of all later ones.
_COLUMNS = 128


@dataclass(frozen=True)
class Compensated:
    """A weight, and the error of its layer's outputs: sums of squares over rows and inputs.

    Attributes:
        error: of the weight.
        nearest: of the weight before, whose codes are the nearest.
        size: of the outputs themselves.
    """

    weight: Weight
    error: float
    nearest: float
    size: float


def check_hessian(hessian: object, n: int, k: int) -> None:
    """Raise InvalidArgument unless ``hessian`` is, for a weight [n, k], a floating-point tensor
    [k, k] or [parts, k, k] of finite numbers, none of its diagonals below zero."""
    if not isinstance(hessian, Tensor) or not hessian.is_floating_point():
        given = dtype_name(hessian.dtype) if isinstance(hessian, Tensor) else type(hessian).__name__
        raise InvalidArgument(f"hessian is of {given}, not a floating-point tensor")
    shape = list(hessian.shape)
    parts = shape[0] if len(shape) == 3 else 1
    if len(shape) not in (2, 3) or shape[-2:] != [k, k] or parts == 0 or n % parts:
        raise InvalidArgument(
            f"hessian has shape {shape}, not {[k, k]}, or such for each of some equal parts of "
            f"{n} rows"
        )
    finite = hessian.to(torch.float32).isfinite()
    if not bool(finite.all()):
        at = (~finite).nonzero()[0].tolist()
        value = hessian[tuple(at)].item()
        raise InvalidArgument(f"hessian at {at} is {value}, not finite in float32")
    diagonal = hessian.diagonal(dim1=-2, dim2=-1)
    if bool((diagonal < 0).any()):
        at = (diagonal < 0).nonzero()[0].tolist()
        raise InvalidArgument(
            f"hessian has {diagonal[tuple(at)].item():.3g} on its diagonal, at {at[-1]}: no sum of "
            "squares is below zero"
        )


def compensated(source: Tensor, packed: Weight, hessian: Tensor) -> Compensated:
    """Choose the codes of ``packed`` anew, so that outputs move least.

    Args:
        source: [N, K] float32, the weight.
        packed: ``source`` quantised.
        hessian: [K, K], sums of ``x[i] * x[j]`` over inputs x; or [P, K, K], of P equal parts of
            the rows.
    Returns:
        The better of ``packed`` and the weight with new codes, row by row: by
        ``e @ hessian @ e.T`` of what a row's values are off.
    """
    parts = _in_parts(hessian, source)
    before = _errors(packed.dequantize() - source, parts)
    codes = _codes(source, packed, parts)
    made = replace(packed, qweight=ops.pack(codes, packed.type.bits))
    after = _errors(made.dequantize() - source, parts)
    better = after < before
    made = replace(packed, qweight=torch.where(better[:, None], made.qweight, packed.qweight))
    error = torch.where(better, after, before).sum().item()
    size = _errors(source, parts).sum().item()
    return Compensated(made, error, before.sum().item(), size)


def corrected(source: Tensor, hessian: Tensor, cross: Tensor) -> Tensor:
    """The weight whose outputs are nearest to those of ``source``, where its inputs are others.

    Quantised layers before one change its inputs from y to x, in part in a way that x tells: that
    part its own weight can undo (GPTAQ, Li et al., 2025; Qronos, Zhang et al., 2025).

    Args:
        source: [N, K] float32.
        hessian: [K, K], sums of ``x[i] * x[j]``; or [P, K, K] as :func:`compensated` has it.
        cross: of that shape, sums of ``y[i] * x[j]``.
    Returns:
        [N, K]: ``source`` and the ridge regression of what its outputs are off.
    """
    parts = _in_parts(hessian, source)
    others = cross.to(parts).view_as(parts)
    rows = source.view(len(parts), -1, source.shape[1])
    damped = parts.clone()
    diagonal = damped.diagonal(dim1=1, dim2=2)
    diagonal.copy_(torch.where(diagonal == 0, 1, diagonal * (1 + _RIDGE)))
    off = rows @ (others - parts)
    return (rows + torch.linalg.solve(damped, off, left=False)).view_as(source)


def _in_parts(hessian: Tensor, source: Tensor) -> Tensor:
    """[P, K, K] float32, where the weight is."""
    return hessian.to(source.device, torch.float32).view(-1, *hessian.shape[-2:])


def _errors(rows: Tensor, parts: Tensor) -> Tensor:
    """[N]: ``row @ hessian @ row`` of each row, the Hessian that of its part of the rows."""
    of_parts = rows.view(parts.shape[0], -1, rows.shape[1])
    return ((of_parts @ parts) * of_parts).sum(2).clamp_(min=0).view(-1)


def _codes(source: Tensor, packed: Weight, parts: Tensor) -> Tensor:
    """[N, K] uint8."""
    levels, code_of = (tensor.to(source.device) for tensor in levels_of(packed.type))
    every = (source, *step_and_shift(packed, levels, code_of))
    made = []
    for part, each in enumerate(parts):
        rows, step, shift = (tensor.chunk(len(parts))[part] for tensor in every)
        made.append(_codes_of_part(rows, step, shift, levels, code_of, each))
    return torch.cat(made)


def _codes_of_part(
    source: Tensor, step: Tensor, shift: Tensor, levels: Tensor, code_of: Tensor, hessian: Tensor
) -> Tensor:
    k = source.shape[1]
    order = hessian.diagonal().argsort(descending=True)
    factor = _factor(hessian[order][:, order])
    # Columns are rows from here on: each is read and written as a whole.
    rest, step, shift = (tensor.T[order].contiguous() for tensor in (source, step, shift))
    inverse = torch.where(step == 0, 0, 1 / step)
    out, rounding = torch.empty(rest.shape, dtype=torch.uint8, device=rest.device), None
    for start in range(0, k, _COLUMNS):
        end = min(start + _COLUMNS, k)
        own, columns = factor[start:end, start:end], slice(start, end)
        block = _Block(rest[columns], own, step[columns], shift[columns], inverse[columns])
        if rounding is None or end - start < _COLUMNS:
            codes, lost = _rounded(block, levels, code_of)
            if rest.is_cuda and k - end >= _COLUMNS:
                rounding = _Graph(block, levels, code_of)
        else:
            codes, lost = rounding(block)
        out[order[columns]] = codes
        rest[end:] -= factor[start:end, end:].T @ lost
    return out.T.contiguous()


class _Block(NamedTuple):
    """Some columns of a weight, [columns, N] but for the factor [columns, columns]."""

    rest: Tensor  #: what is to be rounded; changes
    factor: Tensor
    step: Tensor
    shift: Tensor
    inverse: Tensor  #: of ``step``


def _rounded(block: _Block, levels: Tensor, code_of: Tensor) -> tuple[Tensor, Tensor]:
    """Codes, one column after the other, and what each column lost, in the unit of the factor."""
    rest, factor, step, shift, inverse = block
    middles = (levels[1:] + levels[:-1]) / 2
    codes, lost = torch.empty_like(rest, dtype=torch.uint8), torch.empty_like(rest)
    for at, values in enumerate(rest):
        index = torch.bucketize((values - shift[at]) * inverse[at], middles)
        codes[at] = code_of[index]
        lost[at] = (values - (levels[index] * step[at] + shift[at])) / factor[at, at]
        rest[at + 1 :] -= factor[at, at + 1 :, None] * lost[at]
    return codes, lost


class _Graph:
    """_rounded() of blocks of one shape as a CUDA graph: one by one, starting its kernels takes six
    times as long as they run."""

    def __init__(self, like: _Block, levels: Tensor, code_of: Tensor) -> None:
        self._block = _Block(*(torch.empty_like(each) for each in like))
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may allocate meanwhile.
        with (
            torch.cuda.device(like.rest.device),
            torch.cuda.graph(self._graph, capture_error_mode="thread_local"),
        ):
            self._made = _rounded(self._block, levels, code_of)

    def __call__(self, block: _Block) -> tuple[Tensor, Tensor]:
        """Codes and losses, which the next call overwrites."""
        for to, each in zip(self._block, block, strict=True):
            to.copy_(each)
        self._graph.replay()
        return self._made


def _factor(hessian: Tensor) -> Tensor:
    """The upper triangular U with ``U.T @ U`` the inverse of ``hessian``, damped until it has
    one, up to a factor. Raises InvalidArgument for what is no sum of squares."""
    diagonal = hessian.diagonal()
    largest = diagonal.max()
    if not bool(largest > 0):
        return torch.eye(len(hessian), device=hessian.device)
    hessian, diagonal = hessian / largest, diagonal / largest
    mean = diagonal.mean()
    # An input that is always zero tells nothing of others, and costs nothing.
    diagonal = torch.where(diagonal == 0, mean, diagonal * (1 + _DOUBT))
    damping = _DAMPING
    while damping <= _MOST_DAMPING:
        damped = hessian.clone()
        damped.diagonal().copy_(diagonal + damping * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not bool(failed):
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not bool(failed):
                return upper
        damping *= 10
    raise InvalidArgument("hessian is no sum of x.T @ x: it has directions of negative squares")


def levels_of(ttype: TType) -> tuple[Tensor, Tensor]:
    """The finite values of a type's codes, each once and in order, and the least code of each."""
    values = ttype.element.values.to(torch.float32)
    order = values.sort(stable=True).indices
    order = order[values[order].isfinite()]
    ordered = values[order]
    first = torch.cat((ordered.new_ones(1), ordered.diff())) > 0
    return ordered[first], order[first].to(torch.uint8)


def step_and_shift(packed: Weight, levels: Tensor, code_of: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] each: a code's value is ``level * step + shift``, whatever scales and zero points a
    type has."""
    least, most = torch.tensor(0), torch.tensor(len(levels) - 1)
    if len(levels) > 2:  # from zero on, whose value is exact
        least, most = levels.abs().argmin(), levels.abs().argmax()

    def values_of(level: Tensor) -> Tensor:
        codes = code_of[level].expand(packed.shape).contiguous()
        return replace(packed, qweight=ops.pack(codes, packed.type.bits)).dequantize()

    at_least, at_most = values_of(least), values_of(most)
    step = (at_most - at_least) / (levels[most] - levels[least])
    return step, at_least - step * levels[least]
