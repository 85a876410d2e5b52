# SPDX-License-Identifier: Apache-2.0
"""Quantising while loading, one weight at a time."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.core_model_loading import ConversionOps

from ladder.errors import CheckpointError
from ladder.nn.linear import Linear
from ladder.quantization import quantize


class Quantize(ConversionOps):
    """Turns one dense weight, as soon as it has been read, into a packed module."""

    def __init__(self, quantizer: Any) -> None:
        self.quantizer = quantizer

    def convert(
        self, input_dict: dict[str, Any], model: Any = None, missing_keys: Any = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        method = self.quantizer.quantization_config.method
        for key, value in input_dict.items():
            name = key.removesuffix(".weight")
            linear = model.get_submodule(name)
            dense = value[0] if isinstance(value, list) else value
            if dense.shape != linear.weight.shape:
                raise CheckpointError(
                    f"{key} has shape {list(dense.shape)}, not {list(linear.weight.shape)}"
                )
            packed = Linear.from_weight(quantize(dense, self.quantizer.type_of(key), method=method))
            packed.dtype, packed.bias = linear.weight.dtype, linear.bias
            for buffer in packed.buffers():
                buffer._is_hf_initialized = True
            model.set_submodule(name, packed.train(linear.training))
            if missing_keys is not None:
                missing_keys.discard(key)
        return {}
