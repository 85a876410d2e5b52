# SPDX-License-Identifier: Apache-2.0
"""Activations of 8 bits on GPUs, and weights with which their products have one right answer."""

import torch
from drawn import exact_weight, formula, generator, grouped
from torch import Tensor

import ladder
from ladder.ops import activations
from ladder.types import parse, type_names

#: Beside every name with scales: every kind of zero point, channels, matrices, odd groups, integer
#: scales that operands and that sums are multiplied by.
KINDS = (
    "uint4,group=128,scale=float16,zero=midpoint",
    "uint4,group=128,scale=float16,zero=integer",
    "uint4,group=64,scale=bfloat16,zero=quantized",
    "uint4,group=64,scale=float16,zero=rescale",
    "uint4,channel,scale=float16,zero=integer",
    "uint8,group=32,scale=float32,zero=integer",
    "int4,channel,scale=float32",
    "int8,tensor,scale=float16",
    "float8_e4m3,channel,scale=float32",
    "float4_e2m1,group=32,scale=float16",
    "uint4,group=128,scale=uint4,zero=midpoint,scale2=float32:channel",
    "uint4,group=64,scale=uint8,zero=integer,scale2=float32:channel",
)
K = 512
#: The fewest tokens of intervals of rounded x; the last are two passes.
INTERVALS = (49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 8193)


def types_of(activation_type: str) -> tuple[str, ...]:
    """Types that some GPU multiplies by such x."""
    named = dict.fromkeys((*map(grouped, type_names()), *KINDS))
    objection = activations.objection
    return tuple(t for t in named if not objection(activation_type, parse(t), K, "cuda"))


def weight_of(type: str, n: int, k: int, seed: int = 0) -> ladder.Weight:
    """Scales of 1/2, 1 and 2; of floats the values -2 to 2 alone, so that sums of few bits are
    exact."""
    weight, ttype = exact_weight(type, n, k, seed=seed), parse(type)
    values = ttype.element.values
    small = (values.abs() <= 2) & (values == values.round())
    if ttype.zero == "none" and ttype.element.encoding == "floating" and small.any():
        allowed = small.nonzero()[:, 0]
        codes = allowed[torch.randint(len(allowed), (n, k), generator=generator(3 + seed))]
        parts = {name: part for name, part in weight.tensors().items() if name != "qweight"}
        return ladder.Weight.from_codes(codes.to(torch.uint8), ttype, **parts)
    return weight


def values_of(weight: ladder.Weight) -> Tensor:
    """[N, K] float64 on the GPU."""
    return formula(weight).cuda()


def whole(m: int, k: int, dtype: torch.dtype, activation_type: str = "int8") -> Tensor:
    """[m, k] integers, the largest of every token such that its scale is a power of two, on the
    GPU: codes are then the numbers themselves, or 64 times those."""
    most = 127 if activation_type == "int8" else 7
    rng = generator(m)
    x = torch.randint(-most, most + 1, (m, k), generator=rng)
    x[torch.arange(m), torch.randint(k, (m,), generator=rng)] = most
    return x.to(dtype).cuda()
