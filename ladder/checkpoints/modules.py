# SPDX-License-Identifier: Apache-2.0
"""The weight of a live GPTQ or AWQ module of another package."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ladder.checkpoints import awq, gptq
from ladder.errors import InvalidArgument
from ladder.weight import Weight


def weight_from_module(module: nn.Module, family: str, variant: str, *, bits: int) -> Weight:
    """Return the canonical weight of a module that holds the tensors of a GPTQ or AWQ layer.

    Args:
        module: has ``qweight``, ``qzeros``, ``scales`` and perhaps ``g_idx`` and ``group_size``.
        family: "gptq" or "awq".
        variant: the format or version, as ``gptq.Config.format`` and ``awq.Config.version``.
        bits: of GPTQ codes, unless the module says otherwise (``bits``).
    Raises:
        InvalidArgument: the module has no such tensors, or too few to tell its group size.
        CheckpointError: they do not fit together; as ``unpack_layer`` of the family.
    """
    form = {"gptq": gptq, "awq": awq}[family]
    name = type(module).__name__
    found = {part: getattr(module, part, None) for part in form.PARTS}
    tensors = {part: t.detach().cpu() for part, t in found.items() if isinstance(t, Tensor)}
    for part in ("qweight", "scales"):
        if part not in tensors:
            raise InvalidArgument(f"{name} has no {part}; it has {', '.join(tensors) or 'none'}")
    config: Any
    own_bits = getattr(module, "bits", None)
    if family == "gptq":
        bits = own_bits if isinstance(own_bits, int) else bits
        config = gptq.Config(bits, format=variant)
        k = tensors["qweight"].shape[0] * 32 // bits
        groups = tensors["scales"].shape[0]
    else:
        config = awq.Config(version=variant)
        k, groups = tensors["qweight"].shape[0], tensors["scales"].shape[0]
    return form.unpack_layer(
        tensors, replace(config, group_size=_group_size(module, variant, k, groups)), name
    )


def _group_size(module: nn.Module, variant: str, k: int, groups: int) -> int:
    given = getattr(module, "group_size", None)
    if isinstance(given, int):
        return given
    if variant in ("gemv", "gemv_fast") or groups == 0 or k % groups:
        raise InvalidArgument(
            f"{type(module).__name__} has no group_size, and {groups} groups do not divide K = {k}"
        )
    return k // groups if groups > 1 else -1
