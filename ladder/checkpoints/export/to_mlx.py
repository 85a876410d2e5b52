# SPDX-License-Identifier: Apache-2.0
"""What writes folders of MLX (mlx-lm). See :mod:`ladder.checkpoints.mlx`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ladder import ops
from ladder.checkpoints.export.units import Unit
from ladder.checkpoints.mlx_config import KEY, MODES, Config, Module
from ladder.errors import Unsupported
from ladder.types import TType
from ladder.weight import Weight

KEYS = (KEY, "quantization_config")
#: Packed embeddings stay packed.
EMBEDDINGS = True
_AFFINE = MODES["affine"]


def _mode_of(ttype: TType) -> str:
    """The mode that holds weights of a type; "" where none does."""
    if ttype.rows != 1 or ttype.scale2 is not None:
        return ""
    for name, mode in MODES.items():
        same = (mode.element, mode.scale) == (ttype.element.name, ttype.scale)
        if same and ttype.columns in mode.group_sizes and ttype.zero == "none":
            return name
    kinds = {"unsigned_integer": ("midpoint", "rescale"), "signed_integer": ("none",)}
    fits = ttype.zero in kinds.get(ttype.element.encoding, ())
    known = ttype.bits in _AFFINE.bits and ttype.columns in _AFFINE.group_sizes
    # A code times a scale of float32 would be rounded before the bias is added.
    scales = ("float16", "bfloat16", "float32")[: 3 if ttype.zero == "rescale" else 2]
    return "affine" if fits and known and ttype.scale in scales else ""


def objection(unit: Unit) -> str:
    """Why MLX does not hold the weight of a module as it is; "" where it does."""
    if not _mode_of(unit.type):
        return (
            "it has integers of 1 to 6 and 8 bits in groups of 32, 64 and 128, whose zero points "
            'are the middle, beside scales of 16 bits, or "rescale", MXFP4, mxfp8_e4m3, and '
            "float4_e2m1,group=16,scale=float8_e4m3 without a second scale"
        )
    if unit.k % unit.type.columns:
        return f"its groups divide K, and {unit.type.columns} does not divide {unit.k}"
    if unit.act_order:
        return "it has no order of columns (act-order)"
    return ""


def takes_single_rows(unit: Unit) -> bool:
    """Whether :func:`tensors` is given a weight whose rows have scales of their own."""
    return False


def config(units: Sequence[Unit], dense: Sequence[str]) -> dict[str, Any]:
    """The settings of a folder that has ``units`` packed and the linear layers ``dense`` not."""
    own = {unit.name: _settings(unit.type) for unit in units}
    usual = Counter(tuple(each.items()) for each in own.values()).most_common(1)[0][0]
    named = {name: each for name, each in own.items() if tuple(each.items()) != usual}
    return {**dict(usual), **named, **dict.fromkeys(dense, False)}


def _settings(ttype: TType) -> dict[str, Any]:
    return {"group_size": ttype.columns, "bits": ttype.bits, "mode": _mode_of(ttype)}


def settings(fields: dict[str, Any]) -> Config:
    """What :func:`config` has made, as it is read."""
    return Config.from_dict(fields)


def shapes(unit: Unit, scheme: Module) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Shape and dtype of each part; None: that of the scales."""
    groups = (unit.n, unit.k // scheme.group_size)
    parts: dict[str, tuple[tuple[int, ...], torch.dtype | None]] = {
        "weight": ((unit.n, unit.k * unit.type.bits // 32), torch.uint32),
        "scales": (groups, None),
    }
    return parts | ({"biases": (groups, None)} if scheme.mode == "affine" else {})


def tensors(weight: Weight, scheme: Module) -> dict[str, Tensor]:
    """The parts of a module. Raises Unsupported where a bias would be no number."""
    ttype = weight.type
    assert weight.scales is not None
    words, parts = weight.qweight, {"scales": weight.scales}
    if scheme.mode == "affine":
        middle = 1 << ttype.bits - 1
        if ttype.zero == "rescale" and weight.zeros is not None:
            biases = -weight.zeros
        else:
            biases = weight.scales * -middle  # exact: a power of two
        if not bool(biases.isfinite().all()):
            most = weight.scales.abs().max().item()
            raise Unsupported(f"a scale of {most} times {middle} is beyond {ttype.scale}")
        parts["biases"] = biases
        if ttype.element.encoding == "signed_integer":
            words = ops.pack(weight.codes() ^ middle, ttype.bits)
    return {"weight": words.view(torch.uint32), **parts}


def notes(units: Sequence[Unit]) -> list[str]:
    """Sentences about what the folder does not say."""
    if any(unit.activation_type is not None for unit in units):
        return ["x comes as it is: MLX has no activation_type"]
    return []


__all__ = [
    "EMBEDDINGS", "KEYS", "config", "notes", "objection", "settings", "shapes",
    "takes_single_rows", "tensors",
]  # fmt: skip
