# SPDX-License-Identifier: Apache-2.0
"""Packed convolutions of ladder folders."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.layer import Stored
from ladder.checkpoints.model import renamer
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.integrations.folders.checkpoint import parts_by_module, submodule
from ladder.integrations.folders.loading import NotesParts, check_loaded, keep_dtypes, require
from ladder.nn.conv import Conv2d
from ladder.nn.linear import Linear
from ladder.types import TType, parse
from ladder.weight import PARTS, Weight


class LoadingConv2d(NotesParts, Conv2d):
    """A :class:`ladder.Conv2d` until ``finish``, which checks it and makes it a plain one."""

    def finish(self, name: str) -> None:
        """Raise CheckpointError naming a tensor that was not loaded or does not fit."""
        require(self, name)
        keep_dtypes(self)
        self.__dict__.pop("_given", None)
        self.__class__ = Conv2d
        check_loaded(self, name)


def swap_convolutions(
    model: Any, headers: dict[str, Stored], config: StoredConfig, *, cut: bool
) -> dict[str, Stored]:
    """As :func:`ladder.integrations.transformers.experts.swap_experts`, of packed convolutions.

    Raises:
        CheckpointError: a convolution that lacks a part, does not fit the model or its type, or of
            which the config does not speak.
        Unsupported: ``cut``, or a subclass of nn.Conv2d that may compute something else.
    """
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return headers
    rename, _ = renamer(model)
    stored = parts_by_module(headers, PARTS)
    taken: set[str] = set()
    for name in sorted(stored.keys() | config.convolutions.keys()):
        target = rename(f"{name}.weight").removesuffix(".weight")
        conv = submodule(model, target)
        if not isinstance(conv, nn.Conv2d):
            if name in config.convolutions and conv is not None:
                raise CheckpointError(
                    f"quantization_config.convolutions has {name}, and {target} of the model is a "
                    f"{type(conv).__name__}"
                )
            continue  # not of this model, or no convolution
        parts = stored.get(name, {})
        _check(name, parts, target, conv, config, cut=cut)
        shape = config.convolutions[name]
        ttype = type_in(config, name)
        weight = weight_of_headers(name, parts, (shape[0], math.prod(shape[1:])), ttype)
        model.set_submodule(target, LoadingConv2d.in_place_of(conv, weight))
        taken |= {f"{name}.{part}" for part in parts}
    return {name: header for name, header in headers.items() if name not in taken}


def swap_convolutions_by_config(model: Any, config: StoredConfig, *, cut: bool) -> None:
    """The same where the files cannot be read ahead."""
    for name, shape in config.convolutions.items():
        conv = submodule(model, name)
        if isinstance(conv, nn.Conv2d):
            _check(name, {}, name, conv, config, cut=cut)
            room = Linear(
                math.prod(shape[1:]), shape[0], False, type_in(config, name), device="meta"
            )
            packed = LoadingConv2d.in_place_of(conv, room.packed_weight)
            model.set_submodule(name, packed)


def _check(
    name: str,
    parts: Mapping[str, Stored],
    target: str,
    conv: nn.Conv2d,
    config: StoredConfig,
    *,
    cut: bool,
) -> None:
    """Compare what the config says of one convolution with the model's, which it calls
    ``target``."""
    if name not in config.convolutions:
        raise CheckpointError(
            f"{name}.{next(iter(parts))} is there, but quantization_config.convolutions does not "
            f"have {name}"
        )
    if cut:
        raise Unsupported(
            f"{name} is a packed convolution, which cannot be in a model that is cut over "
            "processes: load without tp_plan, with device_map say"
        )
    if type(conv) is not nn.Conv2d:
        raise Unsupported(
            f"{name} is packed, and {target} a {type(conv).__name__}, which is more than "
            "nn.Conv2d: ladder cannot be in its place"
        )
    stored, wanted = config.convolutions[name], tuple(conv.weight.shape)
    if stored != wanted:
        raise CheckpointError(
            f"quantization_config.convolutions has filters of {list(stored)} of {name}, and the "
            f"model {list(wanted)}"
        )


def weight_of_headers(
    name: str, parts: Mapping[str, Stored], shape: tuple[int, int], ttype: TType
) -> Weight:
    """What headers say of the weight of one module, on the meta device. Raises CheckpointError
    where it lacks a part, or does not fit ``shape`` or ``ttype``."""
    if "qweight" not in parts:
        there = f"; {name} has {', '.join(sorted(parts))}" if parts else ""
        raise CheckpointError(f"{name}.qweight is missing{there}")
    for part, header in parts.items():
        if not isinstance(header.dtype, torch.dtype):
            raise CheckpointError(f"{name}.{part} has dtype {header.dtype}, which no part may have")
    on_meta = {
        part: torch.empty(header.shape, dtype=header.dtype, device="meta")
        for part, header in parts.items()
    }
    weight = Weight(ttype, shape, **on_meta)
    try:
        weight.check(name)
    except InvalidArgument as error:
        raise CheckpointError(str(error)) from error
    return weight


def type_in(config: StoredConfig, name: str) -> TType:
    """The type of a packed convolution or embedding."""
    return parse(config.modules.get(name, config.weight_type))
