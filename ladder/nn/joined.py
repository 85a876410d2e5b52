# SPDX-License-Identifier: Apache-2.0
"""Which layers can be rows of one weight, and that weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ladder.nn.linear import Linear
from ladder.nn.pre_scale import told
from ladder.weight import PARTS, join, join_objection, with_alike_second_scales


def objection(layers: Sequence[Linear]) -> str:
    """Why ``layers`` cannot be rows of one weight; "" when they can."""
    first = layers[0]
    for layer in layers:
        if type(layer) is not Linear:
            return f"a layer is of {type(layer).__name__}, not ladder.Linear"
        if "forward" in layer.__dict__:
            return "something has replaced the forward of a layer, as accelerate does to move it"
        if layer.device.type == "meta":
            return "a weight is on the meta device"
    for what, of in _SAME.items():
        values = [of(layer) for layer in layers]
        if any(value != values[0] for value in values):
            return f"{what} differ: " + ", ".join(map(str, dict.fromkeys(values)))
    ttype = first.weight_type
    # Second scales of whole tensors become those of rows where they differ.
    asked = [name for name in _SMALL if name != "scale2" or ttype.rows != 1]
    parts = [{name: getattr(layer, name) for name in asked} for layer in layers]
    return join_objection(ttype, [layer.out_features for layer in layers], parts)


#: Parts but the codes, which may be in an image.
_SMALL = tuple(part for part in PARTS if part != "qweight")

_SAME: dict[str, Callable[[Linear], Any]] = {
    "types": lambda layer: layer._type_text,
    "in_features": lambda layer: layer.in_features,
    "dtypes": lambda layer: layer.dtype,
    "devices": lambda layer: layer.device,
    "dtypes of biases": lambda layer: None if layer.bias is None else layer.bias.dtype,
    "activations": lambda layer: layer.activation,
    "activation types": lambda layer: layer.activation_type,
    "static scales": lambda layer: None if layer.input_scale is None else float(layer.input_scale),
    "numbers of x's columns (pre_scale)": lambda layer: told(layer.pre_scale) or "none",
    "dependent_launch": lambda layer: layer.dependent_launch,
}


def joined(layers: Sequence[Linear], kind: type[Linear] = Linear) -> Any:
    """A layer of ``kind`` with the rows of ``layers``, one after the other, of which there is no
    :func:`objection`. Nothing is shared with them but what is one for all rows. Its type has second
    scales for each row where theirs, of whole tensors, differ."""
    first = layers[0]
    bias = None
    if first.bias is not None:
        biases: list[Any] = [layer.bias for layer in layers]
        bias = torch.cat([each.detach() for each in biases])
    (weights,) = with_alike_second_scales([[layer.packed_weight for layer in layers]])
    linear = kind.from_weight(
        join(weights),
        bias,
        activation_type=first.activation_type,
    )
    linear.input_scale, linear.pre_scale = first.input_scale, first.pre_scale
    linear.activation = first.activation
    linear.requires_grad_(False)
    linear.dtype = first.dtype
    linear.dependent_launch = first.dependent_launch
    return linear.train(first.training)
