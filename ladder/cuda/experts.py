# SPDX-License-Identifier: Apache-2.0
"""Layers of experts on weight images: one launch multiplies by all experts that a batch hits.

Rows of activations are sorted by expert (:func:`route`); the products of all experts are one launch
(:func:`expert_linear`), whose table of items the device makes, so that a CUDA graph serves any
choice of experts; kernels join gate and up where their rows lie in turn, and :func:`gated` where
they do not; :func:`combine` adds what a token's experts say.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ladder import _library  # noqa: F401  (registers torch.ops.ladder)
from ladder.cuda import image
from ladder.errors import InvalidArgument, Unsupported
from ladder.ops.gating import ROWS_IN_TURN, Gating
from ladder.types import _checked
from ladder.weight import Weight

_ops = torch.ops.ladder

#: Experts of a layer, at most (csrc/codegen/routing_kernels.h).
MOST_EXPERTS = 1024
#: Numbers of a bias that lie together (csrc/pipelines/lower.h).
_BIAS = 8


@dataclass(frozen=True)
class Stack:
    """The weights of a layer's experts, one image each.

    ``images`` is [E, words] int32, ``number`` that of one of them
    (:func:`ladder.cuda.image.open_weight`), ``shape`` its [N, K]. ``gated``: it was opened with a
    gating, and products have N / 2 columns.
    """

    images: Tensor
    number: int
    shape: tuple[int, int]
    type: str
    gated: bool = False

    @property
    def columns(self) -> int:
        """Of products."""
        return self.shape[0] // 2 if self.gated else self.shape[0]

    @property
    def experts(self) -> int:
        return self.images.shape[0]


def rows_of_item(gate_up: Stack, down: Stack, rows: int, dtype: torch.dtype) -> int:
    """The most rows that an item should have where ``rows`` rows go to all experts of a layer; 0
    where no kernel multiplies such types and activations. Their kernels are compiled."""
    device = gate_up.images.device.index
    return _ops.expert_rows(gate_up.number, down.number, gate_up.experts, rows, dtype, device)


def compile_ahead(
    numbers: tuple[int, int], count: int, rows: Iterable[int], dtype: torch.dtype, device: int
) -> None:
    """Compile the kernels that :func:`rows_of_item` would one by one for each of these numbers of
    rows, several at a time, into the store: nothing where there is none.

    Args:
        numbers: of the images of both products, as :attr:`Stack.number`.
        count: experts of the layer.
    """
    _ops.compile_experts(*numbers, count, list(rows), dtype, device)


def stacked(weights: Sequence[Weight], gating: Gating | None = None) -> Stack:
    """Images of the weights of a layer's experts, on their CUDA device.

    Args:
        gating: weights are of gate and up, one in front of the other, whose product kernels give
            where rows can lie in turn (:func:`ladder.cuda.image.alternates`).
    Raises:
        InvalidArgument: there are none or too many, or they differ in type, shape or device.
        Unsupported: the groups of a ``g_idx`` differ in length from those of the type, or no kernel
            multiplies such weights.
    """
    if not 1 <= len(weights) <= MOST_EXPERTS:
        raise InvalidArgument(f"{len(weights)} experts, not 1 to {MOST_EXPERTS}")
    first = weights[0]
    n, k = first.shape
    device = first.qweight.device
    for i, weight in enumerate(weights):
        found = (str(weight.type), weight.shape, weight.qweight.device)
        if found != (str(first.type), first.shape, device):
            raise InvalidArgument(
                f"expert {i} is {found[0]} {list(found[1])} on {found[2]}, and expert 0 is "
                f"{first.type} {[n, k]} on {device}"
            )
    type = str(first.type)
    orders = [image.column_order(weight) for weight in weights]
    gather = any(order is not None for order in orders)
    if why := _ops.image_objection(type, n, k, gather, device.index):
        raise Unsupported(why)
    gated = gating is not None and image.alternates(n)
    number = image.open_weight(type, n, k, gather, gating=gating if gated else None)
    rows = image.gate_rows(n, device) if gated else None
    words = image.parts(number).words
    images = torch.empty(len(weights), words, dtype=torch.int32, device=device)
    unchanged = torch.arange(k, dtype=torch.int32, device=device) if gather else None
    for to, weight, order in zip(images, weights, orders, strict=True):
        to.copy_(image.pack(weight, number, unchanged if order is None else order, rows))
    return Stack(images, number, (n, k), type, gated)


def padded_bias(bias: Tensor, dtype: torch.dtype | None = None, gated: bool = False) -> Tensor:
    """[E, N] as kernels read it: rows of whole pieces of 16 bytes, in ``dtype`` unless it is as the
    bias is; of a stack that is ``gated`` in its order of rows."""
    bias = bias.detach().to(dtype or bias.dtype)
    if gated:
        bias = bias.unflatten(1, (2, -1, ROWS_IN_TURN)).transpose(1, 2).flatten(1)
    missing = -bias.shape[1] % _BIAS
    return (torch.nn.functional.pad(bias, (0, missing)) if missing else bias).contiguous()


def route(x: Tensor, experts: Tensor, count: int, of_item: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of ``x`` in the order of their experts.

    Args:
        x: [T, K] float16 or bfloat16.
        experts: [T, k] int32 or int64, the experts of each token; numbers outside [0, count) are
            nobody's: such a choice adds nothing.
        count: experts of the layer.
        of_item: the most rows of an item.
    Returns:
        rows [T k, K]; items [., 3] int32, of each the expert, its first row, its rows; places
        [T, k] int32, the row of each choice, -1 for nobody's. Rows past those of all experts hold
        anything.
    """
    rows, items, places = _checked(_ops.route, x, experts, count, of_item)
    return rows, items, places


def route_rounded(
    codes: Tensor, scales: Tensor, experts: Tensor, count: int, of_item: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same of rounded rows.

    Args:
        codes, scales: [T, K] uint8, K a multiple of 16, and [T] float32, as
            ``torch.ops.ladder.rounded_codes`` has them.
        experts, count, of_item: as :func:`route`.
    Returns:
        rows [T k, K] uint8; their scales [T k] float32; items and places of :func:`route`.
    """
    rows, of_rows, items, places = _checked(
        _ops.route_rounded, codes, scales, experts, count, of_item
    )
    return rows, of_rows, items, places


def expert_linear(
    rows: Tensor, stack: Stack, bias: Tensor | None, items: Tensor, of_item: int
) -> Tensor:
    """[R, N], or [R, N / 2] of a stack that is gated: the rows of each item times the weight of its
    expert, as precise as :func:`ladder.cuda.linear.linear_image`. ``bias`` is from
    :func:`padded_bias`. No gradients."""
    return _checked(
        _ops.expert_linear, rows, stack.images, bias, items, stack.number, stack.columns, of_item
    )


def expert_linear_rounded(
    codes: Tensor,
    scales: Tensor,
    stack: Stack,
    bias: Tensor | None,
    items: Tensor,
    of_item: int,
    dtype: torch.dtype,
) -> Tensor:
    """[R, N] of ``dtype``: the same of rows of codes [R, K] uint8 with scales [R] float32, and a
    stack whose number is :func:`rounding`'s."""
    return _checked(
        _ops.expert_linear_rounded, codes, scales, stack.images, bias, items, stack.number,
        stack.columns, of_item, dtype,
    )  # fmt: skip


def rounding(stack: Stack, activation_type: str) -> Stack:
    """The same images for products of rows that are rounded to ``activation_type``."""
    return replace(stack, number=number_for(stack.number, activation_type))


def rounding_objection(
    activation_type: str,
    stacks: Sequence[tuple[int, int]],
    count: int,
    dtype: torch.dtype,
    device: torch.device,
) -> str:
    """Why no kernel rounds rows and multiplies them by the experts of a layer; "" when some do, for
    ``count`` rows at least. They are compiled.

    Args:
        stacks: of gate and up, and of down: the number of :class:`Stack`, K.
        count: of experts.
        dtype: of activations.
    """
    first, second = (number_for(number, activation_type) for number, _ in stacks)
    if not _ops.expert_rows(first, second, count, count, dtype, device.index or 0):
        return f"no kernel multiplies {dtype} rounded to {activation_type} by these experts"
    try:
        for _, k in stacks:
            rounded(torch.zeros(1, k, dtype=dtype, device=device), activation_type)
    except Unsupported as error:
        return str(error)
    return ""


def rounded(x: Tensor, activation_type: str, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Codes and scales of the rows of x [R, K], as :func:`route_rounded` takes them; by ``scale``
    [1] float32 where it is given.

    Raises Unsupported where compiler or driver have failed at the kernel; they are asked once.
    """
    made = _ops.rounded_codes(x.contiguous(), activation_type, scale)
    if not made:
        raise Unsupported(
            f"no kernel rounds {x.dtype} of {x.shape[1]} columns to {activation_type}: the log of "
            '"ladder" says why'
        )
    codes, scales = made
    return codes, scales


@functools.cache
def number_for(number: int, activation_type: str) -> int:
    """Of the same weight for rows that are rounded."""
    return _ops.weight_for(number, activation_type)


def gated(
    x: Tensor,
    activation: str,
    limit: float = math.inf,
    alpha: float = 1.702,
    alternating: bool = False,
) -> Tensor:
    """[R, N] of gate and up, [R, 2 N], as :class:`ladder.ops.gating.Gating`, in float32 and rounded
    once. ``alternating``: columns are in the order of :func:`ladder.cuda.image.gate_rows`."""
    return _checked(_ops.gated, x, activation, limit, alpha, alternating)


def combine(rows: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """[T, N]: the rows of each token's choices times their weights, added up in float32 in the
    order of the choices and rounded once. ``weights`` is [T, k], float32 or as ``rows``."""
    return _checked(_ops.combine, rows, places, weights)


# --- fakes ----------------------------------------------------------------------------------------


def _items_and_places(experts: Tensor, count: int, of_item: int) -> list[Tensor]:
    choices, int32 = experts.numel(), torch.int32
    together = _ops.items_together(of_item)
    slots = torch.sym_min(choices, count) + choices // of_item
    slots = (slots + together - 1) // together * together
    return [
        experts.new_empty((slots, 3), dtype=int32),
        experts.new_empty(tuple(experts.shape), dtype=int32),
    ]


@torch.library.register_fake("ladder::route")
def _(x: Tensor, experts: Tensor, count: int, of_item: int) -> list[Tensor]:
    rows = x.new_empty((experts.numel(), x.shape[1]))
    return [rows, *_items_and_places(experts, count, of_item)]


@torch.library.register_fake("ladder::expert_linear")
def _(
    x: Tensor,
    images: Tensor,
    bias: Tensor | None,
    items: Tensor,
    weight: int,
    n: int,
    of_item: int,
) -> Tensor:
    return x.new_empty((x.shape[0], n))


@torch.library.register_fake("ladder::route_rounded")
def _(codes: Tensor, scales: Tensor, experts: Tensor, count: int, of_item: int) -> list[Tensor]:
    choices = experts.numel()
    rows, of_rows = codes.new_empty((choices, codes.shape[1])), scales.new_empty((choices,))
    return [rows, of_rows, *_items_and_places(experts, count, of_item)]


@torch.library.register_fake("ladder::expert_linear_rounded")
def _(
    codes: Tensor,
    scales: Tensor,
    images: Tensor,
    bias: Tensor | None,
    items: Tensor,
    weight: int,
    n: int,
    of_item: int,
    dtype: torch.dtype,
) -> Tensor:
    return codes.new_empty((codes.shape[0], n), dtype=dtype)


@torch.library.register_fake("ladder::gated")
def _(x: Tensor, activation: str, limit: float, alpha: float, alternating: bool = False) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1] // 2))


@torch.library.register_fake("ladder::combine")
def _(rows: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    return rows.new_empty((places.shape[0], rows.shape[1]))
