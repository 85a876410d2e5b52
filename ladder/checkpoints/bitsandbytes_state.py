# SPDX-License-Identifier: Apache-2.0
"""The quant_state of a layer of 4 bits of bitsandbytes, and its scales: a part of
ladder.checkpoints.bitsandbytes, which has the format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.layer import Layer, check_scales, fail
from ladder.types import element

ABSMAX, MAP = "weight.absmax", "weight.quant_map"
NESTED = ("weight.nested_absmax", "weight.nested_quant_map")
#: The state of 4 bits, and the format of its codes.
STATES = {f"weight.quant_state.bitsandbytes__{name}": name for name in ("nf4", "fp4")}
_KEYS = {"quant_type", "blocksize", "dtype", "shape"}
_NESTED_KEYS = {"nested_blocksize", "nested_dtype", "nested_offset"}


def columns_said(state: Tensor) -> int | None:
    """K by the state of 4 bits; None where it does not say [N, K]."""
    shape: Any = _read(state).get("shape")
    return shape[1] if _are_sizes(shape, 2) else None


def _read(state: Tensor) -> dict[str, Any]:
    """The fields of a state; none where it is damaged."""
    if state.dtype != torch.uint8:
        return {}
    try:
        fields = json.loads(bytes(state.flatten().tolist()))
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _are_sizes(given: Any, count: int) -> bool:
    return (
        isinstance(given, list)
        and len(given) == count
        and all(type(size) is int and size > 0 for size in given)
    )


def absmax_of(tensors: Mapping[str, Tensor], layer: Layer) -> Tensor:
    """The scale of each block, float32.

    Raises:
        CheckpointError: the state contradicts the other tensors, or a number that nested scales are
            made of is NaN or infinite.
    """
    absmax, state = tensors[ABSMAX], _checked_state(tensors, layer)
    _check_map(tensors[MAP], layer)
    if absmax.dtype != torch.uint8:
        return absmax
    for part in NESTED:
        check_scales(tensors[part], f"{layer.name}.{part}")
    size = min(state["nested_blocksize"], absmax.numel())
    scales = tensors[NESTED[0]].repeat_interleave(size)[: absmax.numel()]
    return tensors[NESTED[1]][absmax.int()] * scales + torch.tensor(float(state["nested_offset"]))


def _checked_state(tensors: Mapping[str, Tensor], layer: Layer) -> dict[str, Any]:
    """The fields of the state of a layer, which agree with its tensors."""
    part = next(part for part in STATES if part in tensors)
    where, fields = f"{layer.name}.{part}", _read(tensors[part])
    if not fields:
        fail(where, " is not the JSON of an object")
    blocks, nested = tensors[ABSMAX].numel(), tensors[ABSMAX].dtype == torch.uint8
    needed = _KEYS | _NESTED_KEYS if nested else _KEYS
    if missing := sorted(needed - fields.keys()):
        fail(where, " has no ", missing[0])
    if unknown := sorted(fields.keys() - needed):
        fail(where, " has ", unknown[0], ", which ladder does not know")
    size = fields["blocksize"]
    if not _are_sizes([size], 1) or -(-layer.n * layer.k // size) != blocks:
        fail(where, " has blocksize ", repr(size), ", and ", ABSMAX, " has ", blocks,
             " numbers for a weight of ", [layer.n, layer.k])  # fmt: skip
    for key, wanted in (("shape", [layer.n, layer.k]), ("quant_type", layer.element)):
        if fields[key] != wanted:
            fail(where, " has ", key, " ", repr(fields[key]), ", not ", repr(wanted))
    if not nested:
        return fields
    if fields["nested_dtype"] != "float32":
        fail(where, " has nested_dtype ", repr(fields["nested_dtype"]), ", not 'float32'")
    size, offset = fields["nested_blocksize"], fields["nested_offset"]
    found = tensors[NESTED[0]].shape
    if not _are_sizes([size], 1) or found != (-(-blocks // size),):
        fail(where, " has nested_blocksize ", repr(size), ", and ", NESTED[0], " has shape ",
             list(found), " for ", blocks, " numbers")  # fmt: skip
    if type(offset) not in (int, float) or not abs(offset) < torch.finfo(torch.float32).max:
        fail(where, " has nested_offset ", repr(offset), ", not a finite number")
    return fields


def _check_map(values: Tensor, layer: Layer) -> None:
    """Raise CheckpointError where the codes mean other values than those of ladder's format."""
    assert layer.element is not None
    own = element(layer.element).values.float()
    different = torch.nonzero(values.cpu() != own)
    if different.numel():
        at = int(different[0])
        fail(f"{layer.name}.{MAP}[{at}]", " is ", values[at].item(), ", not ", own[at].item(),
             " as ", layer.element, " has it")  # fmt: skip


__all__ = ["ABSMAX", "MAP", "NESTED", "STATES", "absmax_of", "columns_said"]
