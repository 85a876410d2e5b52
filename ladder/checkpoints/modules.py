# SPDX-License-Identifier: Apache-2.0
"""Layers of other packages in memory: the tensors of a module to a canonical weight."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ladder.checkpoints import awq, gptq
from ladder.checkpoints.layer import unpack_layer
from ladder.errors import InvalidArgument
from ladder.weight import Weight

_GPTQ_BITS = (2, 3, 4, 8)


def weight_from_module(
    module: nn.Module, family: str, variant: str, bits: int | None = None
) -> Weight:
    """The weight of a quantised linear module of AutoGPTQ, GPTQModel or AutoAWQ.

    Args:
        module: has ``qweight``, ``qzeros``, ``scales`` and perhaps ``g_idx``, as its checkpoint
            would. ``bits`` (or ``w_bit``) and ``group_size`` are used where it has them, else
            worked out of the shapes.
        family: "gptq" or "awq".
        variant: "gptq", "gptq_v2" or "gptq_p"; "gemm", "gemv" or "gemv_fast".
        bits: a hint where the module has none and its shapes fit several widths.
    Raises:
        InvalidArgument: a tensor is absent, or bits or group size can not be told.
        CheckpointError: tensors that do not fit each other; the message names them.
    """
    unpack = {"gptq": gptq, "awq": awq}.get(family)
    if unpack is None:
        raise InvalidArgument(f'family is "{family}", not gptq or awq')
    name, tensors = type(module).__name__, _tensors(module, unpack.PARTS)
    for part in ("qweight", "scales"):
        if part not in tensors:
            raise InvalidArgument(f"{name} has no {part}; it has {', '.join(tensors) or 'none'}")
    if family == "awq":
        group = _group_size(module, tensors, tensors["qweight"].shape[0], variant)
        return unpack_layer(awq, tensors, awq.Config(group_size=group, version=variant), name)
    found = _attribute(module, "bits", "w_bit") or _gptq_bits(tensors, bits)
    group = _group_size(module, tensors, tensors["qweight"].shape[0] * 32 // found, variant)
    config = gptq.Config(bits=found, group_size=group, format=variant)
    return unpack_layer(gptq, tensors, config, name)


def _tensors(module: nn.Module, parts: tuple[str, ...]) -> dict[str, Tensor]:
    found = {part: getattr(module, part, None) for part in parts}
    return {
        part: tensor.detach().to("cpu")
        for part, tensor in found.items()
        if isinstance(tensor, Tensor) and tensor.numel()
    }


def _attribute(module: nn.Module, *names: str) -> Any:
    values = (getattr(module, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), None)


def _gptq_bits(tensors: dict[str, Tensor], wanted: int | None) -> int:
    """The bits for which the shapes fit; ``wanted`` when more than one do, as for few columns."""
    rows, n = tensors["qweight"].shape
    fitting = [
        bits
        for bits in _GPTQ_BITS
        if ("qzeros" not in tensors or tensors["qzeros"].shape[1] == -(-n * bits // 32))
        and ("g_idx" not in tensors or rows == -(-tensors["g_idx"].shape[0] * bits // 32))
    ]
    if wanted in fitting:
        return wanted
    if len(fitting) != 1:
        raise InvalidArgument(f"the module has no bits, and its shapes fit {fitting or 'none'}")
    return fitting[0]


def _group_size(module: nn.Module, tensors: dict[str, Tensor], k: int, variant: str) -> int:
    given = _attribute(module, "group_size")
    if given is not None:
        return given
    if variant in ("gemv", "gemv_fast"):
        raise InvalidArgument(f"the module has no group_size, and {variant} scales are padded")
    groups = tensors["scales"].shape[0]
    if groups == 1:
        return -1
    if "g_idx" in tensors and bool(tensors["g_idx"].any()):
        return int((tensors["g_idx"] == 0).sum())  # the first group is whole in any order
    if k % groups:
        raise InvalidArgument(
            f"the module has no group_size, and {groups} groups do not divide K = {k}"
        )
    return k // groups


__all__ = ["weight_from_module"]
