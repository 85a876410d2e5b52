# SPDX-License-Identifier: Apache-2.0
"""Scales that are integers times the second scale of their superblock (docs/format.md)."""

from __future__ import annotations

import torch
from torch import Tensor

from ladder.types import TType, element


def second_scales(scale2: Tensor, ttype: TType, groups: int, *, of_zeros: bool) -> Tensor:
    """[N, groups] float32 of ``scale2`` [N, ...]: what multiplies the scale of each group, or its
    zero."""
    own = scale2[:, int(of_zeros) :: ttype.scales_of_superblock]
    repeated = own.float().repeat_interleave(ttype.superblock // ttype.columns, 1)
    return repeated[:, :groups]


def integers_as_codes(integers: Tensor, ttype: TType) -> Tensor:
    """Whole numbers, of any dtype, as the codes of scales: uint8, of fewer bits two's
    complement."""
    bits = element(str(ttype.scale)).bits
    return (integers.to(torch.int16) & ((1 << bits) - 1)).to(torch.uint8)
