# SPDX-License-Identifier: Apache-2.0
"""Products of nested tensors of layout ``torch.jagged``: rows of every length, one behind the other
in memory, which are multiplied as the tokens that they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ladder.errors import InvalidArgument


def by_rows(x: Tensor, product: Callable[[Tensor], Tensor], k: int) -> Tensor:
    """``product`` of the tokens of a jagged ``x`` [B, j, ..., K], in a tensor of the same lengths.

    Raises:
        InvalidArgument: the lengths are those of the last dimension, which is to be ``k``.
    """
    nested: Any = x
    ragged = getattr(nested, "_ragged_idx", 1)
    if ragged == x.dim() - 1:
        raise InvalidArgument(f"the last dimension of x is ragged; the weight has {k} columns")
    return torch.nested.nested_tensor_from_jagged(
        product(nested.values()), nested.offsets(), nested.lengths(), jagged_dim=ragged
    )
