# SPDX-License-Identifier: Apache-2.0
"""Blocks of GGUF files, of what they are to hold: the other way of
:mod:`ladder.checkpoints.gguf.blocks`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Elements that blocks of 256 are read in: halves of four runs of 32.
_HALVES = (2, 4, 32)


@dataclass(frozen=True)
class Content:
    """What B blocks are to hold, E elements each.

    Attributes:
        codes: uint8 [B, E], as the format has them.
        scale: float16 [B, 1], or bytes.
        other: float16 [B, 1]: what is added to all elements, or the scale of the minima.
        scales, minima: uint8 [B, G] of groups, in blocks of 256. Those of scales that may be
            negative are two's complement.
    """

    codes: Tensor
    scale: Tensor
    other: Tensor | None = None
    scales: Tensor | None = None
    minima: Tensor | None = None


def _bytes(*parts: Tensor) -> Tensor:
    """Parts of blocks side by side, [B, bytes]."""
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], 1)


def _unruns(values: Tensor, bits: int) -> Tensor:
    """[..., 8 / bits, W] -> [..., W] bytes: run j has bits [j bits, (j + 1) bits) of each."""
    found = torch.zeros_like(values[..., 0, :])
    for run in range(8 // bits):
        found |= values[..., run, :] << (run * bits)
    return found


def _nibbles(codes: Tensor) -> Tensor:
    """[..., 2 W] -> [..., W] bytes: the first half in the low bits."""
    return _unruns(codes.unflatten(-1, (2, -1)), 4)


def _bits(codes: Tensor, which: int) -> Tensor:
    """[B, 32] -> [B, 4] bytes: one bit of each code, the first lowest."""
    return _unruns((codes >> which & 1).unflatten(-1, (4, 8)).transpose(-1, -2), 1)


def _two_bits(codes: Tensor) -> Tensor:
    """[B, 256] -> [B, 64] bytes."""
    return _unruns(codes.unflatten(-1, _HALVES), 2).flatten(1)


def scale_and_nibbles(given: Content) -> Tensor:
    return _bytes(given.scale, _nibbles(given.codes))


def two_and_nibbles(given: Content) -> Tensor:
    assert given.other is not None
    return _bytes(given.scale, given.other, _nibbles(given.codes))


def q5_0(given: Content) -> Tensor:
    codes = given.codes
    return _bytes(given.scale, _bits(codes, 4), _nibbles(codes & 15))


def q5_1(given: Content) -> Tensor:
    codes = given.codes
    assert given.other is not None
    return _bytes(given.scale, given.other, _bits(codes, 4), _nibbles(codes & 15))


def q8_0(given: Content) -> Tensor:
    return _bytes(given.scale, given.codes)


def q2_k(given: Content) -> Tensor:
    assert given.scales is not None and given.minima is not None and given.other is not None
    both = given.scales | given.minima << 4
    return _bytes(both, _two_bits(given.codes), given.scale, given.other)


def q3_k(given: Content) -> Tensor:
    assert given.scales is not None
    third = _unruns((given.codes >> 2).unflatten(-1, (8, 32)), 1)
    stored = given.scales + 32
    high = _unruns((stored >> 4).unflatten(-1, (4, 4)), 2)
    return _bytes(third, _two_bits(given.codes & 3), _nibbles(stored & 15), high, given.scale)


def _six_bits(scales: Tensor | None, minima: Tensor | None) -> Tensor:
    """[B, 8] each -> [B, 12] bytes."""
    assert scales is not None and minima is not None
    (one, two), (three, four) = scales.split(4, -1), minima.split(4, -1)
    first, second = one | (two >> 4) << 6, three | (four >> 4) << 6
    return torch.cat((first, second, (two & 15) | (four & 15) << 4), -1)


def q4_k(given: Content) -> Tensor:
    assert given.other is not None
    codes = _nibbles(given.codes.unflatten(-1, (4, 64))).flatten(1)
    small = _six_bits(given.scales, given.minima)
    return _bytes(given.scale, given.other, small, codes)


def q5_k(given: Content) -> Tensor:
    assert given.other is not None
    fifth = _unruns((given.codes >> 4).unflatten(-1, (8, 32)), 1)
    codes = _nibbles((given.codes & 15).unflatten(-1, (4, 64))).flatten(1)
    small = _six_bits(given.scales, given.minima)
    return _bytes(given.scale, given.other, small, fifth, codes)


def q6_k(given: Content) -> Tensor:
    assert given.scales is not None
    low = _unruns((given.codes & 15).unflatten(-1, (2, 2, 64)), 4).flatten(1)
    return _bytes(low, _two_bits(given.codes >> 4), given.scales, given.scale)


def tq2_0(given: Content) -> Tensor:
    return _bytes(_two_bits(given.codes), given.scale)


def nvfp4(given: Content) -> Tensor:
    return _bytes(given.scale, _nibbles(given.codes.unflatten(-1, (4, 16))).flatten(1))
