# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose results are integers, of one group and of several."""

from __future__ import annotations

from typing import Any

import torch
from drawn import exact_weight, formula, integers
from torch import Tensor
from torch.nn import functional as F

import ladder

FILTERS, C = 24, 6
TYPE = "uint4,group=32,scale=float16,zero=midpoint"
#: kernel, stride, padding, dilation
GEOMETRIES = (
    ((3, 3), (1, 1), (1, 1), (1, 1)),
    ((3, 2), (2, 3), (0, 2), (1, 1)),
    ((2, 3), (1, 2), (2, 0), (3, 2)),
    ((1, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 1), (2, 2), (0, 0), (1, 1)),
    ((4, 4), (4, 4), (0, 0), (1, 1)),
    ((7, 7), (2, 2), (3, 3), (1, 1)),
    ((7, 7), (1, 1), (3, 3), (1, 1)),
)


def exact_conv(
    geometry: Any = GEOMETRIES[0],
    type: str = TYPE,
    *,
    groups: int = 1,
    bias: bool = True,
    **more: Any,
) -> tuple[ladder.Conv2d, Tensor]:
    """A module, and the values of its weight [F, C / groups, Y, X] in float64."""
    kernel, each = geometry[0], C // groups
    weight = exact_weight(type, FILTERS, each * kernel[0] * kernel[1], **more)
    conv = ladder.Conv2d.from_weight(weight, C, *geometry, groups=groups, bias=bias)
    if bias:
        conv.bias.data.copy_(integers((FILTERS,), torch.float32, 9))
    return conv, formula(weight).view(FILTERS, *kernel, each).permute(0, 3, 1, 2)


def wanted_of(x: Tensor, values: Tensor, conv: ladder.Conv2d) -> Tensor:
    """In float64, which convolutions of integers hold."""
    bias = None if conv.bias is None else conv.bias.double()
    geometry = (conv.stride, conv.padding, conv.dilation, conv.groups)
    return F.conv2d(x.double(), values, bias, *geometry)
