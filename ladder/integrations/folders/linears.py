# SPDX-License-Identifier: Apache-2.0
"""Packed linear layers of ladder folders."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.layer import Stored
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.integrations.folders.checkpoint import StoredModule, find_modules
from ladder.integrations.folders.loading import LoadingLinear
from ladder.nn.outputs import outputs
from ladder.nn.packed import OF_X
from ladder.nn.parallel import NO_PARTS
from ladder.nn.select import dense_weight, is_conv1d, linears
from ladder.types import parse
from ladder.weight import PARTS, Weight

#: Of a layer that is cut over processes, by its name: says which part it is to keep.
Prepare = Callable[[LoadingLinear, str], Any]


def swap_linears(
    model: Any, headers: dict[str, Stored], config: StoredConfig, prepare: Prepare | None = None
) -> dict[str, str]:
    """Make room for the packed linear layers that files hold.

    Args:
        headers: of the tensors of all modules but experts and convolutions.
        prepare: called with each module and its name where the model is cut over processes.
    Returns:
        The names in the files of those modules, by those in the model.
    Raises:
        CheckpointError, Unsupported: as :func:`find_modules`; and a module that does not fit the
            model or its type, or that the config leaves unquantised.
    """
    found = find_modules(model, headers, (*PARTS, *OF_X), codes_part)
    for module in found:
        text = config.modules.get(module.name) or config.type_of(module.stored_name)
        if text is None:
            raise CheckpointError(
                f"{module.stored_name}.qweight is there, but quantization_config leaves "
                f"{module.stored_name} unquantised"
            )
        _check(model.get_submodule(module.name), module, text)
        _swap(model, module, text, prepare)
    return {module.name: module.stored_name for module in found}


def swap_linears_by_config(
    model: Any, config: StoredConfig, prepare: Prepare | None = None
) -> None:
    """The same where nothing is known of the files but their config."""
    skip = outputs(model)
    for name, linear in linears(model).items():
        text = config.type_of(name)
        if text is not None and (name in config.modules or name not in skip):
            parts: dict[str, Any] = {} if linear.bias is None else {"bias": None}
            _swap(model, StoredModule(name, name, parts), text, prepare)


def codes_part(parts: Collection[str]) -> str | None:
    """The part that holds the codes of a module of ladder's that has ``parts``."""
    return "qweight" if set(parts) - {*OF_X} else None


def _check(linear: nn.Module, module: StoredModule, text: str) -> None:
    """Compare the headers of one module with its type and the model's shape."""
    n, k = dense_weight(linear).shape
    parts = {part: module.parts.get(part) for part in PARTS}
    if (g_idx := parts.pop("g_idx")) is not None:
        expected = (torch.int32, (k,))
        if g_idx != expected:
            raise CheckpointError(
                f"{module.stored_name}.g_idx is {g_idx.dtype} {list(g_idx.shape)}, not "
                f"{expected[0]} {list(expected[1])}"
            )
    for part, size in (("input_scale", (1,)), ("pre_scale", (k,))):
        scale, expected = module.parts.get(part), (torch.float32, size)
        if scale is not None and scale != expected:
            raise CheckpointError(
                f"{module.stored_name}.{part} is {scale.dtype} {list(scale.shape)}, not "
                f"{expected[0]} {list(expected[1])}"
            )
    for part, found in parts.items():
        if found is not None and not isinstance(found.dtype, torch.dtype):
            raise CheckpointError(
                f"{module.stored_name}.{part} has dtype {found.dtype}, which no part may have"
            )
    on_meta = {
        part: torch.empty(found.shape, dtype=found.dtype, device="meta")
        for part, found in parts.items()
        if found is not None
    }
    if "qweight" not in on_meta:
        raise CheckpointError(f"{module.stored_name}.qweight is missing")
    weight = Weight(parse(text), (n, k), **on_meta)
    try:
        weight.check(module.stored_name)
    except InvalidArgument as error:
        raise CheckpointError(str(error)) from error


def _swap(model: Any, module: StoredModule, text: str, prepare: Prepare | None) -> None:
    linear = model.get_submodule(module.name)
    n, k = dense_weight(linear).shape
    packed = LoadingLinear(
        k,
        n,
        linear.bias is not None or "bias" in module.parts,
        parse(text),  # a name without fields has no scales here
        act_order="g_idx" in module.parts,
        device="meta",
        dtype=linear.weight.dtype,
    )
    packed._conv1d = is_conv1d(linear)
    if "input_scale" in module.parts:
        packed.input_scale = torch.empty(1, device="meta")
    if "pre_scale" in module.parts:
        if prepare is not None:
            raise Unsupported(f"{module.stored_name}: {NO_PARTS}")
        packed.pre_scale = torch.empty(k, device="meta")
    if prepare is not None:
        prepare(packed, module.name)
    model.set_submodule(module.name, packed.train(linear.training))
