# SPDX-License-Identifier: Apache-2.0
"""Packed experts of ladder folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.layer import Stored
from ladder.checkpoints.model import renamer
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.integrations.folders.loading import float_dtypes
from ladder.nn.dense_experts import GATE_UP, STACKS
from ladder.nn.experts import Experts
from ladder.nn.mixtures import mixtures
from ladder.nn.stack import PackedStack
from ladder.types import parse
from ladder.weight import PARTS

#: What a stack may have beside the parts of its weights.
_MORE = ("input_scale", "bias")


class LoadingStack(PackedStack):
    """A :class:`PackedStack` until ``finish``, which checks it and makes it a plain one. It notes
    which of its tensors a loader gave it, as :class:`LoadingLinear` does."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and getattr(value, "_is_hf_initialized", False):
            self.__dict__.setdefault("_given", set()).add(name)
            if name == "input_scale":  # checked when it is finished
                self._buffers[name] = value.detach()
                return
        super().__setattr__(name, value)

    def finish(self, name: str) -> None:
        """Raise CheckpointError naming a tensor that was not loaded or does not fit."""
        given = self.__dict__.pop("_given", set())
        self.__class__ = PackedStack
        for part, tensor in {**self._buffers, **self._parameters}.items():
            # What accelerate holds on disk is on the meta device.
            if part not in given and tensor is not None and not tensor.is_meta:
                raise CheckpointError(
                    f"{name}.{part} was not loaded: it is missing, or does not fit"
                )
        for part, wanted in float_dtypes(self.weight_type).items():
            # transformers may keep what it takes for a weight in float32.
            tensor = getattr(self, part)
            if tensor is not None and tensor.is_floating_point() and tensor.dtype != wanted:
                self.register_buffer(part, tensor.to(wanted))
        if self.device.type != "meta":
            check(self, name)


def check(stack: PackedStack, name: str) -> None:
    """Raise CheckpointError unless the parts fit the type."""
    try:
        stack.check(name)
    except InvalidArgument as error:
        raise CheckpointError(str(error)) from error


def swap_experts(
    model: Any, headers: dict[str, Stored], config: StoredConfig, *, cut: bool
) -> dict[str, Stored]:
    """Make room for the packed experts that files hold.

    Args:
        headers: of all tensors.
        cut: whether the model is to be cut over processes.
    Returns:
        The headers of all other tensors.
    Raises:
        CheckpointError: stacks that are not whole, or do not fit the model or their type.
        Unsupported: ``cut``, or a model whose experts are of another kind.
    """
    rename, _ = renamer(model)
    stored: dict[str, dict[str, dict[str, Stored]]] = {}  # in files: module, stack, part
    rest = {}
    for tensor, header in headers.items():
        name, _, part = tensor.rpartition(".")
        holder, _, stack = name.rpartition(".")
        if part in (*PARTS, *_MORE) and stack in STACKS.values() and _is_stack(headers, name):
            stored.setdefault(holder, {}).setdefault(stack, {})[part] = header
        else:
            rest[tensor] = header
    known = mixtures(model) if stored else {}
    for holder, stacks in stored.items():
        name = rename(f"{holder}.{GATE_UP}").removesuffix(f".{GATE_UP}")
        if name not in known:
            _refuse(model, name, holder)
            continue  # not of this model: transformers reports the keys as unexpected
        if cut:
            raise Unsupported(
                f"{holder} holds packed experts, which cannot be cut over processes yet: load "
                "without tp_plan, with device_map say"
            )
        types = {}
        for stack in STACKS.values():
            if "qweight" not in stacks.get(stack, {}):
                raise CheckpointError(f"{holder}.{stack}.qweight is missing")
            text = config.modules.get(f"{name}.{stack}") or config.type_of(f"{holder}.{stack}")
            if text is None:
                raise CheckpointError(
                    f"{holder}.{stack}.qweight is there, but quantization_config leaves it "
                    "unquantised"
                )
            types[stack] = text
        experts = _room(model, name, types)
        for stack, parts in stacks.items():
            room: PackedStack = getattr(experts, stack)
            if "g_idx" in parts:
                shape = (room.experts, room.in_features)
                room.register_buffer("g_idx", torch.empty(shape, dtype=torch.int32, device="meta"))
            if "input_scale" in parts:
                room.input_scale = torch.empty(room.experts, 1, device="meta")
            _compare(getattr(experts, stack), parts, f"{holder}.{stack}")
    return rest


def swap_experts_by_config(model: Any, config: StoredConfig, *, cut: bool) -> None:
    """The same where nothing is known of the files but their config."""
    for name in mixtures(model):
        texts = {stack: config.type_of(f"{name}.{stack}") for stack in STACKS.values()}
        types = {stack: text for stack, text in texts.items() if text is not None}
        if len(types) == len(STACKS):
            if cut:
                raise Unsupported(f"{name} holds packed experts, which cannot be cut yet")
            _room(model, name, types)


def _is_stack(headers: Mapping[str, Stored], name: str) -> bool:
    """Three dimensions tell a stack from a linear layer that has the same name."""
    codes = headers.get(f"{name}.qweight")
    return codes is not None and len(codes.shape) == 3


def _refuse(model: Any, name: str, holder: str) -> None:
    try:
        module = model.get_submodule(name)
    except AttributeError:
        return
    raise Unsupported(
        f"{holder} holds packed experts, but {name} is a {type(module).__name__} in this model, "
        "which ladder.Experts cannot be in place of"
    )


def _room(model: Any, name: str, types: Mapping[str, str]) -> Experts:
    module = model.get_submodule(name)
    gate_up, down = (parse(types[stack]) for stack in ("gate_up", "down"))
    experts = Experts.in_place_of(module, gate_up, down, device="meta")
    for stack in (experts.gate_up, experts.down):
        stack.__class__ = LoadingStack
    model.set_submodule(name, experts)
    return experts


def _compare(stack: PackedStack, parts: Mapping[str, Stored], name: str) -> None:
    """Compare the headers of one stack with its room."""
    for part in (*PARTS, *_MORE):
        room, found = getattr(stack, part), parts.get(part)
        if (room is None) != (found is None):
            why = f"is there, but type {stack.weight_type} or the model has none"
            raise CheckpointError(f"{name}.{part} {'is missing' if found is None else why}")
        if found is None:
            continue
        if found.shape != tuple(room.shape):
            raise CheckpointError(
                f"{name}.{part} has shape {list(found.shape)}, not {list(room.shape)} as type "
                f"{stack.weight_type} needs"
            )
        if part != "bias" and found.dtype != room.dtype:
            raise CheckpointError(
                f"{name}.{part} has dtype {found.dtype}, not {room.dtype} as type "
                f"{stack.weight_type} needs"
            )
