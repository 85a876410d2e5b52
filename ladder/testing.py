# SPDX-License-Identifier: Apache-2.0
"""What ladder promises about its numbers, for tests of ladder and of what is built on it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Significant bits of each float dtype, the implicit one included.
SIGNIFICANT_BITS = {torch.float32: 24, torch.bfloat16: 8, torch.float16: 11, torch.float64: 53}


def bound(x: Tensor, weight: Tensor, dtype: torch.dtype, accumulator_bits: int = 24) -> Tensor:
    """Largest error of ``linear(x, weight)`` against exact arithmetic, elementwise.

    ``|y - y64| <= 6 sqrt(K) 2^-p sum_k |x||w| + 2^-q |y64|`` with p the bits of the accumulator and
    q those of the output: K roundings of the running sum behave like a random walk whose six
    standard deviations no test should ever see, then one rounding to the output.

    Args:
        x: [..., K].
        weight: [N, K], the values of the weight.
        dtype: of the output.
        accumulator_bits: p; 24 for float32.
    Returns:
        [..., N] float64.
    """
    wide, values = x.to(torch.float64), weight.to(torch.float64)
    k = x.shape[-1]
    walk = 6 * math.sqrt(k) * 2.0**-accumulator_bits * (wide.abs() @ values.abs().T)
    return walk + 2.0 ** -SIGNIFICANT_BITS[dtype] * (wide @ values.T).abs()


def assert_linear_close(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Assert that ``y`` is ``x @ weight.T + bias`` within :func:`bound`.

    With a bias, its magnitude joins both sums.
    """
    if bias is not None:
        one = torch.ones((*x.shape[:-1], 1), dtype=torch.float64)
        x = torch.cat((x.to(torch.float64), one), -1)
        weight = torch.cat((weight.to(torch.float64), bias.to(torch.float64)[:, None]), -1)
    exact = x.to(torch.float64) @ weight.to(torch.float64).T
    error, limit = (y.to(torch.float64) - exact).abs(), bound(x, weight, y.dtype)
    worst = (error - limit).argmax() if error.numel() else None
    if worst is not None and bool((error > limit).any()):
        raise AssertionError(
            f"error {error.flatten()[worst].item():.3e} exceeds its bound "
            f"{limit.flatten()[worst].item():.3e} at flat index {worst.item()}"
        )
