# SPDX-License-Identifier: Apache-2.0
"""The block formats of GGUF files, and the tTypes that hold exactly what they hold.

llama.cpp stores a row of a weight as blocks of 32 to 256 elements. A "k-quant" has blocks of 256
with one or two float16 scales and small integers, of which a group of 16 or 32 elements has its
scale (and its minimum) as a product. So have the superblocks of a tType. Such a product has at most
19 significant bits: weights computed from it in float32 are llama.cpp's bit by bit. Where
llama.cpp's formula has an eighth or half of a float16, which need not be one, second scales are
float32.

A tType has one code for each element. Formats whose codes stand for four or eight elements at once
(ladder.checkpoints.gguf.codebooks) take more bits in it, and the same values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ladder.checkpoints.gguf import codebooks
from ladder.checkpoints.gguf.block import Block, Parts, half, nibbles, runs


def _high_bits(blocks: Tensor, at: int) -> Tensor:
    """Bit e of the four bytes at ``at`` is the highest of element e: [B, 32], 0 or 16."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((blocks[:, at : at + 4, None] >> shifts & 1) << 4).flatten(1)


def _q4_0(blocks: Tensor) -> Parts:
    return Parts(nibbles(blocks[:, 2:]), half(blocks, 0))


def _q4_1(blocks: Tensor) -> Parts:
    return Parts(nibbles(blocks[:, 4:]), half(blocks, 0), -half(blocks, 2))


def _q5_0(blocks: Tensor) -> Parts:
    return Parts(nibbles(blocks[:, 6:]) | _high_bits(blocks, 2), half(blocks, 0))


def _q5_1(blocks: Tensor) -> Parts:
    codes = nibbles(blocks[:, 8:]) | _high_bits(blocks, 4)
    return Parts(codes, half(blocks, 0), -half(blocks, 2))


def _q8_0(blocks: Tensor) -> Parts:
    return Parts(blocks[:, 2:], half(blocks, 0))


def _two_bits(octets: Tensor) -> Tensor:
    """[B, 64] bytes -> [B, 2, 4, 32]: half, run, element."""
    return runs(octets.reshape(-1, 2, 32), 2)


def _two_halves(blocks: Tensor, at: int) -> Tensor:
    return torch.cat((half(blocks, at), half(blocks, at + 2)), 1)


def _q2_k(blocks: Tensor) -> Parts:
    scales, minima = blocks[:, :16] & 15, blocks[:, :16] >> 4
    return Parts(_two_bits(blocks[:, 16:80]).flatten(1), scales, minima, _two_halves(blocks, 80))


def _q3_k(blocks: Tensor) -> Parts:
    # Bit 4 half + run of byte e is the third bit of an element; clear, it means 4 less.
    third = runs(blocks[:, :32], 1).reshape(-1, 2, 4, 32)
    codes = _two_bits(blocks[:, 32:96]) | (third << 2)
    low = nibbles(blocks[:, 96:104])
    high = runs(blocks[:, 104:108], 2).flatten(1)
    scales = (low | (high << 4)) ^ 32  # counted from the least: in two's complement
    return Parts(codes.flatten(1), scales, scale2=half(blocks, 108))


def _scales_of_six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """[B, 12] bytes -> eight scales and eight minima of six bits, [B, 8] each."""
    first, second, third = packed.split(4, -1)
    scales = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), -1)
    return scales, torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), -1)


def _with_minima(blocks: Tensor, codes: Tensor) -> Parts:
    scales, minima = _scales_of_six_bits(blocks[:, 4:16])
    return Parts(codes, scales, minima, _two_halves(blocks, 0))


def _q4_k(blocks: Tensor) -> Parts:
    return _with_minima(blocks, nibbles(blocks[:, 16:].reshape(-1, 4, 32)).flatten(1))


def _q5_k(blocks: Tensor) -> Parts:
    fifth = runs(blocks[:, 16:48], 1).flatten(1)
    low = nibbles(blocks[:, 48:].reshape(-1, 4, 32)).flatten(1)
    return _with_minima(blocks, low | (fifth << 4))


def _q6_k(blocks: Tensor) -> Parts:
    low = runs(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 2, 4, 32)
    codes = low | (_two_bits(blocks[:, 128:192]) << 4)
    return Parts(codes.flatten(1), blocks[:, 192:208], scale2=half(blocks, 208))


def _iq4_xs(blocks: Tensor) -> Parts:
    low = runs(blocks[:, 4:8], 4).transpose(1, 2).flatten(1)
    high = runs(blocks[:, 2:4], 2).transpose(1, 2).flatten(1)
    scales = (low | (high << 4)) ^ 32
    codes = nibbles(blocks[:, 8:].reshape(-1, 8, 16)).flatten(1)
    return Parts(codes, scales, scale2=half(blocks, 0))


def _trits(octets: Tensor, count: int) -> Tensor:
    """[B, W] bytes -> [B, count W]: a byte is a fraction of 256 with ``count`` digits of base 3."""
    powers = torch.tensor([3**digit for digit in range(count)], dtype=torch.int32)[:, None]
    fraction = (octets[:, None].int() * powers) & 255
    return (fraction * 3 >> 8).byte().flatten(1)


def _tq1_0(blocks: Tensor) -> Parts:
    digits = (_trits(blocks[:, :32], 5), _trits(blocks[:, 32:48], 5), _trits(blocks[:, 48:52], 4))
    return Parts(torch.cat(digits, -1), half(blocks, 52))


def _tq2_0(blocks: Tensor) -> Parts:
    return Parts(_two_bits(blocks[:, :64]).flatten(1), half(blocks, 64))


def _mxfp4(blocks: Tensor) -> Parts:
    return Parts(nibbles(blocks[:, 1:]), blocks[:, :1])


def _nvfp4(blocks: Tensor) -> Parts:
    # llama.cpp does not look at the sign of a scale, and takes what is no number for 0.
    scales = blocks[:, :4] & 127
    codes = nibbles(blocks[:, 4:].reshape(-1, 4, 8)).flatten(1)
    return Parts(codes, scales.masked_fill(scales == 127, 0))


_HALVES, _FLOATS = "scale2=float16:256", "scale2=float32:256"
_IQ1_S = f"uint2,group=32,scale=uint8,zero=rescale,{_FLOATS}"
#: To add a format, add its row. Source: ggml's block structs (ggml-common.h) of llama.cpp.
BLOCKS = {
    block.number: block
    for block in (
        Block(2, "q4_0", 32, 18, "uint4,group=32,scale=float16,zero=midpoint", _q4_0),
        Block(3, "q4_1", 32, 20, "uint4,group=32,scale=float16,zero=rescale", _q4_1),
        Block(6, "q5_0", 32, 22, "uint5,group=32,scale=float16,zero=midpoint", _q5_0),
        Block(7, "q5_1", 32, 24, "uint5,group=32,scale=float16,zero=rescale", _q5_1),
        Block(8, "q8_0", 32, 34, "int8,group=32,scale=float16", _q8_0),
        Block(10, "q2_k", 256, 84, "q2_k", _q2_k),
        Block(11, "q3_k", 256, 110, "q3_k", _q3_k),
        Block(12, "q4_k", 256, 144, "q4_k", _q4_k),
        Block(13, "q5_k", 256, 176, "q5_k", _q5_k),
        Block(14, "q6_k", 256, 210, "q6_k", _q6_k),
        Block(16, "iq2_xxs", 256, 66, f"iq2,group=32,scale=uint5,{_FLOATS}", codebooks.iq2_xxs),
        Block(17, "iq2_xs", 256, 74, f"iq2,group=16,scale=uint5,{_FLOATS}", codebooks.iq2_xs),
        Block(18, "iq3_xxs", 256, 98, f"iq3_xxs,group=32,scale=uint5,{_FLOATS}", codebooks.iq3_xxs),
        Block(19, "iq1_s", 256, 50, _IQ1_S, codebooks.iq1_s),
        Block(20, "iq4_nl", 32, 18, "iq4_nl,group=32,scale=float16", _q4_0),
        Block(21, "iq3_s", 256, 110, f"iq3_s,group=32,scale=uint5,{_HALVES}", codebooks.iq3_s),
        Block(22, "iq2_s", 256, 82, f"iq2,group=16,scale=uint5,{_FLOATS}", codebooks.iq2_s),
        Block(23, "iq4_xs", 256, 136, f"iq4_nl,group=32,scale=int6,{_HALVES}", _iq4_xs),
        Block(29, "iq1_m", 256, 56, f"iq1_m,group=16,scale=uint4,{_FLOATS}", codebooks.iq1_m),
        Block(34, "tq1_0", 256, 54, "ternary,group=256,scale=float16", _tq1_0),
        Block(35, "tq2_0", 256, 66, "ternary,group=256,scale=float16", _tq2_0),
        Block(39, "mxfp4", 32, 17, "mxfp4", _mxfp4),
        Block(40, "nvfp4", 64, 36, "float4_e2m1,group=16,scale=float8_e4m3", _nvfp4),
    )
}
#: Numbers of a tensor, one by one: number of the format -> its dtype.
FLOATS = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
#: What is no weight, or nothing that ladder knows, for messages: codes of activations, integers.
OTHERS = {
    9: "q8_1", 15: "q8_k", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64", 41: "q1_0",
}  # fmt: skip
