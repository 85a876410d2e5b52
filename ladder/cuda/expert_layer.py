# SPDX-License-Identifier: Apache-2.0
"""A layer of experts on weight images: the launches of :mod:`ladder.cuda.experts` in order."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ladder.cuda.experts import Stack, number_for, rounded
from ladder.errors import Unsupported
from ladder.ops.activations import MOST_EXPERT_TOKENS_AS_THEY_COME
from ladder.types import _checked

_ops = torch.ops.ladder


def forward(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    gate_up: Stack,
    down: Stack,
    activation: str,
    *,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    limit: float = math.inf,
    alpha: float = 1.702,
    activation_type: str = "",
    gate_up_scale: Tensor | None = None,
    down_scale: Tensor | None = None,
) -> Tensor:
    """A layer of experts, [T, K] to [T, K]: four launches, whatever the router chose; one more
    where the stack of gate and up is not gated, and two where rows are rounded.

    Args:
        x, experts: as :func:`ladder.cuda.experts.route`.
        weights: as :func:`ladder.cuda.experts.combine`.
        gate_up_bias, down_bias: of the two stacks, from :func:`ladder.cuda.experts.padded_bias`, in
            the dtype of ``x``.
        activation, limit, alpha: as :class:`ladder.ops.gating.Gating`; a stack that is gated was
            opened with them.
        activation_type: what both products have rows of more than 64 tokens rounded to,
            as :attr:`ladder.Linear.activation_type`; "" for as they come. A token is rounded once
            for all of its experts, and what is between gate and up and down for each of them.
        gate_up_scale, down_scale: float32 [1], the scale by which rows of that product are rounded;
            None: each has its own.
    Raises:
        Unsupported: no kernel multiplies these types and activations.
    """
    return _checked(
        _ops.experts,
        x,
        experts,
        weights,
        gate_up.images,
        gate_up_bias,
        down.images,
        down_bias,
        (gate_up.number, gate_up.columns, gate_up.gated),
        (down.number, down.columns, down.gated),
        activation,
        limit,
        alpha,
        activation_type,
        gate_up_scale,
        down_scale,
    )


# One op for graphs of torch.compile: which kernels there are is not for a trace to ask.
torch.library.define(
    "ladder::experts",
    "(Tensor x, Tensor experts, Tensor weights, Tensor gate_up, Tensor? gate_up_bias, "
    "Tensor down, Tensor? down_bias, int[] gate_up_weight, int[] down_weight, str activation, "
    "float limit, float alpha, str activation_type, Tensor? gate_up_scale=None, "
    "Tensor? down_scale=None) -> Tensor",
)


def _layer(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    gate_up_weight: list[int],
    down_weight: list[int],
    activation: str,
    limit: float,
    alpha: float,
    activation_type: str,
    gate_up_scale: Tensor | None = None,
    down_scale: Tensor | None = None,
) -> Tensor:
    (first, wide, gated), (second, hidden, _), count = gate_up_weight, down_weight, gate_up.shape[0]
    if not experts.numel():
        return x.new_zeros(x.shape[0], hidden)
    rounds = bool(activation_type) and x.shape[0] > MOST_EXPERT_TOKENS_AS_THEY_COME
    if rounds:
        first, second = (number_for(each, activation_type) for each in (first, second))
    of_item = _ops.expert_rows(first, second, count, experts.numel(), x.dtype, x.device.index)
    if of_item == 0:
        raise Unsupported(f"no kernel multiplies {x.dtype} by these experts")
    experts = experts.contiguous()
    if rounds:
        codes, scales = rounded(x, activation_type, gate_up_scale)
        codes, scales, items, places = _ops.route_rounded(codes, scales, experts, count, of_item)
        y = _ops.expert_linear_rounded(
            codes, scales, gate_up, gate_up_bias, items, first, wide, of_item, x.dtype
        )
        if not gated:
            y = _ops.gated(y, activation, limit, alpha)
        codes, scales = rounded(y, activation_type, down_scale)
        y = _ops.expert_linear_rounded(
            codes, scales, down, down_bias, items, second, hidden, of_item, x.dtype
        )
    else:
        rows, items, places = _ops.route(x, experts, count, of_item)
        y = _ops.expert_linear(rows, gate_up, gate_up_bias, items, first, wide, of_item)
        if not gated:
            y = _ops.gated(y, activation, limit, alpha)
        y = _ops.expert_linear(y, down, down_bias, items, second, hidden, of_item)
    return _ops.combine(y, places, weights.contiguous())


torch.library.impl("ladder::experts", "CUDA", _layer)


@torch.library.register_fake("ladder::experts")
def _(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    gate_up_weight: list[int],
    down_weight: list[int],
    activation: str,
    limit: float,
    alpha: float,
    activation_type: str,
    gate_up_scale: Tensor | None = None,
    down_scale: Tensor | None = None,
) -> Tensor:
    return x.new_empty((x.shape[0], down_weight[1]))
