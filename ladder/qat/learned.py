# SPDX-License-Identifier: Apache-2.0
"""From a layer to the parameters of its scales, and from these to what is packed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from ladder.errors import InvalidArgument
from ladder.nn.calibration import Calibrated
from ladder.nn.dense_experts import STACKS
from ladder.nn.experts import Experts
from ladder.nn.mixtures import FoundExperts
from ladder.nn.packed import PackedModule
from ladder.nn.select import Found
from ladder.nn.select_conv import matrix_of
from ladder.qat.layers import Settings
from ladder.qat.scales import CENTER, RANGE, objection, parameters_of
from ladder.quantization import quantize, weights_of
from ladder.weight import Weight


def first_parameters(
    layer: Found | FoundExperts, settings: Settings, packed: nn.Module | None
) -> dict[str, Tensor]:
    """What the parameters of a layer's scales are before it is trained, by name. Quantises each
    weight once, for what :func:`ladder.quantize` refuses or warns of, too.

    Args:
        packed: the model whose scales they begin with, if there is one.
    """
    made: dict[str, Tensor] = {}
    for which, name in enumerate(_names(settings)):
        scales, every = settings.scales[which], list[dict[str, Tensor]]()
        for number, matrix in enumerate(_matrices(layer, settings, name)):
            with weights_of(_whose(layer, settings, name, number)):
                weight = quantize(matrix, settings.types[which], method=settings.method)
            if scales is not None:
                if packed is not None:
                    weight = _given(packed, layer, settings, name, number, weight)
                every.append(scales.start(weight))
        for part in every[0] if every else ():
            values = [each[part] for each in every]
            made[name + part] = torch.stack(values) if settings.layout else values[0]
    return made


def trained(layer: Found | FoundExperts, settings: Settings, module: nn.Module) -> Calibrated:
    """What a layer with learned scales is packed as. ``module``: the prepared one."""
    made = Calibrated()
    for which, name in enumerate(_names(settings)):
        scales, weights = settings.scales[which], []
        learned = parameters_of(module, name)
        for number, matrix in enumerate(_matrices(layer, settings, name)):
            own = [each[number] if settings.layout else each for each in learned]
            with weights_of(_whose(layer, settings, name, number)):
                if scales is None:
                    weight = quantize(matrix, settings.types[which], method=settings.method)
                else:
                    weight = scales.packed(matrix, *own)
            weights.append(weight)
        if settings.layout:
            made.stacks.setdefault(layer.name, {})[name] = weights
        else:
            made.weights[layer.name] = weights[0]
    return made


def not_learned(layer: Found | FoundExperts, settings: Settings) -> dict[str, str]:
    """Of each weight of a layer whose scales are not trained, why."""
    names = [layer.name]
    if isinstance(layer, FoundExperts):
        names = [stack for stack, _ in layer.stacks().values()]
    every = zip(names, settings.types, strict=True)
    return {name: why for name, ttype in every if (why := objection(ttype))}


def scale_names(module: nn.Module) -> list[str]:
    """The names of the parameters of its scales that a prepared module has."""
    weights = ("weight", *STACKS)
    every = [name + part for name in weights for part in (RANGE, CENTER)]
    return [name for name in every if module._parameters.get(name) is not None]


def _whose(layer: Found | FoundExperts, settings: Settings, name: str, number: int) -> str:
    """What a weight is called in errors."""
    return f"{layer.name}.{STACKS[name]}: expert {number}" if settings.layout else layer.name


def _names(settings: Settings) -> tuple[str, ...]:
    return tuple(STACKS) if settings.layout else ("weight",)


def _matrices(layer: Found | FoundExperts, settings: Settings, name: str) -> Iterator[Tensor]:
    """[N, K] of each weight of parameter ``name``."""
    dense = cast(Tensor, layer.module._parameters[name]).detach()
    if settings.layout is None:
        yield matrix_of(layer.module, dense)
        return
    for each in dense.unbind():
        yield settings.layout.rows(name, each)


def _given(
    model: nn.Module, layer: Found | FoundExperts, settings: Settings, name: str, number: int,
    like: Weight,
) -> Weight:  # fmt: skip
    """The weight that a packed ``model`` has where ``like`` is to be."""
    try:
        module: Any = model.get_submodule(layer.name)
    except AttributeError:
        raise InvalidArgument(f"{layer.name}: scales_of has no module of this name") from None
    if isinstance(module, Experts) and settings.layout:
        weight: Weight = getattr(module, STACKS[name]).weight_of(number)
    elif isinstance(module, PackedModule):
        weight = module.packed_weight
    else:
        raise InvalidArgument(
            f"{layer.name}: scales_of has a {type(module).__name__} there, which is not packed"
        )
    if (weight.type, weight.shape) != (like.type, like.shape) or weight.g_idx is not None:
        order = ", in groups of act-order" if weight.g_idx is not None else ""
        raise InvalidArgument(
            f"{layer.name}: scales_of has {weight.type} {list(weight.shape)}{order}, not "
            f"{like.type} {list(like.shape)}"
        )
    return weight.to(like.qweight.device)
