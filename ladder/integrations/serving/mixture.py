# SPDX-License-Identifier: Apache-2.0
"""From the weights of experts to what a layer of an engine is called with."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ladder.cuda import expert_layer, experts, image, kernels
from ladder.errors import Unsupported
from ladder.integrations.serving.layer import say_as_it_comes
from ladder.nn.experts import Experts
from ladder.nn.stack import PackedStack
from ladder.ops import activations
from ladder.ops.gating import Gating
from ladder.types import parse
from ladder.weight import PARTS, Weight

_log = logging.getLogger("ladder")
_ops = torch.ops.ladder


@dataclass(frozen=True)
class Product:
    """One of the two products. Its tensors are parameters of the layer called ``<stem>_<part>``."""

    stem: str
    type: str  #: spelling of the tType
    shape: tuple[int, int]  #: [N, K] of one expert
    parts: tuple[str, ...]
    number: int  #: of images, as :class:`ladder.cuda.experts.Stack`; 0: the canonical form
    static: bool = False  #: of images: rows are rounded by ``<stem>_input_scale`` [1]
    gated: bool = False  #: of images, as :class:`ladder.cuda.experts.Stack`

    def tensors(self, layer: nn.Module) -> list[Tensor | None]:
        """The canonical parts, in the order of PARTS."""
        return [getattr(layer, f"{self.stem}_{p}") if p in self.parts else None for p in PARTS]

    def scale(self, layer: nn.Module) -> Tensor | None:
        """By what rows are rounded; None: each has a scale of its own."""
        return getattr(layer, f"{self.stem}_input_scale") if self.static else None

    def stack(self, layer: nn.Module) -> experts.Stack:
        """The images."""
        images = getattr(layer, f"{self.stem}_qweight")
        return experts.Stack(images, self.number, self.shape, self.type, self.gated)


@dataclass(frozen=True)
class Mixture:
    """The experts of a layer of an engine, whose tensors are parameters of the layer."""

    gate_up: Product
    down: Product
    gating: Gating
    #: Of images: what both products have rows rounded to, as
    #: :func:`ladder.cuda.expert_layer.forward` has it.
    activation_type: str = ""

    def __call__(self, layer: nn.Module, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """[T, H] to [T, H].

        Args:
            index: [T, k] integers, experts of this layer; others are nobody's and add nothing.
            weights: [T, k] float.
        """
        g = self.gating
        biases = [getattr(layer, f"{p.stem}_bias", None) for p in (self.gate_up, self.down)]
        if self.gate_up.number:
            return expert_layer.forward(
                x,
                index if index.dtype in (torch.int32, torch.int64) else index.long(),
                weights if weights.dtype in (x.dtype, torch.float32) else weights.float(),
                self.gate_up.stack(layer),
                self.down.stack(layer),
                g.activation,
                gate_up_bias=biases[0],
                down_bias=biases[1],
                limit=g.least_limit,
                alpha=g.alpha,
                activation_type=self.activation_type,
                gate_up_scale=self.gate_up.scale(layer),
                down_scale=self.down.scale(layer),
            )
        first = [*self.gate_up.tensors(layer), biases[0]]
        second = [*self.down.tensors(layer), biases[1]]
        return _ops.experts_canonical(
            x, index, weights, first, second, self.gate_up.type, self.down.type,
            g.activation, g.least_limit, g.alpha,
        )  # fmt: skip


def finish_stacks(
    layer: nn.Module,
    gate_up: tuple[str, list[Weight]],
    down: tuple[str, list[Weight]],
    gating: Gating,
    dtype: torch.dtype,
    activation_type: str | None = None,
    input_scales: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Mixture:
    """Give ``layer`` the parameters that kernels read: images where the device has kernels for both
    products, else the canonical parts; so of ``<stem>_bias`` [E, N], where the layer has one. The
    lists are emptied.

    Args:
        gate_up, down: the stem of the parameters, and the weight of each expert of this layer.
        dtype: of activations.
        activation_type: offered to both products, see :mod:`ladder.nn.offered`. The log says once
            why x is taken as it comes.
        input_scales: static scales of x of both products, [E, 1] float32. Rows are rounded by the
            largest, as those of :attr:`ladder.nn.stack.PackedStack.input_scale`.
    """
    numbers = _numbers((gate_up[1], down[1]), dtype, gating)
    rounded = activation_type or ""
    if rounded and (why := _not_rounded((gate_up[1], down[1]), rounded, numbers, dtype)):
        say_as_it_comes(why)
        rounded = ""
    products = []
    each = zip((gate_up, down), (gating, None), numbers, input_scales, strict=True)
    for (stem, weights), gate, number, scale in each:
        text, shape = str(weights[0].type), weights[0].shape
        if number:
            made = experts.stacked(weights, gate)
            assert made.number == number
            tensors, gated = {"qweight": made.images}, made.gated
        else:
            parts = [weight.tensors() for weight in weights]
            tensors = {n: torch.stack([each[n] for each in parts]) for n in parts[0]}
            gated = False
            del parts
        weights.clear()
        for part, tensor in tensors.items():
            parameter = nn.Parameter(tensor, requires_grad=False)
            layer.register_parameter(f"{stem}_{part}", parameter)
        bias = getattr(layer, f"{stem}_bias", None)
        if number and bias is not None:  # as kernels read it, once
            placed = nn.Parameter(experts.padded_bias(bias, dtype, gated), requires_grad=False)
            layer.register_parameter(f"{stem}_bias", placed)
        static = bool(number and rounded) and scale is not None
        if static and scale is not None:
            one = scale.amax().reshape(1).to(next(iter(tensors.values())).device)
            layer.register_parameter(f"{stem}_input_scale", nn.Parameter(one, requires_grad=False))
        products.append(Product(stem, text, shape, tuple(tensors), number, static, gated))
    return Mixture(products[0], products[1], gating, rounded)


def _not_rounded(
    stacks: Sequence[list[Weight]], wanted: str, numbers: tuple[int, int], dtype: torch.dtype
) -> str:
    """Why a mixture of those experts takes x as it comes; "" when it is rounded. ``numbers`` are
    those of the images of both products, zeros where there are none."""
    device = stacks[0][0].qweight.device
    if why := activations.device_objection(wanted, device.type):
        return why
    if not numbers[0]:
        return f"experts without kernels take no activation_type {wanted}"
    for weights in stacks:
        first = weights[0]
        n, k = first.shape
        if any(image.column_order(weight) is not None for weight in weights):
            return activations.no_g_idx(wanted)
        why = activations.gpu_objection(wanted, str(first.type), n, k, device.index or 0)
        for weight in weights:
            why = why or activations.zeros_objection(wanted, weight.type, weight.zeros)
        if why:
            return why
    # Linear layers were asked, whose kernels are others than those of experts.
    sizes = [(n, weights[0].shape[1]) for n, weights in zip(numbers, stacks, strict=True)]
    return experts.rounding_objection(wanted, sizes, len(stacks[0]), dtype, device)


def _numbers(stacks: Sequence[list[Weight]], dtype: torch.dtype, gating: Gating) -> tuple[int, int]:
    """Of the images of both products, the first gated where its rows can lie in turn; zeros where
    either has no kernels."""
    device = stacks[0][0].qweight.device
    if not kernels.possible(device):
        return 0, 0
    numbers: list[int] = []
    why = "" if dtype in kernels.HALVES else f"activations are {dtype}"
    if len(stacks[0]) > experts.MOST_EXPERTS:
        why = f"{len(stacks[0])} experts are more than {experts.MOST_EXPERTS}"
    for weights in stacks:
        first = weights[0]
        (n, k), text = first.shape, str(first.type)
        try:
            gather = any(image.column_order(weight) is not None for weight in weights)
        except Unsupported as error:
            gather, why = False, why or str(error)
        why = why or kernels.objection(text, n, k, gather, device.index or 0)
        if not why:
            gate = gating if not numbers and image.alternates(n) else None
            numbers.append(image.open_weight(text, n, k, gather, gating=gate))
            why = kernels.load_transforms(numbers[-1], device, dtype)
    if not why:
        count = len(stacks[0])
        if not _ops.expert_rows(*numbers, count, count, dtype, device.index or 0):
            why = f"no kernel multiplies {dtype} by them"
    if why:
        _log.warning("packed experts go through torch: %s", why)
        return 0, 0
    return numbers[0], numbers[1]


# One op for graphs of torch.compile: how often each expert is hit is not for a trace to ask.
torch.library.define(
    "ladder::experts_canonical",
    "(Tensor x, Tensor experts, Tensor weights, Tensor?[] gate_up, Tensor?[] down, "
    "str gate_up_type, str down_type, str activation, float limit, float alpha) -> Tensor",
)


@torch.library.impl("ladder::experts_canonical", ("CPU", "CUDA"))
def _(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: list[Tensor | None],
    down: list[Tensor | None],
    gate_up_type: str,
    down_type: str,
    activation: str,
    limit: float,
    alpha: float,
) -> Tensor:
    """The loop of :class:`ladder.Experts` on canonical parts, each [E, ...], and a bias."""
    codes: Any = gate_up[0]
    e, n = codes.shape[:2]
    room = Experts(
        e, x.shape[1], n // 2, device="meta", activation=activation,
        limit=None if math.isinf(limit) else limit, alpha=alpha,
    )  # fmt: skip
    room.gate_up = PackedStack(e, n, x.shape[1], parse(gate_up_type), device="meta")
    room.down = PackedStack(e, x.shape[1], n // 2, parse(down_type), device="meta")
    for stack, given in ((room.gate_up, gate_up), (room.down, down)):
        for name, tensor in zip((*PARTS, "bias"), given, strict=True):
            if name == "bias":
                stack.bias = None if tensor is None else nn.Parameter(tensor, requires_grad=False)
            else:
                stack.register_buffer(name, tensor)
    nobody = (index < 0) | (index >= e)
    return room._forward_canonical(x, index.masked_fill(nobody, e), weights).to(x.dtype)


@torch.library.register_fake("ladder::experts_canonical")
def _(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: list[Tensor | None],
    down: list[Tensor | None],
    gate_up_type: str,
    down_type: str,
    activation: str,
    limit: float,
    alpha: float,
) -> Tensor:
    return torch.empty_like(x)
