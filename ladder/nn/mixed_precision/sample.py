# SPDX-License-Identifier: Apache-2.0
"""A few of the batches that a model is called with, and a few tokens of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


def listed(batches: Any) -> Any:
    """``batches`` as a list, of a tensor [B, ...] its rows. What is no batches is returned as it
    is."""
    if isinstance(batches, Tensor):
        return list(batches.split(1)) if batches.dim() and len(batches) else batches
    if isinstance(batches, (str, bytes, Mapping)) or not isinstance(batches, Iterable):
        return batches
    return list(batches)


def sample(batches: Any, windows: int, tokens: int) -> Any:
    """At most ``windows`` of the :func:`listed` ``batches``, as far apart as they lie, each cut to
    ``tokens`` tokens where it is token ids: integers [.., length], or a mapping with ``input_ids``
    whose tensors are all integers of that shape."""
    every = batches
    if not isinstance(every, list):
        return batches
    if len(every) > windows:
        last = len(every) - 1
        every = [every[round(last * at / max(windows - 1, 1))] for at in range(windows)]
    return [_cut(batch, tokens) for batch in every]


def _cut(batch: Any, tokens: int) -> Any:
    if _are_ids(batch):
        return batch[..., :tokens]
    if isinstance(batch, Mapping) and "input_ids" in batch:
        shape = getattr(batch["input_ids"], "shape", None)
        if all(_are_ids(each) and each.shape == shape for each in batch.values()):
            return {name: each[..., :tokens] for name, each in batch.items()}
    return batch


def _are_ids(value: Any) -> bool:
    """Whether it is integers in rows."""
    return (
        isinstance(value, Tensor)
        and value.dim() > 1
        and not value.is_floating_point()
        and not value.is_complex()
        and value.dtype != torch.bool
    )
