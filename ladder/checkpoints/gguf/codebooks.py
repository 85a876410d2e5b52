# SPDX-License-Identifier: Apache-2.0
"""Block formats whose codes are looked up in tables of four or eight values at once.

An index chooses magnitudes, or for iq1 values -1, 0 and 1, of a table that llama.cpp has made once
for all; signs lie beside it. No tType has such tables: here each element gets a code of its own, in
a table of the few values that there are. Weights stay what they are and take more bits.

The tables are those of the package gguf, without which no GGUF file is read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.gguf.block import Parts, half

_EIGHT = torch.arange(8, dtype=torch.uint8)


@cache
def _grid(name: str) -> Tensor:
    """Row i: for each of the elements that index i stands for, which of the format's magnitudes, in
    rising order, it has: uint8 [indices, 4 or 8]."""
    from gguf import quants

    kind: Any = getattr(quants, name)
    kind.init_grid()
    values = torch.from_numpy(kind.grid).reshape(kind.grid_shape)
    return torch.searchsorted(torch.tensor(sorted(kind.grid_map)).float(), values).byte()


def _looked_up(name: str, indices: Tensor) -> Tensor:
    """Indices [B, I] -> [B, E]."""
    return _grid(name)[indices.long()].flatten(1)


def _signed(magnitudes: Tensor, signs: Tensor, bit: int) -> Tensor:
    """Put the signs, bits of the bytes [B, E / 8], into codes [B, E] as bit ``bit``."""
    return magnitudes | ((signs[..., None] >> _EIGHT & 1) << bit).flatten(1)


def _sevens(words: Tensor) -> Tensor:
    """Each word [B, W] has four numbers of seven bits, which are signs, and the eighth of each
    makes the number of negative ones even: bytes [B, 4 W]."""
    fields = (words[..., None] >> torch.arange(0, 28, 7)) & 127
    odd = (fields[..., None] >> torch.arange(7) & 1).sum(-1) & 1
    return (fields | odd << 7).byte().flatten(1)


def _numbers(octets: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as unsigned numbers of two or four, int64."""
    numbers = octets.contiguous().view(dtype).long()
    return numbers & ((1 << 8 * dtype.itemsize) - 1)


def _nibbles_in_turn(octets: Tensor) -> Tensor:
    """[B, W] -> [B, 2 W]: the low half of each byte, then its high one."""
    return torch.stack((octets & 15, octets >> 4), -1).flatten(1)


def _odd_scales(codes: Tensor, numbers: Tensor, d: Tensor) -> Parts:
    """Scales are ``(2 number + 1) * d``."""
    return Parts(codes, (2 * numbers + 1).byte(), scale2=d)


def iq2_xxs(blocks: Tensor) -> Parts:
    words = _numbers(blocks[:, 2:], torch.int32).reshape(len(blocks), 8, 2)
    indices = blocks[:, 2:].reshape(-1, 8, 8)[..., :4].flatten(1)
    codes = _signed(_looked_up("IQ2_XXS", indices), _sevens(words[..., 1]), 2)
    return _odd_scales(codes, words[..., 1] >> 28, half(blocks, 0).float() / 8)


def iq2_xs(blocks: Tensor) -> Parts:
    words = _numbers(blocks[:, 2:66], torch.int16)
    sevens = words >> 9
    odd = (sevens[..., None] >> torch.arange(7) & 1).sum(-1) & 1
    codes = _signed(_looked_up("IQ2_XS", words & 511), (sevens | odd << 7).byte(), 2)
    return _odd_scales(codes, _nibbles_in_turn(blocks[:, 66:]), half(blocks, 0).float() / 8)


def _with_high_bits(low: Tensor, high: Tensor, bits: int, each: int) -> Tensor:
    """Indices: bytes [B, I], and above them ``bits`` bits each of the bytes ``high``, at every
    ``each`` bits."""
    fields = high[..., None].long() >> torch.arange(0, 8, each) & ((1 << bits) - 1)
    return low.long() | fields.flatten(1) << 8


def iq2_s(blocks: Tensor) -> Parts:
    indices = _with_high_bits(blocks[:, 2:34], blocks[:, 66:74], 2, 2)
    codes = _signed(_looked_up("IQ2_S", indices), blocks[:, 34:66], 2)
    return _odd_scales(codes, _nibbles_in_turn(blocks[:, 74:]), half(blocks, 0).float() / 8)


def iq3_xxs(blocks: Tensor) -> Parts:
    words = _numbers(blocks[:, 66:], torch.int32)
    codes = _signed(_looked_up("IQ3_XXS", blocks[:, 2:66]), _sevens(words), 3)
    return _odd_scales(codes, words >> 28, half(blocks, 0).float() / 4)


def iq3_s(blocks: Tensor) -> Parts:
    indices = _with_high_bits(blocks[:, 2:66], blocks[:, 66:74], 1, 1)
    codes = _signed(_looked_up("IQ3_S", indices), blocks[:, 74:106], 3)
    return _odd_scales(codes, _nibbles_in_turn(blocks[:, 106:]), half(blocks, 0))


def iq1_s(blocks: Tensor) -> Parts:
    # A group has the values s (v + 1/8) or s (v - 1/8), v of -1, 0 and 1.
    words = _numbers(blocks[:, 34:], torch.int16)
    high = (words[..., None] >> torch.arange(0, 12, 3) & 7).flatten(1)
    codes = _looked_up("IQ1_S", blocks[:, 2:34].long() | high << 8)
    scales = 2 * (words >> 12 & 7) + 1
    zeros = scales * torch.where(words >> 15 == 1, 9, 7)  # eighths
    d = half(blocks, 0).float()
    return Parts(codes, scales.byte(), zeros.byte(), torch.cat((d, d / 8), 1))


def iq1_m(blocks: Tensor) -> Parts:
    # As iq1_s, but every eight elements have 1/8 or -1/8 of their own: it is in their codes.
    words = _numbers(blocks[:, 48:], torch.int16)
    pieces = (words >> 12) << torch.arange(0, 16, 4)
    d = pieces.sum(-1, keepdim=True).short().view(torch.float16).float()
    numbers = (words[..., None] >> torch.arange(0, 12, 3) & 7).flatten(1)
    fields = _nibbles_in_turn(blocks[:, 32:48]).long()
    codes = _looked_up("IQ1_M", blocks[:, :32].long() | (fields & 7) << 8)
    above = (fields >> 3 == 0).repeat_interleave(8, 1)
    return _odd_scales(2 * codes + above, numbers, d / 8)
