# SPDX-License-Identifier: Apache-2.0
"""Weight images: what kernels of a GPU read of a weight, in one tensor.

An image has the bits of the canonical codes (docs/format.md) in another order, rows and columns
padded to multiples of 64, and behind them the scales, zeros and order of columns as kernels read
them (csrc/layout/image_parts.h). It is made on the device and gives the canonical codes back to
the bit. What is stored on disk is always canonical.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ladder import _library  # noqa: F401  (registers torch.ops.ladder)
from ladder.errors import InvalidArgument, Unsupported
from ladder.ops.gating import ROWS_IN_TURN, Gating
from ladder.types import TType, _checked, element
from ladder.weight import Weight

_ops = torch.ops.ladder

#: Rows and columns of the blocks of an image.
BLOCK = 64
#: How torch sees the scalars of parts; narrow formats are bytes.
_DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "u8": torch.uint8,
    "s8": torch.int8,
    "e8m0": torch.uint8,
    "e4m3": torch.uint8,
    "u32": torch.int32,
}


@dataclass(frozen=True)
class Part:
    """Where an image has scales, zeros, scale2 or gather (csrc/layout/image_parts.h)."""

    offset_bytes: int
    elements: int
    scalar: str

    def of(self, image: Tensor) -> Tensor:
        """The part, flat, sharing the memory of ``image``."""
        dtype = _DTYPES[self.scalar]
        end = self.offset_bytes + self.elements * dtype.itemsize
        return image.view(torch.uint8)[self.offset_bytes : end].view(dtype)


@dataclass(frozen=True)
class Parts:
    """What an image of ``words`` int32 has behind its codes."""

    code_words: int
    words: int
    parts: dict[str, Part]


@functools.cache
def parts(weight: int) -> Parts:
    """Of the weights that are called ``weight`` (:func:`open_weight`)."""
    first, *lines = _ops.image_parts(weight).splitlines()
    code_words, words = map(int, first.split())
    found = {}
    for name, offset, elements, scalar in map(str.split, lines):
        found[name] = Part(int(offset), int(elements), scalar)
    return Parts(code_words, words, found)


def open_weight(
    type: str,
    n: int,
    k: int,
    gather: bool = False,
    *,
    dependent_launch: bool = False,
    activation_type: str = "",
    gating: Gating | None = None,
    function: str = "",
) -> int:
    """The number by which ops know weights of this type, shape and order of columns, the same in
    every process. Only for weights without a
    :func:`ladder.cuda.kernels.objection`.

    Args:
        dependent_launch: on devices that have it, kernels are launched so: they read the image, and
            nothing else, before the kernels in front of them on the stream have ended. Those must
            not write it: wait for the stream once after :func:`pack`. One image serves both.
        activation_type: what kernels round activations to, as :attr:`ladder.Linear.activation_type`
            says; "" for none. One image serves all whose zero points
            :func:`ladder.ops.activations.zeros_objection` takes.
        gating: rows of the weight are those of gate and up in turn (:func:`gate_rows`), and kernels
            give the product of both, [M, N / 2], computed in float32 and rounded once.
        function: an activation function of the sums (:class:`ladder.ops.gating.Activation`), in
            float32 and rounded once; "" for none.
    """
    gate: tuple[str, float, float] = ("", 0.0, 0.0)
    if gating is not None:
        gate = gating.activation, gating.least_limit, gating.alpha
    return _ops.open_weight(type, n, k, gather, dependent_launch, activation_type, *gate, function)


def alternates(n: int) -> bool:
    """Whether N rows of gate and up, half of each, can lie in turn."""
    return n % (2 * ROWS_IN_TURN) == 0


@functools.cache
def gate_rows(n: int, device: torch.device, up_first: bool = False) -> Tensor:
    """[N] int64: the row of a weight, gate in front of up, that each row is where they lie in turn,
    eight of the gate and eight of up.

    Args:
        up_first: in the weight, up is in front of the gate.
    """
    halves = torch.arange(n, device=device).view(2, -1, ROWS_IN_TURN)
    return (halves.flip(0) if up_first else halves).transpose(0, 1).reshape(-1)


@functools.cache
def activation_type_of(weight: int) -> str:
    """That of :func:`open_weight`."""
    return _ops.activation_type(weight)


def column_order(weight: Weight) -> Tensor | None:
    """[K] int32: the column of the weight that each column of its image is, so that groups lie
    side by side; None where they do already.

    Raises:
        Unsupported: the groups of ``g_idx`` differ in length from those of the type.
    """
    return None if weight.g_idx is None else order_by_group(weight.g_idx, weight.type)


def order_by_group(g_idx: Tensor, ttype: TType) -> Tensor | None:
    """The same of a ``g_idx`` [K]."""
    k = g_idx.numel()
    columns = torch.arange(k, device=g_idx.device)
    groups, order = g_idx.long().sort(stable=True)
    if not torch.equal(groups, columns // (ttype.columns or k)):
        raise Unsupported(
            f"g_idx does not give {ttype.columns or k} columns to each group of {ttype}"
        )
    return None if torch.equal(order, columns) else order.to(torch.int32)


def pack(
    weight: Weight, number: int, order: Tensor | None = None, rows: Tensor | None = None
) -> Tensor:
    """The image of a weight, on its CUDA device.

    Args:
        number: from :func:`open_weight`.
        order: from :func:`column_order`.
        rows: [N] int64, the row of the weight that each row of the image is; None: they are as they
            are.
    """
    layout = parts(number)
    qweight = weight.qweight.contiguous() if rows is None else weight.qweight[rows]
    if order is not None:
        qweight = _checked(_ops.permute_codes, qweight, order, number)
    image = torch.empty(layout.words, dtype=torch.int32, device=qweight.device)
    image[layout.code_words :].zero_()
    _checked(_ops.pack_image, qweight, image, number)
    for name, part in layout.parts.items():
        to = part.of(image)
        if name == "gather":
            to.copy_(_given(order, name))
        elif name == "scale2":
            second = _given(weight.scale2, name)
            if weight.type.superblock:
                second = _of_superblocks(second, weight, rows)
            elif rows is not None and weight.type.scale2_of_rows:
                second = second[rows]
            to.copy_(second)
        else:
            numbers = _numbers(weight, name, _DTYPES[part.scalar])
            to.copy_(_reordered(numbers, weight, rows).view(-1))
    return image


def unpack(
    image: Tensor, number: int, ttype: TType, n: int, k: int, rows: Tensor | None = None
) -> Tensor:
    """The canonical codes of an image, bit for bit; ``rows`` as :func:`pack` had them."""
    qweight = _checked(_ops.unpack_image, image, number, n, ttype.words(k))
    if rows is not None:
        qweight = qweight[rows.argsort()]
    gather = parts(number).parts.get("gather")
    if gather is None:
        return qweight
    order = gather.of(image).long()
    return _checked(_ops.permute_codes, qweight, order.argsort().to(torch.int32), number)


def _given(part: Tensor | None, name: str) -> Tensor:
    if part is None:
        raise InvalidArgument(f"the image has {name}, which the weight has not")
    return part


def _numbers(weight: Weight, name: str, dtype: torch.dtype) -> Tensor:
    """Scales or zeros [block rows, groups] in the dtype of the image, which holds them exactly."""
    ttype, stored = weight.type, getattr(weight, name)
    if name == "zeros" and ttype.zero == "quantized":
        return _ops.unpack(stored.contiguous(), ttype.groups(weight.shape[1]), ttype.bits)
    if ttype.scale is not None and stored.dtype == torch.uint8 and dtype != torch.uint8:
        # Codes of a format that kernels do not know.
        return element(ttype.scale).values.to(dtype).to(stored.device)[stored.long()]
    return stored.to(dtype)


def _of_superblocks(scale2: Tensor, weight: Weight, rows: Tensor | None) -> Tensor:
    """Second scales of scales as scales are, and behind them those of zeros, flat."""
    kinds = scale2.view(weight.shape[0], -1, weight.type.scales_of_superblock).unbind(2)
    return torch.cat([_reordered(each, weight, rows).view(-1) for each in kinds])


def _reordered(blocks: Tensor, weight: Weight, order: Tensor | None = None) -> Tensor:
    """[block rows, groups] to [groups, ceil(N / 64), 8, 8]: element [g][j] of a block is row
    g + 8 j. Rows of a block of rows repeat its number; rows beyond N have 0."""
    n, rows = weight.shape[0], weight.type.rows
    numbers = blocks.expand(n, -1) if rows == 0 else blocks.repeat_interleave(rows, 0)[:n]
    if order is not None:
        numbers = numbers[order]
    padded = torch.nn.functional.pad(numbers.t(), (0, -n % BLOCK))
    return padded.view(-1, padded.shape[1] // BLOCK, 8, 8).transpose(2, 3).contiguous()


# --- fakes ----------------------------------------------------------------------------------------


@torch.library.register_fake("ladder::pack_image")
def _(qweight: Tensor, image: Tensor, weight: int) -> None:
    raise NotImplementedError("an image is made outside of traced code: call ladder.warmup first")


@torch.library.register_fake("ladder::permute_codes")
def _(qweight: Tensor, columns: Tensor, weight: int) -> Tensor:
    return torch.empty_like(qweight)


@torch.library.register_fake("ladder::unpack_image")
def _(image: Tensor, weight: int, n: int, words: int) -> Tensor:
    return image.new_empty((n, words))


@torch.library.register_fake("ladder::dequantize_image")
def _(image: Tensor, weight: int, n: int, k: int, dtype: torch.dtype) -> Tensor:
    return image.new_empty((n, k), dtype=dtype)
