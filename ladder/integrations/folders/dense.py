# SPDX-License-Identifier: Apache-2.0
"""Packed modules back to dense ones."""

from __future__ import annotations

import torch
from torch import nn

from ladder.errors import Unsupported
from ladder.nn.conv import Conv2d
from ladder.nn.convert import replace
from ladder.nn.embedding import Embedding
from ladder.nn.experts import Experts
from ladder.nn.linear import Linear
from ladder.nn.optimize import unoptimize

_Packed = Linear | Experts | Conv2d | Embedding


def dense(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Replace every :class:`ladder.Linear`, :class:`ladder.Experts`, :class:`ladder.Conv2d` and
    :class:`ladder.Embedding` of ``model``, in place, by the dense module with the same values, in
    ``dtype`` or the module's own.

    Raises Unsupported, before anything is replaced, where accelerate offloads one of them."""
    for name, module in model.named_modules():
        # The hook moves the tensors that its store had at first, and looks for the dense weight.
        hook = getattr(module, "_hf_hook", None)
        if isinstance(module, _Packed) and getattr(hook, "offload", False):
            raise Unsupported(
                f"{name} is offloaded, and accelerate's store has no dense weight for it: load the "
                "model on one device, without disk and without cpu_offload, to dequantise it"
            )
    unoptimize(model)  # whose parents hold the weights of several layers
    names: dict[_Packed, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, _Packed):
            names.setdefault(module, []).append(name)
    for packed, each in names.items():
        values = packed.dense(dtype) if isinstance(packed, Experts) else packed.dequantize(dtype)
        replace(model, each, packed, values)
    return model
