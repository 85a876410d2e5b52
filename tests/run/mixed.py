# SPDX-License-Identifier: Apache-2.0
"""Experts whose products are integers, and what they mean, token by token from the bits up."""

from __future__ import annotations

import torch
from drawn import exact_weight, formula, generator, integers
from torch import Tensor

import ladder
from ladder.nn.stack import PackedStack
from ladder.testing import SIGNIFICANT_BITS, bound

#: E, H and I: both products end inside a group of 32 and inside a word, and no two are equal.
E, H, I = 5, 40, 36  # noqa: E741
TERNARY = "ternary,group=32,scale=float16"


def fill(stack: PackedStack, seed: int = 0) -> None:
    """Draw weights of other codes, scales and zeros for each expert, and integer biases."""
    stack.set_weights(
        exact_weight(str(stack.weight_type), stack.out_features, stack.in_features, seed=seed + e)
        for e in range(stack.experts)
    )
    if stack.bias is not None:
        stack.bias.data = integers(tuple(stack.bias.shape), stack.bias.dtype, seed)


def exact_experts(bias: bool = False, type: str = TERNARY, **options) -> ladder.Experts:
    """With scales of one, where ``type`` is ternary: all sums then stay below 2**24."""
    experts = ladder.Experts(E, H, I, bias, type, **{"activation": "relu"} | options)
    for seed, stack in enumerate((experts.gate_up, experts.down)):
        fill(stack, 10 * seed)
        if type == TERNARY:
            stack.scales.fill_(1)
    return experts


def routed(tokens: int, k: int, experts: int = E, never: int | None = None, seed: int = 3):
    """An index [tokens, k] of different experts for each token, but ``never``, and weights that are
    powers of two."""
    rng = generator(seed)
    known = torch.tensor([e for e in range(experts) if e != never])
    rows = [known[torch.randperm(len(known), generator=rng)[:k]] for _ in range(tokens)]
    index = torch.stack(rows) if rows else torch.zeros(0, k, dtype=torch.int64)
    return index, torch.exp2(-torch.randint(0, 4, (tokens, k), generator=rng).float())


def gated(experts: ladder.Experts, gate: Tensor, up: Tensor) -> Tensor:
    """What docs/format.md and the models say of the function between the products."""
    gating = experts.gating
    if gating.limit is not None:
        gate, up = gate.clamp(max=gating.limit), up.clamp(-gating.limit, gating.limit)
    return {
        "relu": lambda: torch.where(gate > 0, gate, 0) * up,
        "silu": lambda: gate * torch.sigmoid(gate) * up,
        "swigluoai": lambda: gate * torch.sigmoid(gating.alpha * gate) * (up + 1),
    }[gating.activation]()


def biases(experts: ladder.Experts, expert: int) -> tuple[Tensor, Tensor]:
    stacks = (experts.gate_up, experts.down)
    zeros = (torch.zeros(stack.out_features) for stack in stacks)
    pairs = zip(stacks, zeros, strict=True)
    first, second = (z if s.bias is None else s.bias[expert].double() for s, z in pairs)
    return first, second


def truth(experts: ladder.Experts, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """[T, H] float64: each step in float64, rounded to the dtype of ``x`` where forward rounds."""
    rows = []
    for token in range(x.shape[0]):
        row = torch.zeros(experts.hidden_size, dtype=torch.float64)
        for expert, weight in zip(index[token].tolist(), weights[token], strict=True):
            if expert == experts.num_experts:
                continue
            first, second = (formula(s.weight_of(expert)) for s in (experts.gate_up, experts.down))
            bias1, bias2 = biases(experts, expert)
            gate, up = (first @ x[token].double() + bias1).to(x.dtype).double().chunk(2)
            h = gated(experts, gate, up).to(x.dtype).double()
            row = row + (second @ h + bias2).to(x.dtype).double() * weight.double()
        rows.append(row)
    return torch.stack(rows) if rows else x.double()


def limit(experts: ladder.Experts, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """[T, H]: how far a result of float32 may be from exact arithmetic. The errors of the first
    product go through the gate, whose slope is below 1.2 for every activation here, and through
    the second product, which has errors of its own."""
    x, unit = x.double(), 2.0 ** -SIGNIFICANT_BITS[torch.float32]
    total = torch.zeros(x.shape[0], experts.hidden_size, dtype=torch.float64)
    size = torch.zeros_like(total)
    for token in range(x.shape[0]):
        for expert, weight in zip(index[token].tolist(), weights[token].double(), strict=True):
            first, second = (formula(s.weight_of(expert)) for s in (experts.gate_up, experts.down))
            bias1, bias2 = biases(experts, expert)
            with_bias = torch.cat((x[token], torch.ones(1))), torch.cat((first, bias1[:, None]), 1)
            gate, up = (with_bias[1] @ with_bias[0]).chunk(2)
            gate_off, up_off = bound(*with_bias, torch.float32).chunk(2)
            most = torch.inf if experts.gating.limit is None else experts.gating.limit
            h, slope = gated(experts, gate, up), 1.2 * (up.abs().clamp(max=most) + 1 + up_off)
            h_off = slope * gate_off + 1.1 * gate.abs() * up_off + 16 * unit * h.abs()
            of_h = torch.cat((h, torch.ones(1))), torch.cat((second, bias2[:, None]), 1)
            off = bound(*of_h, torch.float32) + second.abs() @ h_off
            total[token] += weight * off
            size[token] += weight * (of_h[1] @ of_h[0]).abs()
    return total + (index.shape[1] + 1) * unit * size
