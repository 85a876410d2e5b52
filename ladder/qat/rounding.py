# SPDX-License-Identifier: Apache-2.0
"""Weights as quantising would leave them, for which gradients are those of the weights."""

from __future__ import annotations

import torch
from torch import Tensor

from ladder import _library
from ladder.nn.learned_steps import straight_through
from ladder.two_levels import in_superblocks
from ladder.types import TType, _checked


def rounded_weight(weight: Tensor, ttype: TType, method: str) -> Tensor:
    """The values of ``ladder.quantize(weight, ttype, method=method)``, in the dtype of ``weight``.

    Gradients go straight through: that of the result is that of ``weight`` (Bengio et al., arXiv
    1308.3432). Scales and zero points are found anew in each call, and have none of their own.

    Args:
        weight: [N, K], float32, float16 or bfloat16, finite.
    Raises:
        InvalidArgument: a weight that is not finite, with its place.
    """
    n, k = weight.shape
    source = weight.detach().to(torch.float32).contiguous()
    if ttype.superblock:
        return straight_through(weight, in_superblocks(source, ttype).dequantize(weight.dtype))
    if weight.is_cuda and not torch.compiler.is_compiling():
        _library.find_compiler()
    qweight, scales, zeros, scale2 = _checked(
        torch.ops.ladder.quantize, source, str(ttype), method == "search"
    )
    values = _checked(
        torch.ops.ladder.dequantize,
        qweight,
        None if ttype.scale is None else scales,
        None if ttype.zeros_dtype is None else zeros,
        None if ttype.scale2 is None else scale2,
        None,
        str(ttype),
        k,
    )
    return straight_through(weight, values.to(weight.dtype))
