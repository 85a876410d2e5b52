# SPDX-License-Identifier: Apache-2.0
"""Products of nested tensors of layout ``torch.jagged``: rows of every length, one behind the other
in memory, which are multiplied as the tokens that they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ladder.errors import InvalidArgument
from ladder.ops.transforms import check_tensor


def by_rows(x: Tensor, product: Callable[[Tensor], Tensor], k: int) -> Tensor:
    """``product`` of the tokens of a jagged ``x`` [B, j, ..., K], in a tensor of the same lengths.
    Raises InvalidArgument as :func:`rows_of_nested`."""
    return nested_like(x, product(rows_of_nested(x, k)))


def rows_of_nested(x: Tensor, k: int) -> Tensor:
    """The tokens of a jagged ``x``. Raises InvalidArgument where the lengths are those of the last
    dimension, which is to be ``k``, or for a nested tensor of another layout."""
    check_tensor(x, jagged=True)
    nested: Any = x
    if _ragged(x) == x.dim() - 1:
        raise InvalidArgument(f"the last dimension of x is ragged; the weight has {k} columns")
    return nested.values()


def nested_like(x: Tensor, rows: Tensor) -> Tensor:
    """``rows`` with the lengths of a jagged ``x``."""
    nested: Any = x
    return torch.nested.nested_tensor_from_jagged(
        rows, nested.offsets(), nested.lengths(), jagged_dim=_ragged(x)
    )


def _ragged(x: Tensor) -> int:
    return getattr(x, "_ragged_idx", 1)
