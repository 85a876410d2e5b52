# SPDX-License-Identifier: Apache-2.0
"""What is bounded: matmuls, convolutions and any other Einsum, with the widths of their tensors."""

from __future__ import annotations

from typing import TypeAlias

from ladder._C import bounds as _native
from ladder.bounds.notation import tensors
from ladder.errors import InvalidArgument
from ladder.types import parse

Bytes: TypeAlias = _native.Bytes
Einsum: TypeAlias = _native.Einsum

#: What describes an element: bytes, the name of a format, or both sizes by themselves.
Width = float | str | Bytes


def width(spec: Width, n: int = 4096, k: int = 4096, *, buffer: Width | None = None) -> Bytes:
    """Bytes of one element of an [n, k] matrix.

    Args:
        spec: bytes (2, 0.5), a tType ("float16", "uint4,group=128,scale=float16", "mxfp4"), whose
            scales and zeros are shared out among the elements, or Bytes, returned as they are.
        n, k: the shape, for scales that end with a row.
        buffer: the same for an element in the buffer, such as "float32" for an accumulator; as
            stored if left out.
    Raises:
        ValueError: no such format, or not a positive number of bytes.
    """
    if isinstance(spec, _native.Bytes):
        return spec
    if isinstance(spec, str):
        ttype = parse(spec)
        store, code = ttype.bits_per_weight(n, k) / 8, ttype.bits / 8
    else:
        store = code = float(spec)
    inside = store if buffer is None else width(buffer, n, k).store
    return Bytes(store, inside, code)


def _widths(
    a: Width, w: Width, c: Width, n: int, k: int, accumulator: Width | None
) -> tuple[Bytes, Bytes, Bytes]:
    return width(a), width(w, n, k), width(c, buffer=accumulator)


def matmul(
    m: int, n: int, k: int, *, a: Width = 1, w: Width = 1, c: Width = 1,
    accumulator: Width | None = None,
) -> Einsum:  # fmt: skip
    """``c[m, n] = sum_k a[m, k] w[n, k]``. ``accumulator``: elements of c in the buffer."""
    return _native.matmul(m, n, k, *_widths(a, w, c, n, k, accumulator))


def batched_matmul(
    heads: int, m: int, n: int, k: int, *, a: Width = 1, w: Width = 1, c: Width = 1,
    accumulator: Width | None = None,
) -> Einsum:  # fmt: skip
    """``heads`` independent matmuls."""
    return _native.batched_matmul(heads, m, n, k, *_widths(a, w, c, n, k, accumulator))


def grouped_matmul(
    heads: int, groups: int, m: int, n: int, k: int, *, a: Width = 1, w: Width = 1, c: Width = 1,
    accumulator: Width | None = None,
) -> Einsum:  # fmt: skip
    """Matmuls of which each group of ``heads // groups`` shares one w: grouped-query attention;
    ``groups=1`` is multi-query."""
    return _native.grouped_matmul(heads, groups, m, n, k, *_widths(a, w, c, n, k, accumulator))


def conv2d(
    *, in_channels: int, out_channels: int, height: int, width: int, kernel_height: int = 1,
    kernel_width: int = 1, stride: int = 1, dilation: int = 1, batch: int = 1, a: Width = 1,
    w: Width = 1, c: Width = 1, accumulator: Width | None = None,
) -> Einsum:  # fmt: skip
    """A convolution with an output of ``height`` x ``width``, padding part of the input."""
    sizes = [batch, in_channels, out_channels, height, width, kernel_height, kernel_width, stride]
    reduction = in_channels * kernel_height * kernel_width
    widths = _widths(a, w, c, out_channels, max(reduction, 1), accumulator)
    return _native.conv2d([*sizes, dilation], *widths)


def conv1d(
    *, in_channels: int, out_channels: int, width: int, kernel_width: int = 1, stride: int = 1,
    dilation: int = 1, batch: int = 1, a: Width = 1, w: Width = 1, c: Width = 1,
    accumulator: Width | None = None,
) -> Einsum:  # fmt: skip
    """A convolution along one axis with an output of ``width``."""
    sizes = [batch, in_channels, out_channels, width, kernel_width, stride, dilation]
    reduction = max(in_channels * kernel_width, 1)
    return _native.conv1d(sizes, *_widths(a, w, c, out_channels, reduction, accumulator))


def einsum(text: str, sizes: dict[str, int], bytes: dict[str, Width] | None = None) -> Einsum:
    """Any Einsum of up to 7 ranks, from its definition.

    ``einsum("i[c, 2*p+r] * w[k, c, r] -> o[k, p]", {"c": 64, "p": 16, "r": 3, "k": 64})`` is a
    convolution of stride 2. ``bytes`` gives the width of tensors that are not 1 byte.

    Raises:
        ValueError: the text is not such a definition, a rank has no size, or ``bytes`` names no
            tensor of it.
    """
    widths = bytes or {}
    names = list(sizes)
    rows = []
    found = tensors(text)
    for name in widths:
        if name not in dict(found):
            there = ", ".join(each for each, _ in found)
            raise InvalidArgument(f"bytes has {name}, which is none of {there}")
    for name, axes in found:
        for axis in axes:
            for rank, _ in axis:
                if rank not in sizes:
                    raise InvalidArgument(f"rank {rank} of tensor {name} has no size")
        numbered = [[(names.index(rank), c) for rank, c in axis] for axis in axes]
        rows.append((name, numbered, width(widths.get(name, 1))))
    return Einsum(list(sizes.items()), rows)
