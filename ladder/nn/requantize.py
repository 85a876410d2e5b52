# SPDX-License-Identifier: Apache-2.0
"""A weight quantised anew to the type that it has, after its values have changed."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ladder import ops
from ladder.errors import Unsupported
from ladder.quantization import quantize
from ladder.weight import Weight


def requantized(values: Tensor, like: Weight) -> Weight:
    """``values`` quantised as :func:`ladder.quantize` does without data, to the type of ``like``:
    its groups, kinds of scales and zero points, and its act-order.

    Args:
        values: [N, K] of ``like``, any float dtype, finite.
    Raises:
        InvalidArgument: as :func:`ladder.quantize`.
        Unsupported: columns that the ``g_idx`` of ``like`` gives to a group are more or fewer than
            the type has.
    """
    if like.g_idx is None:
        return quantize(values, like.type)
    order = like.g_idx.argsort(stable=True)
    k, size = len(order), like.type.group_size
    of_type = torch.arange(k, device=order.device) // (size if size > 0 else k)
    if not torch.equal(like.g_idx[order].to(of_type.dtype), of_type):
        group, count = _most(like.g_idx)
        raise Unsupported(
            f"g_idx gives {count} columns to group {group}, and groups of {like.type} have {size}: "
            "such a weight is not quantised anew"
        )
    packed = quantize(values[:, order], like.type)
    codes = torch.empty_like(packed.codes())
    codes[:, order] = packed.codes()
    return replace(packed, qweight=ops.pack(codes, like.type.bits), g_idx=like.g_idx)


def _most(g_idx: Tensor) -> tuple[int, int]:
    """The group of the most columns, and how many they are."""
    counts = g_idx.bincount()
    return int(counts.argmax()), int(counts.max())
