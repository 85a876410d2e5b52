# SPDX-License-Identifier: Apache-2.0
"""Activations of 8 bits: what ``activation_type`` may say of which weights, and the rounding of x
in torch's own ops."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass

import torch
from torch import Tensor

from ladder import _library  # noqa: F401  (registers torch.ops.ladder)
from ladder.errors import InvalidArgument, Unsupported
from ladder.types import TType

#: What ``activation_type`` may be, beside None: x as it comes.
ACTIVATION_TYPES = ("int8",)

NO_G_IDX = (
    "activation_type int8 does not take a weight with g_idx: the columns of a group are no "
    "neighbours, so their products have no common scale"
)

#: Blocks of x whose largest magnitude is below this count as zeros.
_LEAST = 2.0**-100


def no_kernels(device: str) -> str:
    """What is wrong on devices but the CPU."""
    return f"activation_type int8 has kernels on the CPU, and none for devices of type {device} yet"


@dataclass(frozen=True)
class Int8:
    """How weights of one type meet x of 8 bits.

    Attributes:
        block: columns of x that share a scale.
        exact: codes keep their values; else each has the nearest multiple of one step.
        values: by code, what codes mean in such products, without scale and zero.
    """

    block: int
    exact: bool
    values: tuple[float, ...]


def objection(activation_type: str | None, ttype: TType, k: int) -> str:
    """Why weights of ``ttype`` with ``k`` columns take no such activations; "" when they do.

    Raises:
        InvalidArgument: ``activation_type`` is none that ladder knows.
    """
    if activation_type is None:
        return ""
    if activation_type not in ACTIVATION_TYPES:
        known = ", ".join(f'"{name}"' for name in ACTIVATION_TYPES)
        raise InvalidArgument(f'activation_type is "{activation_type}", not {known} or None')
    return _info(str(ttype), k)[0]


def check(activation_type: str | None, ttype: TType, k: int) -> None:
    """Raise Unsupported where there is an :func:`objection`, InvalidArgument as that does."""
    if why := objection(activation_type, ttype, k):
        raise Unsupported(why)


def int8(ttype: TType, k: int) -> Int8:
    """What becomes of x and of weights [N, k] of ``ttype``. Raises Unsupported as :func:`check`."""
    check("int8", ttype, k)
    return _info(str(ttype), k)[1]


@functools.cache
def _info(type: str, k: int) -> tuple[str, Int8]:
    info = json.loads(torch.ops.ladder.int8_info(type, k))
    return info["objection"], Int8(info["block"], info["exact"], tuple(info["values"]))


def round_activations(x: Tensor, ttype: TType) -> Tensor:
    """What products of ``activation_type`` "int8" see of x: [..., K] float32, the same bits.

    Each block of :attr:`Int8.block` columns has one scale, its largest magnitude / 127; a number is
    the nearest multiple, ties to even, so at most half a scale away. A block below 2**-100 is
    zeros; one with a number that is not finite is NaN.

    Gradients go straight through: that of the result is that of ``x``.
    """
    k = x.shape[-1]
    block = int8(ttype, k).block
    wide = x.to(torch.float32)
    fixed = wide.detach()
    blocks = torch.nn.functional.pad(fixed, (0, -k % block)).unflatten(-1, (-1, block))
    most = blocks.abs().amax(-1, keepdim=True)
    small = most < _LEAST
    # Not 127 / most, which torch takes for 127 times a reciprocal.
    all_of = torch.full_like(most, 127)
    inverse, scale = torch.where(small, 0.0, all_of / most), torch.where(small, 0.0, most / all_of)
    rounded = ((blocks * inverse).round() * scale).flatten(-2)[..., :k]
    return rounded + (wide - fixed)
