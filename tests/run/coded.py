# SPDX-License-Identifier: Apache-2.0
"""Activations that are codes of 8 bits, for the tests that need a GPU."""

import torch
from drawn import generator
from gpu import E4M3
from rounded import types_of
from torch import Tensor

HERE = ("int8", "float8_e4m3") if E4M3 else ("int8",)
DTYPES = {"int8": torch.int8, "float8_e4m3": torch.float8_e4m3fn}
TYPES = {
    "int8": "uint4,group=128,scale=float16,zero=midpoint",
    "float8_e4m3": "float4_e2m1,group=32,scale=float16",
}
CASES = [(activation_type, type) for activation_type in HERE for type in types_of(activation_type)]


def x_of(m: int, k: int, activation_type: str, most: int | None = None) -> Tensor:
    """Codes: all of int8, or whole numbers to 7, whose sums by float8_e4m3 are exact."""
    most = most or (127 if activation_type == "int8" else 7)
    x = torch.randint(-most, most + 1, (m, k), generator=generator(m))
    return x.to(DTYPES[activation_type]).cuda()


def scales_of(m: int, kind: str) -> Tensor | None:
    """Powers of two."""
    if kind == "none":
        return None
    if kind == "static":
        return torch.tensor([2.0**-6], device="cuda")
    return torch.exp2(torch.arange(m, device="cuda") % 5 - 8.0)[:, None]


def times(x: Tensor, scale: Tensor | None, values: Tensor) -> Tensor:
    y = x.double() @ values.T
    return y if scale is None else y * scale.double()
