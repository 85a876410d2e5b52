# SPDX-License-Identifier: Apache-2.0
"""Weights and activations whose products are integers, so that a result has one right answer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ladder import Weight
from ladder.types import TType, element, float_type, parse, register_type, type_names

#: Scales that are integers, and a second one for each row.
TWO_LEVELS = "uint4,group=32,scale=uint4,zero=midpoint,scale2=float32:channel"
#: Scales, and zeros, that are integers times numbers that two groups share.
SUPERBLOCKS = "uint4,group=32,scale=uint6,zero=rescale,scale2=float16:64"
SIGNED_SUPERBLOCKS = "int4,group=16,scale=int6,scale2=bfloat16:32"
#: Every kind of metadata once, on uint4 or the element that has it.
KINDS = (
    "uint4",
    "uint4,group=32,scale=float16,zero=midpoint",
    "uint4,group=32,scale=float16,zero=integer",
    "uint4,group=32,scale=bfloat16,zero=quantized",
    "uint4,group=32,scale=float16,zero=original",
    "uint4,group=32,scale=float32,zero=rescale",
    "int4,group=32,scale=float32,zero=original",
    "int4,tensor,scale=float16",
    "float8_e4m3,block=8x32,scale=float32",
    "mxfp4",
    "nvfp4",
    TWO_LEVELS,
    SUPERBLOCKS,
    SIGNED_SUPERBLOCKS,
)

#: What is stored beside codes, each kind at least once with each format of scales.
STORED = (
    "uint4",
    "nf4",
    "float8_e4m3",
    *(
        f"uint4,group=32,scale={scale},zero={zero}"
        for scale in ("float16", "bfloat16", "float32")
        for zero in ("none", "midpoint", "integer", "quantized", "original", "rescale")
    ),
    "uint4,group=32,scale=e8m0,zero=integer",
    "uint4,zero=integer",
    "uint2,group=64,scale=float16,zero=integer",
    "uint3,channel,scale=float16,zero=quantized",
    "uint8,group=64,scale=bfloat16,zero=integer",
    "int4,group=64,scale=float32,zero=original",
    "int5,tensor,scale=float16",
    "uint4,block=8x32,scale=float16,zero=integer",
    "float8_e4m3,block=64x64,scale=float32",
    "nf4,block=16x64,scale=bfloat16",
    "float6_e3m2,group=32,scale=float8_e5m2",
    "float4_e2m1,group=16,scale=float8_e4m3,scale2=float32",
    "int8,channel,scale=float16,scale2=float32",
    "int8,channel,scale=float16,scale2=float32:channel",
    "nf4,group=32,scale=float8_e4m3,scale2=float32:channel",
    TWO_LEVELS,
    "uint4,group=32,scale=uint8,zero=integer,scale2=float32:channel",
    "int3,group=64,scale=uint3,scale2=float32",
    SUPERBLOCKS,
    SIGNED_SUPERBLOCKS,
    "nf4,group=32,scale=int8,scale2=float32:32",
    "uint5,group=16,scale=uint4,zero=integer,scale2=float32:32",
    "uint4,group=32,scale=int5,zero=quantized,scale2=float16:64",
    "user_table5,group=32,scale=float32",
    "user_e3m1,group=32,scale=bfloat16",
)


def stored_types() -> tuple[str, ...]:
    """Every type with scales, a table and a float of the user's own, and :data:`STORED`."""
    register_type("user_table5", bits=5, values=[i * abs(i) / 16 for i in range(-16, 16)])
    float_type("user_e3m1", exponent=3, mantissa=1, bias=4, specials="ieee")
    return tuple(dict.fromkeys((*map(grouped, type_names()), *STORED)))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def grouped(name: str) -> str:
    """A spelling with scales for any name of :func:`ladder.types.type_names`."""
    ttype = parse(name)
    return name if ttype.scale is not None else f"{name},group=32,scale=float16"


def small_codes(type: str, n: int, k: int, rng: torch.Generator) -> Tensor:
    """[n, k] codes whose values are multiples of 1/16 of magnitude at most 16, as uint8."""
    values = parse(type).element.values
    units = values * 16
    allowed = (values.isfinite() & (values.abs() <= 16) & (units == units.round())).nonzero()[:, 0]
    if len(allowed) == 0:
        allowed = values.isfinite().nonzero()[:1, 0]
    return allowed[torch.randint(len(allowed), (n, k), generator=rng)].to(torch.uint8)


def exact_weight(type: str, n: int, k: int, *, act_order: bool = False, seed: int = 0) -> Weight:
    """A weight whose scales are 1/2, 1 or 2 and whose zeros are small integers."""
    rng, ttype = generator(seed), parse(type)
    blocks = (ttype.block_rows(n), ttype.groups(k))
    parts: dict[str, Tensor] = {}
    if ttype.scale is not None:
        parts["scales"] = stored(torch.randint(0, 3, blocks, generator=rng) - 1, ttype)
    if ttype.zero in ("integer", "original", "rescale"):
        zeros = torch.randint(0, 8, blocks, generator=rng)
        parts["zeros"] = zeros.to(ttype.zeros_dtype)
    elif ttype.zero == "quantized":
        from ladder import ops

        zeros = torch.randint(0, 8, blocks, generator=rng, dtype=torch.uint8)
        parts["zeros"] = ops.pack(zeros, ttype.bits)
    if ttype.scale2 is not None:
        parts["scale2"] = second_scales(ttype, n, k)
    if act_order:
        columns = torch.arange(k) // (ttype.columns or k)
        parts["g_idx"] = columns[torch.randperm(k, generator=rng)].to(torch.int32)
    return Weight.from_codes(small_codes(type, n, k, rng), ttype, **parts)


def second_scales(ttype: TType, n: int, k: int) -> Tensor:
    """1/2, or of rows and superblocks 1/2 and 1/4: in no order that blocks of rows have, too."""
    shape = ttype.scale2_shape(n, k)
    places = torch.arange(math.prod(shape))
    return (0.5 / (1 + places * places % 11 % 2)).view(shape).to(ttype.scale2_dtype)


def whole(type: str, k: int) -> int:
    """``k``, or the next number of columns that has whole superblocks, as quantising wants."""
    superblock = parse(type).superblock or 1
    return -(-k // superblock) * superblock


def stored(powers: Tensor, ttype: TType) -> Tensor:
    """2.0**powers in the scale format of ``ttype``, of integers 2.0**(powers + 1)."""
    scales = torch.exp2(powers.double() + (ttype.has_integer_scales or ttype.superblock > 0))
    if ttype.scale_dtype is not torch.uint8:
        return scales.to(ttype.scale_dtype)
    return torch.tensor(
        [element(ttype.scale).encode(s) for s in scales.flatten().tolist()], dtype=torch.uint8
    ).view(scales.shape)


def formula(weight: Weight) -> Tensor:
    """[N, K] float64: what docs/format.md says the parts mean, from the bits up."""
    ttype, (n, k) = weight.type, weight.shape
    codes = unpacked(weight.qweight, k, ttype.bits)
    values = ttype.element.values[codes]
    rows = torch.arange(n) // (ttype.rows or n)
    columns = (
        torch.arange(k) // (ttype.columns or k) if weight.g_idx is None else weight.g_idx.long()
    )

    def spread(blocks: Tensor) -> Tensor:
        return blocks.double()[rows][:, columns]

    def numbers(stored: Tensor, second: int) -> Tensor:
        """Of scales, with the first number of superblocks, and of zeros, with the other one."""
        if stored.dtype == torch.uint8:
            stored = element(ttype.scale).values[stored.long()]
        if not ttype.superblock:
            return spread(stored)
        superblocks = columns * ttype.columns // ttype.superblock
        each = 2 if ttype.zero == "rescale" else 1
        return spread(stored) * weight.scale2.double()[:, superblocks * each + second]

    if ttype.zero == "midpoint":
        values = values - 2 ** (ttype.bits - 1)
    elif ttype.zero == "quantized":
        values = values - spread(unpacked(weight.zeros, ttype.groups(k), ttype.bits))
    elif ttype.zero in ("integer", "original"):
        values = values - spread(weight.zeros)
    if ttype.scale is not None:
        values = values * numbers(weight.scales, 0)
    if ttype.zero == "rescale":
        values = values - numbers(weight.zeros, 1)
    if weight.scale2 is None or ttype.superblock:
        return values
    return values * weight.scale2.double()[:, None]


def unpacked(words: Tensor, k: int, bits: int) -> Tensor:
    """[N, k] int64 codes of a little-endian bit stream, one bit at a time."""
    at = torch.arange(k * bits)
    stream = (words.long()[:, at // 32] >> (at % 32)) & 1
    return (stream.view(-1, k, bits) << torch.arange(bits)).sum(-1)


def integers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randint(-2, 3, shape, generator=generator(seed)).to(dtype)
