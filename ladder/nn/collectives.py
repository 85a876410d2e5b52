# SPDX-License-Identifier: Apache-2.0
"""What the processes of a tensor-parallel layer send each other, with gradients.

``group`` is a ``ProcessGroup`` of torch.distributed. Every function is one collective, which all
processes of the group enter; those that only change gradients communicate in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F


def span(whole: int, rank: int, size: int) -> tuple[int, int]:
    """Start and length of what ``rank`` has of ``whole`` elements: equal shares, rounded up, as
    ``torch.chunk`` and DTensor cut them. The last ranks may have less, or nothing."""
    share = -(-whole // size)
    start = min(rank * share, whole)
    return start, min(share, whole - start)


def total(y: Tensor, group: Any) -> Tensor:
    """The sum of the processes' ``y``, which is overwritten where no gradient is wanted."""
    if torch.is_grad_enabled() and y.requires_grad:
        return _differentiable(_Total, y, group)
    dist.all_reduce(y, group=group)
    return y


def gather(part: Tensor, whole: int, group: Any) -> Tensor:
    """[..., own share] to [..., whole]; each process uses all of the result for the same thing."""
    if torch.is_grad_enabled() and part.requires_grad:
        return _differentiable(_Gather, part, whole, group, False)
    return _gather(part, whole, group)


def gather_for_parts(part: Tensor, whole: int, group: Any) -> Tensor:
    """:func:`gather` where each process computes something else from the result, so that the
    gradients of the processes add up."""
    if torch.is_grad_enabled() and part.requires_grad:
        return _differentiable(_Gather, part, whole, group, True)
    return _gather(part, whole, group)


def share_for_parts(x: Tensor, group: Any) -> Tensor:
    """``x``, the same in all processes, each of which computes something else from it."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _differentiable(_Share, x, group)
    return x


def split(x: Tensor, group: Any) -> Tensor:
    """This process's share of the last dimension of ``x``, which is the same in all processes."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _differentiable(_Split, x, group)
    return _own(x, group)


def _differentiable(function: type[Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


def _own(x: Tensor, group: Any) -> Tensor:
    start, length = span(x.shape[-1], dist.get_rank(group), dist.get_world_size(group))
    return x.narrow(-1, start, length).contiguous()


def _gather(part: Tensor, whole: int, group: Any) -> Tensor:
    size = dist.get_world_size(group)
    share = -(-whole // size)
    if part.shape[-1] < share:
        part = F.pad(part, (0, share - part.shape[-1]))
    first = part.movedim(-1, 0).contiguous()
    gathered = first.new_empty((share * size, *first.shape[1:]))
    # Its name since torch 2.13, which warns of the other.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    all_gather(gathered, first, group=group)
    return gathered[:whole].movedim(0, -1).contiguous()


class _Total(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, group: Any) -> Tensor:
        y = y.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


class _Share(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Split(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group, ctx.whole = group, x.shape[-1]
        return _own(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _gather(grad, ctx.whole, ctx.group), None


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, whole: int, group: Any, adds: bool) -> Tensor:
        ctx.group, ctx.adds = group, adds
        return _gather(part, whole, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if ctx.adds:
            grad = grad.clone()
            dist.all_reduce(grad, group=ctx.group)
        return _own(grad, ctx.group), None, None, None
