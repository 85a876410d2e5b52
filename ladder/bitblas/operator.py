# SPDX-License-Identifier: Apache-2.0
"""What BitBLAS' operators have in common, and what they compute that no kernel of ladder does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ladder.bitblas.config import TORCH_DTYPES
from ladder.bitblas.utils import default_target
from ladder.ops.codes import int8_product

#: Sums of fewer products of int8 are int32.
_MOST_COLUMNS = 1 << 17


class Operator:
    """Base of the operators: a configuration and where it runs."""

    def __init__(self, name: str, config: Any, target: str | None = None) -> None:
        self.name, self.config = name, config
        self.target = target or default_target()
        self.lib = self.torch_func = self.srcpath = self.libpath = self.wrapped_source = None

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        raise NotImplementedError

    def hardware_aware_finetune(
        self, topk: int = 20, target: str | None = None, parallel_build: bool = True
    ) -> None:
        """Nothing to do: kernels are chosen for each call, and are there from the start."""

    def cleanup(self) -> None:
        """Nothing to release by default: there is no generated library."""


def nibbles(packed: Tensor, *, signed: bool) -> Tensor:
    """[..., K / 2] bytes of two 4-bit numbers, low first, to [..., K] int8."""
    fields = packed.view(torch.uint8).unsqueeze(-1) >> torch.tensor([0, 4], device=packed.device)
    numbers = (fields & 15).flatten(-2).to(torch.int8)
    return torch.where(numbers > 7, numbers - 16, numbers) if signed else numbers


def integer_product(x: Tensor, w: Tensor) -> Tensor:
    """Exact: int8 through torch's own integer product, int32, others in float64 (sums below 2**53),
    int64."""
    if x.dtype == w.dtype == torch.int8 and x.shape[-1] < _MOST_COLUMNS:
        return int8_product(x, w)
    return (x.double() @ w.double().t()).to(torch.int64)


def random_arguments(matmul: Any, m: int) -> list[Tensor]:
    """Parts of one call of a ``Matmul`` with ``m`` tokens: A, W, then scale, zeros and bias
    where it has them."""
    dtype, n, k = TORCH_DTYPES[matmul.A_dtype], matmul.N, matmul.K
    shape = (k, m) if matmul.layout[0] == "t" else (m, k)
    found = [torch.randint(-2, 3, shape).to(dtype)]
    if matmul.config.is_dense:
        shape = matmul.retrieve_weight_shape()
        return [*found, torch.randint(0, 3, shape).to(TORCH_DTYPES[matmul.W_dtype])] + (
            [torch.zeros(n)] if matmul.with_bias else []
        )
    found.append(torch.zeros(matmul.retrieve_weight_shape(), dtype=torch.int8))
    ttype = matmul.config.weight_type()
    groups = ttype.groups(k)
    if matmul.with_scaling:
        found.append(torch.ones(n, groups).to(ttype.scale_dtype))
    if matmul.with_zeros and matmul.zeros_mode == "quantized":
        found.append(torch.zeros(groups, -(-n * matmul.bit // 8), dtype=torch.int8))
    elif matmul.with_zeros:
        found.append(torch.zeros(n, groups, dtype=ttype.scale_dtype))
    return found + ([torch.zeros(n)] if matmul.with_bias else [])
