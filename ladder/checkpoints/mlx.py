# SPDX-License-Identifier: Apache-2.0
"""Folders of MLX (mlx-lm), which name no quant_method (ladder.checkpoints.mlx_config).

    mode     weight                     scales                    biases
    affine   uint32 [N, K b / 32]       float [N, K/g]            float [N, K/g]
    mxfp4    uint32 [N, K/8], of e2m1   uint8 [N, K/32], of e8m0
    mxfp8    uint32 [N, K/4], of e4m3   uint8 [N, K/32], of e8m0
    nvfp4    uint32 [N, K/8], of e2m1   uint8 [N, K/16], of e4m3

    affine   weight[n, k] = code * scale + bias
    others   weight[n, k] = code * scale

Codes of b bits follow each other along K from the lowest bit up, across words: the bits of a row
are those of a canonical row. The zeros are the biases with their sign changed, also where they all
are midpoints: of some experts of a layer they are by chance, and all need one type.

Values are MLX's in float32, bit by bit. MLX computes in the dtype of the scales, in which it rounds
the product and the sum. Embeddings and routers, which are no linear layers, are decoded to that
dtype, of the other modes bfloat16, and rounded once; those of the other modes are exact in it.

Source: mlx 0.32.4, ops.cpp and backend/cpu/quantized.cpp; nn/layers/quantized.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.layer import (
    BYTES,
    SCALE_NAMES,
    Layer,
    Side,
    Stored,
    check_scales,
    expect,
    fail,
    group_block,
    is_embedding,
    require,
    side_of,
)
from ladder.checkpoints.mlx_config import KEY, MODES, Config, Module
from ladder.checkpoints.mlx_files import check_headers, experts_of
from ladder.checkpoints.mlx_files import with_experts as opened
from ladder.checkpoints.mlx_model import check_source, check_whole

PARTS = ("scales", "weight", "biases")
#: Keys of config.json, beside quantization_config, that say how MLX quantised.
KEYS = (KEY,)
#: Why engines cannot load such folders as they are.
NOT_SERVED = "embeddings and routers are packed, too, and experts are stacks"
#: Modules that transformers' models, or engines', have as something else than linear layers.
_ROUTERS = ("gate", "router", "shared_expert_gate")


@dataclass(frozen=True)
class _Measured(Module):
    """The settings of a module of which the scales are known."""

    dtype: torch.dtype  #: to which the module is decoded


def is_decoded(module: str, parts: Collection[str]) -> bool:
    """Whether a module is to be dense in a ladder folder, by its name."""
    return is_embedding(module) or module.rpartition(".")[2] in _ROUTERS


def codes_part(parts: Mapping[str, Any]) -> str | None:
    """See ladder.checkpoints.layer."""
    if "scales" in parts or "biases" in parts:
        return "weight"
    packed = "weight" in parts and parts["weight"].dtype == torch.uint32
    return "weight" if packed else None


def measure(parts: Mapping[str, Stored], config: Module, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name`` against each other and ``config``.

    Raises:
        CheckpointError: a part is missing, or has another dtype or shape than the rest asks for.
            The message names the tensor and both values.
    """
    mode = MODES[config.mode]
    affine = mode.scale is None
    require(parts, name, ("weight", "scales", "biases") if affine else ("weight", "scales"))
    if not affine and "biases" in parts:
        fail(f"{name}.biases", " is there, and mode ", config.mode, " has none")
    codes, (dtype, scales) = parts["weight"].shape, parts["scales"]
    for part, shape in (("weight", codes), ("scales", scales)):
        if len(shape) != 2 or 0 in shape:
            fail(f"{name}.{part}", " has shape ", list(shape), ", not two dimensions above zero")
    n, groups = codes[0], scales[1]
    k = groups * config.group_size
    if codes[1] * 32 != k * config.bits:
        fail(f"{name}.weight", " has rows of ", codes[1], " words, and ", groups, " groups of ",
             config.group_size, " codes of ", config.bits, " bits are ",
             f"{k * config.bits / 32:g}")  # fmt: skip
    expect(parts, name, "weight", torch.uint32, codes)
    expect(parts, name, "scales", SCALE_NAMES if affine else torch.uint8, (n, groups))
    if affine:
        expect(parts, name, "biases", dtype, (n, groups))
    decoded = dtype if affine and isinstance(dtype, torch.dtype) else torch.bfloat16
    measured = _Measured(config.bits, config.group_size, config.mode, decoded)
    return Layer(name, n, k, config.bits, config.group_size, groups,
                 group_block(config.group_size, k), measured, mode.element, mode.scale)  # fmt: skip


def decoded_dtype(layer: Layer) -> torch.dtype:
    """The dtype of a module that is decoded."""
    dtype: torch.dtype = layer.config.dtype
    return dtype


def canonical(part: str, tensor: Tensor, layer: Layer) -> tuple[str, Tensor]:
    """The canonical tensor that a stored one becomes, and its name: ladder.checkpoints.layer."""
    if part == "weight":
        return "qweight", tensor.contiguous().view(torch.int32)
    if part == "scales":
        return "scales", tensor if layer.scale is None else tensor.view(torch.uint8)
    return "zeros", -tensor


def side(tensors: Mapping[str, Tensor], layer: Layer) -> Side:
    """Return scales and zeros of a layer, canonical.

    Raises CheckpointError for a scale or bias that is NaN or infinite.
    """
    small = {part: tensors[part] for part in ("scales", "biases") if part in tensors}
    for part, tensor in small.items():
        values = tensor if layer.scale is None else tensor.view(BYTES[layer.scale][-1]).float()
        check_scales(values, f"{layer.name}.{part}")
    return side_of(dict(canonical(part, tensor, layer) for part, tensor in small.items()), layer)


def words(qweight: Tensor, layer: Layer, rows: slice) -> Tensor:
    """Return the codes of some rows as int32 [rows, ceil(K*b/32)], canonical."""
    return canonical("weight", qweight[rows], layer)[1]


__all__ = [
    "KEYS", "NOT_SERVED", "PARTS", "Config", "canonical", "check_headers", "check_source",
    "check_whole", "codes_part", "decoded_dtype", "experts_of", "is_decoded", "measure", "opened",
    "side", "words",
]  # fmt: skip
