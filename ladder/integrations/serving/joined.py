# SPDX-License-Identifier: Apache-2.0
"""Shapes of the parts of one layer, and weights joined row below row."""

from __future__ import annotations

import torch
from torch import Tensor

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
