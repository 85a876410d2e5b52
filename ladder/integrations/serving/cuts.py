# SPDX-License-Identifier: Apache-2.0
"""Rows and columns of canonical tensors: what one rank holds of them, and how they are joined."""

from __future__ import annotations

import torch
from torch import Tensor

from ladder import ops
from ladder.errors import InvalidArgument
from ladder.types import TType
from ladder.weight import Weight


def shape_of(part: str, ttype: TType | None, n: int, k: int, dense: torch.dtype) -> torch.Tensor:
    """An empty tensor on the meta device of the shape and dtype of ``part`` of a weight [n, k];
    ``dense`` is the dtype of a dense weight."""

    def meta(shape: tuple[int, ...] | None, dtype: torch.dtype | None) -> Tensor:
        if shape is None or dtype is None:
            raise InvalidArgument(f'{part} is stored, but type "{ttype}" has none')
        return torch.empty(shape, dtype=dtype, device="meta")

    if ttype is None:
        return meta((n, k), dense)
    if part == "qweight":
        return meta((n, ttype.words(k)), torch.int32)
    if part == "scales":
        return meta((ttype.block_rows(n), ttype.groups(k)), ttype.scale_dtype)
    if part == "zeros":
        return meta(ttype.zeros_shape(n, k), ttype.zeros_dtype)
    if part == "scale2":
        return meta((1,), torch.float32)
    return meta((k,), torch.int32)


def rows_of(
    part: str, tensor: Tensor, ttype: TType | None, start: int, count: int, whole: int
) -> Tensor:
    """Rows [start, start + count) of the ``whole`` ones of ``part``; ``scale2`` and ``g_idx``
    belong to every row.

    Raises:
        InvalidArgument: a block of rows that share a scale would be cut.
    """
    if part in ("scale2", "g_idx"):
        return tensor
    block = 1 if ttype is None or part == "qweight" else ttype.rows
    if block == 0:
        return tensor
    end = start + count
    if start % block or (end % block and end != whole):
        raise InvalidArgument(
            f"rows {start} to {end} cut blocks of {block} rows of type {ttype}"
        )
    return tensor[start // block : -(-end // block)]


def columns_objection(ttype: TType | None, k: int, start: int, count: int) -> str:
    """Why the columns [start, start + count) of a weight with k columns cannot be taken; or ""."""
    if ttype is None:
        return ""
    end, columns = start + count, ttype.columns
    if columns and (start % columns or (end % columns and end != k)):
        return f"columns {start} to {end} cut groups of {columns} columns"
    if start * ttype.bits % 32 or (end * ttype.bits % 32 and end != k):
        return f"columns {start} to {end} of {ttype.bits} bits cut a 32-bit word"
    return ""


def columns_of(
    part: str, tensor: Tensor, ttype: TType | None, k: int, start: int, count: int
) -> Tensor:
    """Columns [start, start + count), to which :func:`columns_objection` has none, of k."""
    end = start + count
    if ttype is None:
        return tensor[:, start:end]
    if part == "qweight":
        return tensor[:, start * ttype.bits // 32 : -(-end * ttype.bits // 32)]
    if part == "scale2" or not ttype.columns:
        return tensor
    if part == "g_idx":  # that of groups side by side: it is the same for every rank
        return tensor[:count]
    first, last = start // ttype.columns, -(-end // ttype.columns)
    if part == "zeros" and ttype.zero == "quantized":
        zeros = ops.unpack(tensor, ttype.groups(k), ttype.bits)[:, first:last]
        return ops.pack(zeros.contiguous(), ttype.bits)
    return tensor[:, first:last]


def joinable(one: Weight, other: Weight) -> bool:
    """Whether the rows of ``other`` can follow those of ``one`` in one weight."""
    if one.type != other.type or one.shape[1] != other.shape[1]:
        return False
    shared = ["scale2", "g_idx"]
    if one.type.rows == 0:  # a scale, and a zero, for the whole tensor
        shared += ["scales", "zeros"]
    elif one.shape[0] % one.type.rows:
        return False
    return all(_same(getattr(one, part), getattr(other, part)) for part in shared)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def join(weights: list[Weight]) -> Weight:
    """One weight of all their rows; each is :func:`joinable` to the one before."""
    first = weights[0]
    if len(weights) == 1:
        return first
    parts = {}
    for name, part in first.tensors().items():
        whole = name in ("scale2", "g_idx") or (name != "qweight" and first.type.rows == 0)
        rows = [getattr(weight, name) for weight in weights]
        parts[name] = part if whole else torch.cat(rows)
    return Weight(first.type, (sum(w.shape[0] for w in weights), first.shape[1]), **parts)
