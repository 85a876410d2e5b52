# SPDX-License-Identifier: Apache-2.0
"""quant_method "quark" (AMD's Quark): layers of FP8, INT8 and the MX formats of 4 and 6 bits.

    dtype, qscheme                 weight                        weight_scale
    fp8_e4m3, per_tensor           float8 [N, K]                 float [] or [1]
    fp8_e4m3, per_channel          float8 [N, K]                 float [N]
    int8, per_tensor, per_channel  int8 [N, K]                   float [] or [1], [N]
    fp4, per_group of 32           uint8 [N, K/2]: two codes     uint8 [N, K/32], e8m0
                                   in a byte, the first below
    fp6_e2m3, fp6_e3m2, likewise   uint8 [N, 3K/4]: a little-    uint8 [N, K/32], e8m0
                                   endian bit stream
    weight_zero_point              of int8, as the scales; all 0
    input_scale                    float [] or [1], of static activations
    weight[n, k] = weight_scale[n, k / group] * weight[n, k]

Source: Quark 0.13, torch/export (main_export/quant_config_parser.py, nn/modules/realquantizer.py)
and torch/utils/pack.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from ladder.checkpoints.activation_schemes import INPUT_PARTS
from ladder.checkpoints.fp8 import canonical, words
from ladder.checkpoints.layer import (
    BYTES,
    INPUT_SCALES,
    SCALE_NAMES,
    Layer,
    Side,
    Stored,
    check_scales,
    expect,
    expect_input_scale,
    fail,
    require,
    side_of,
)
from ladder.checkpoints.quark_config import ELEMENTS, MX_GROUP, Config, Module
from ladder.errors import Unsupported

PARTS = ("weight_scale", "weight_zero_point", "weight", *INPUT_PARTS[:2])


def codes_part(parts: Collection[str]) -> str | None:
    """See ladder.checkpoints.layer."""
    return "weight" if "weight_scale" in parts else None


def measure(parts: Mapping[str, Stored], config: Module, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name`` against each other and ``config``.

    Raises:
        CheckpointError: a part is missing, or has another dtype or shape than the rest asks for.
            The message names the tensor and both values.
    """
    require(parts, name, ("weight", "weight_scale"))
    shape, scale = parts["weight"].shape, parts["weight_scale"].shape
    if len(shape) != 2 or 0 in shape:
        fail(f"{name}.weight", " has shape ", list(shape), ", not two dimensions above zero")
    element = ELEMENTS[config.dtype]
    expect(parts, name, "weight", element.stored, shape)
    expect_input_scale(parts, name, config.activations is not None and config.activations.is_static)
    n, k = shape[0], shape[1] * 8 // element.bits
    if config.qscheme == "per_group":
        if k % MX_GROUP or shape[1] * 8 % element.bits:
            fail(f"{name}.weight", " has rows of ", shape[1], f" bytes, not of whole groups of "
                 f"{MX_GROUP} codes")  # fmt: skip
        groups = k // MX_GROUP
        expect(parts, name, "weight_scale", BYTES["e8m0"], (n, groups))
        return Layer(name, n, k, element.bits, MX_GROUP, groups, f"group={MX_GROUP}", config,
                     element.name, "e8m0")  # fmt: skip
    whole = config.qscheme == "per_tensor"
    wanted = (scale if scale == () else (1,)) if whole else (n,)
    expect(parts, name, "weight_scale", SCALE_NAMES, wanted)
    if "weight_zero_point" in parts:
        expect(parts, name, "weight_zero_point", (torch.int8, torch.int32), wanted)
    block = "tensor" if whole else "channel"
    return Layer(name, n, k, 8, k, 1, block, config, element.name)


def side(tensors: Mapping[str, Tensor], layer: Layer) -> Side:
    """Return the scales of a layer, canonical.

    Raises:
        CheckpointError: a scale is NaN or infinite.
        Unsupported: zero points of int8 that are not 0.
    """
    values = tensors["weight_scale"]
    if layer.scale is not None:
        values = values.view(BYTES[layer.scale][-1]).float()
    check_scales(values, f"{layer.name}.weight_scale")
    zeros = tensors.get("weight_zero_point")
    if zeros is not None and bool(zeros.any()):
        raise Unsupported(f"{layer.name}.weight_zero_point is not 0, as ladder's of int8 are")
    small = (part for part in ("weight_scale", *INPUT_SCALES) if part in tensors)
    return side_of(dict(canonical(part, tensors[part], layer) for part in small), layer)


def shapes(n: int, k: int, config: Module) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Shape and dtype of each part of an [n, k] layer; None is the dtype of the model."""
    element = ELEMENTS[config.dtype]
    parts: dict[str, tuple[tuple[int, ...], torch.dtype | None]] = {
        "weight": ((n, k * element.bits // 8), element.stored[0])
    }
    if config.qscheme == "per_group":
        parts["weight_scale"] = ((n, k // MX_GROUP), torch.uint8)
    else:
        parts["weight_scale"] = (() if config.qscheme == "per_tensor" else (n,), None)
    if config.activations is not None and config.activations.is_static:
        parts["input_scale"] = ((), None)
    return parts


__all__ = [
    "PARTS", "Config", "canonical", "codes_part", "measure", "shapes", "side", "words",
]  # fmt: skip
