# SPDX-License-Identifier: Apache-2.0
"""quant_method "w4afp8", of SGLang: mixtures whose linear layers are FP8 in blocks and whose
experts have 4 bits, with activations of float8_e4m3 (DeepSeek-R1-W4AFP8, say).

    linear layers      as ladder.checkpoints.fp8 has them, in blocks of 128 x 128
    experts, each projection by itself
        weight         int8 [N, K/2]: two codes of int4 in a byte, the first in its lower half
        weight_scale_inv   float [N, K/128]; it multiplies
        input_scale    float [] or [1]: of x, static
    weight[n, k] = weight_scale_inv[n, k / 128] * weight[n, k]

SGLang reads no other key of the config than quant_method and ignored_layers, so neither does this.

Source: SGLang 0.5.23, layers/quantization/w4afp8.py and its test test_cutlass_w4a8_moe.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ladder.checkpoints import fp8
from ladder.checkpoints.activation_schemes import ActivationScheme
from ladder.checkpoints.fp8 import PARTS, canonical, codes_part, shapes, side, words
from ladder.checkpoints.layer import (
    SCALE_NAMES,
    Layer,
    Stored,
    expect,
    expect_input_scale,
    fail,
    require,
)

_SCALE, _GROUP, _BLOCK = "weight_scale_inv", 128, [128, 128]
_OF_EXPERTS = ActivationScheme("float", 8, False, "tensor")


@dataclass(frozen=True)
class Config(fp8.Config):
    """A w4afp8 quantization_config. Of experts, ``activations`` are those of :func:`measure`."""

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization_config`` of config.json. The log and errors as those of fp8."""
        known = {key: fields[key] for key in fields if key.endswith(("layers", "not_convert"))}
        of = fp8.Config.from_dict(known | {"weight_block_size": _BLOCK})
        return cls(of.block, of.activations, of.dense)

    def for_module(self, name: str) -> Config | None:
        return self if super().for_module(name) is not None else None


def measure(parts: Mapping[str, Stored], config: Config, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name``; errors as fp8's."""
    require(parts, name, ("weight",))
    if parts["weight"].dtype != torch.int8:
        return fp8.measure(parts, config, name, k)
    shape = parts["weight"].shape
    if len(shape) != 2 or 0 in shape:
        fail(f"{name}.weight", " has shape ", list(shape), ", not two dimensions above zero")
    require(parts, name, (_SCALE,))
    n, k = shape[0], 2 * shape[1]
    groups = -(-k // _GROUP)
    expect(parts, name, _SCALE, SCALE_NAMES, (n, groups))
    expect_input_scale(parts, name, True)
    of_experts = replace(config, activations=_OF_EXPERTS)
    return Layer(name, n, k, 4, min(_GROUP, k), groups, f"group={_GROUP}", of_experts, "int4")


__all__ = [
    "PARTS", "Config", "canonical", "codes_part", "measure", "shapes", "side", "words",
]  # fmt: skip
