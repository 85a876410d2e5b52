# SPDX-License-Identifier: Apache-2.0
"""Room for what the files of a ladder folder hold packed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.layer import Stored
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.integrations.transformers.checkpoint import StoredModule, find_modules
from ladder.integrations.transformers.convolutions import (
    swap_convolutions,
    swap_convolutions_by_config,
)
from ladder.integrations.transformers.experts import swap_experts, swap_experts_by_config
from ladder.integrations.transformers.loading import LoadingLinear
from ladder.integrations.transformers.single_experts import SingleExperts, open_experts
from ladder.integrations.transformers.tensor_parallel import Plan, prepare
from ladder.nn.outputs import outputs
from ladder.nn.packed import OF_X
from ladder.nn.parallel import NO_PARTS
from ladder.nn.select import dense_weight, is_conv1d, linears
from ladder.types import parse
from ladder.weight import PARTS, Weight


def swap_stored(
    model: Any, headers: dict[str, Stored] | None, config: StoredConfig, plan: Plan | None
) -> tuple[dict[str, str], dict[str, SingleExperts]]:
    """Make room for what the files hold packed.

    Args:
        headers: of all tensors; None where the files are none of safetensors.
    Returns:
        The names in the files of linear modules, by those in the model; and the experts whose
        projections are packed one by one, by the names of their modules.
    """
    cut = plan is not None
    if headers is None:  # a state_dict, or pickled files: the config is all there is to go by
        skip = outputs(model)
        swap_experts_by_config(model, config, cut=cut)
        swap_convolutions_by_config(model, config, cut=cut)
        for name, linear in linears(model).items():
            text = config.type_of(name)
            if text is not None and (name in config.modules or name not in skip):
                parts: dict[str, Any] = {} if linear.bias is None else {"bias": None}
                _swap(model, StoredModule(name, name, parts), text, plan)
        return {}, {}
    headers = swap_experts(model, headers, config, cut=cut)
    headers = swap_convolutions(model, headers, config, cut=cut)
    singles = open_experts(model, headers, PARTS, _codes_part, cut=cut)
    found = find_modules(model, headers, (*PARTS, *OF_X), _codes_part)
    for module in found:
        text = config.modules.get(module.name) or config.type_of(module.stored_name)
        if text is None:
            raise CheckpointError(
                f"{module.stored_name}.qweight is there, but quantization_config leaves "
                f"{module.stored_name} unquantised"
            )
        _check(model.get_submodule(module.name), module, text)
        _swap(model, module, text, plan)
    for single in singles.values():
        single.check_whole(headers)
    return {module.name: module.stored_name for module in found}, singles


def _codes_part(parts: Collection[str]) -> str | None:
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


def _swap(model: Any, module: StoredModule, text: str, plan: Plan | None) -> None:
    linear = model.get_submodule(module.name)
    n, k = dense_weight(linear).shape
    packed = LoadingLinear(
        k,
        n,
        linear.bias is not None or "bias" in module.parts,
        text,
        act_order="g_idx" in module.parts,
        device="meta",
        dtype=linear.weight.dtype,
    )
    packed._conv1d = is_conv1d(linear)
    if "input_scale" in module.parts:
        packed.input_scale = torch.empty(1, device="meta")
    if "pre_scale" in module.parts:
        if plan is not None:
            raise Unsupported(f"{module.stored_name}: {NO_PARTS}")
        packed.pre_scale = torch.empty(k, device="meta")
    if plan is not None:
        prepare(packed, module.name, plan)
    model.set_submodule(module.name, packed.train(linear.training))
