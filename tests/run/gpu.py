# SPDX-License-Identifier: Apache-2.0
"""Layers with kernels, for the tests that need a GPU."""

import pytest
import torch
from drawn import exact_weight, formula

import ladder
from ladder import image

MARKS = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def spelled(bits: int, dtype: torch.dtype, group: int = 64, sign: str = "u") -> str:
    zero = ",zero=midpoint" if sign == "u" else ""
    block = f"group={group}" if group else "channel"
    return f"{'uint' if sign == 'u' else 'int'}{bits},{block},scale={NAMES[dtype]}{zero}"


def on_gpu(type: str, n: int, k: int) -> tuple[ladder.Linear, torch.Tensor]:
    """A layer with kernels, and its values."""
    weight = exact_weight(type, n, k)
    layer = ladder.Linear.from_weight(weight).cuda()
    if not layer.prepare():
        pytest.skip(image.objection(str(weight.type), n, k, False, 0).splitlines()[0])
    return layer, formula(weight).cuda()
