# SPDX-License-Identifier: Apache-2.0
"""quant_method "bitnet" (BitNet b1.58 in transformers): ternary layers, with activations of int8.

    weight         uint8 [N/4, K]: bits 2i and 2i + 1 of row r are 1 + the code of row r + i N/4
    weight_scale   float [] or [1], of all
    weight[n, k] = weight[n, k] / weight_scale     linear_class "bitlinear"
    weight[n, k] = weight[n, k] * weight_scale     linear_class "autobitlinear"

Each token is rounded to int8 by a scale of its own. The values -1, 0 and 1 divided by a scale are
those values times float32(1 / scale), to the bit.

Source: transformers 5.23, integrations/bitnet.py and quantizer_bitnet.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ladder import ops
from ladder.checkpoints.activation_schemes import ActivationScheme
from ladder.checkpoints.layer import (
    SCALE_NAMES,
    Layer,
    Side,
    Stored,
    check_scales,
    config_flag,
    config_word,
    expect,
    fail,
    require,
    side_of,
)
from ladder.errors import Unsupported

PARTS = ("weight_scale", "weight")
_PLANES = 4
_ACTIVATIONS = ActivationScheme("int", 8, True, "token")


@dataclass(frozen=True)
class Config:
    """A BitNet quantization_config."""

    divides: bool = True  #: by weight_scale; else it multiplies

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization_config`` of config.json.

        Raises:
            CheckpointError: a key has the wrong type or a value outside the format's set.
            Unsupported: weights that are rounded anew in each call, or a norm in each layer.
        """
        kind = config_word(fields, ("linear_class",), "bitlinear")
        mode = config_word(fields, ("quantization_mode",), "offline")
        for key, word, known in (
            ("linear_class", kind, ("bitlinear", "autobitlinear")),
            ("quantization_mode", mode, ("offline", "online")),
        ):
            if word not in known:
                fail(f"quantization_config.{key}", " is ", repr(word), ", not ",
                     " or ".join(known))  # fmt: skip
        if (kind, mode) == ("autobitlinear", "online"):
            raise Unsupported(
                "quantization_config.quantization_mode is 'online': its weights are dense, and "
                "rounded anew in each call"
            )
        if config_flag(fields, "use_rms_norm", False):
            raise Unsupported(
                "quantization_config.use_rms_norm is True: each layer normalises its input first, "
                "which ladder's do not"
            )
        return cls(kind == "bitlinear")

    @property
    def activations(self) -> ActivationScheme:
        return _ACTIVATIONS

    @property
    def activation_type(self) -> str | None:
        return self.activations.activation_type

    def for_module(self, name: str) -> Config | None:
        """The settings of one module: the same for all that have codes."""
        return self


def codes_part(parts: Collection[str]) -> str | None:
    """See ladder.checkpoints.layer."""
    return "weight" if "weight_scale" in parts else None


def measure(parts: Mapping[str, Stored], config: Config, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name`` against each other.

    Raises:
        CheckpointError: a part is missing, or has another dtype or shape. The message names the
            tensor and both values.
    """
    require(parts, name, PARTS)
    shape, scale = parts["weight"].shape, parts["weight_scale"].shape
    if len(shape) != 2 or 0 in shape:
        fail(f"{name}.weight", " has shape ", list(shape), ", not two dimensions above zero")
    expect(parts, name, "weight", torch.uint8, shape)
    expect(parts, name, "weight_scale", SCALE_NAMES, scale if scale == () else (1,))
    n, k = shape[0] * _PLANES, shape[1]
    return Layer(name, n, k, 2, k, 1, "tensor", config, "ternary")


def canonical(part: str, tensor: Tensor, layer: Layer) -> tuple[str, Tensor]:
    """The canonical tensor that a stored one becomes, and its name: ladder.checkpoints.layer. Of
    the codes it takes all rows."""
    if part == "weight":
        planes = [tensor >> 2 * i & 3 for i in range(_PLANES)]
        return "qweight", _packed(torch.cat(planes), layer)
    scale = tensor.reshape(1, 1)
    return "scales", 1 / scale.float() if layer.config.divides else scale


def _packed(codes: Tensor, layer: Layer) -> Tensor:
    if not codes.is_meta and bool((codes == 3).any()):
        at = torch.nonzero(codes == 3)[0].tolist()
        fail(f"{layer.name}.weight", " has a code of 3 in column ", at[1], ", not 0, 1 or 2")
    return ops.pack(codes, 2)


def side(tensors: Mapping[str, Tensor], layer: Layer) -> Side:
    """Return the scale of a layer, canonical.

    Raises:
        CheckpointError: it, or the inverse that is used, is NaN or infinite.
    """
    check_scales(tensors["weight_scale"].reshape(1), f"{layer.name}.weight_scale")
    scale = canonical("weight_scale", tensors["weight_scale"], layer)[1]
    if not bool(torch.isfinite(scale)):
        fail(f"{layer.name}.weight_scale", " is ", tensors["weight_scale"].item(),
             ", and its inverse not finite")  # fmt: skip
    return side_of({"scales": scale}, layer)


def words(qweight: Tensor, layer: Layer, rows: slice) -> Tensor:
    """Return the codes of some rows as int32 [rows, ceil(K/16)], canonical."""
    row = torch.arange(*rows.indices(layer.n), device=qweight.device)
    lines = qweight[row % qweight.shape[0]]
    shifts = (2 * (row // qweight.shape[0])).to(torch.uint8)[:, None]
    return _packed(lines >> shifts & 3, layer)


def shapes(n: int, k: int, config: Config) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Shape and dtype of each part of an [n, k] layer; None is the dtype of the model."""
    return {"weight": ((n // _PLANES, k), torch.uint8), "weight_scale": ((1,), None)}


__all__ = [
    "PARTS", "Config", "canonical", "codes_part", "measure", "shapes", "side", "words",
]  # fmt: skip
