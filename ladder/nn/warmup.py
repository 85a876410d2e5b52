# SPDX-License-Identifier: Apache-2.0
"""Everything that a model on a GPU would otherwise do in its first calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from ladder.cuda import kernels
from ladder.errors import InvalidArgument
from ladder.nn.linear import Linear

_HALVES = (torch.float16, torch.bfloat16)


def warmup(
    model: nn.Module,
    m: int | Sequence[int] = (1, 2, 4, 8, 16),
    *,
    dtype: torch.dtype | None = None,
    tune: bool = True,
    dependent_launch: bool | None = None,
    cache: str | Path | None = None,
    trust_kernels: bool = False,
) -> dict[str, dict[int, str]]:
    """Bring every :class:`ladder.Linear` of ``model`` on a CUDA device into the form that kernels
    read, and compile the kernels for ``m`` tokens and for any more.

    Needed before a CUDA graph is captured and before ``torch.compile``; otherwise the first calls
    do it. On other devices it does nothing but what ``dependent_launch`` says.

    Args:
        model: a module, or a Linear itself.
        m: numbers of tokens, or one; InvalidArgument where one is not a positive integer.
        dtype: of the activations; that of each layer, where that is float32 of its scales, where
            they are not 16 bits wide either float16.
        tune: time the best schedules that the compiler proposes, for each shape and interval of m
            not yet in a store; about a second each. Without it the first proposal is taken.
        dependent_launch: sets :attr:`ladder.Linear.dependent_launch` of every layer, whose promise
            is there; None leaves it as it is. Kernels are then measured one behind the other, as in
            a chain of layers, and kept apart from those without.
        cache: folder in which kernels and plans are kept, that of the checkpoint say; the user's
            cache (``LADDER_CACHE``) otherwise.
        trust_kernels: load compiled kernels from ``cache`` whoever wrote them (docs/cuda.md).
    Returns:
        For each layer by name, for each m, the schedule of the kernel; "" where the weight is
        dequantised for a dense product.
    """
    m = (m,) if isinstance(m, int) else tuple(m)
    for tokens in m:
        if not isinstance(tokens, int) or tokens < 1:
            raise InvalidArgument(f"m has {tokens!r}, not a positive integer")
    if cache is not None:
        kernels.use_store(cache, trust_kernels=trust_kernels)
    done: dict[str, dict[int, str]] = {}
    for name, module in model.named_modules():
        if not isinstance(module, Linear):
            continue
        if dependent_launch is not None:
            module.dependent_launch = dependent_launch
        if module.prepare():
            with torch.cuda.device(module.device):
                done[name] = _compile(module, m, dtype, tune)
    return done


def _compile(
    module: Linear, m: Sequence[int], dtype: torch.dtype | None, tune: bool
) -> dict[int, str]:
    stored = module.weight_type.scale_dtype
    chosen = dtype or next((d for d in (module.dtype, stored) if d in _HALVES), torch.float16)
    if tune:
        module.tune_for(chosen, m)
    module.compile_for(chosen, kernels.MANY_TOKENS)
    return {tokens: module.compile_for(chosen, tokens) for tokens in m}
