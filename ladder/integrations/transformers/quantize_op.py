# SPDX-License-Identifier: Apache-2.0
"""Quantising while loading, one weight at a time."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps

from ladder.errors import CheckpointError
from ladder.nn.conv import Conv2d
from ladder.nn.convert import replace
from ladder.nn.linear import Linear
from ladder.nn.select import is_conv1d
from ladder.nn.select_conv import matrix_of
from ladder.quantization import quantize, weights_of
from ladder.weight import Weight


class Quantize(ConversionOps):
    """Turns one dense weight, as soon as it has been read, into a packed module, and the
    parameters of a mixture, when the last of them has been read."""

    def __init__(self, quantizer: Any) -> None:
        self.quantizer = quantizer

    def convert(
        self, input_dict: dict[str, Any], model: Any = None, missing_keys: Any = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        method = self.quantizer.quantization_config.method
        for key, value in input_dict.items():
            dense = value[0] if isinstance(value, list) else value
            if self.quantizer.mixtures.take(model, key, dense, method, self.quantizer.conversion):
                if missing_keys is not None:
                    missing_keys.discard(key)
                continue
            layer, text = self.quantizer.layer_of(key)
            linear = layer.module
            if dense.shape != linear.weight.shape:
                raise CheckpointError(
                    f"{key} has shape {list(dense.shape)}, not {list(linear.weight.shape)}"
                )
            with weights_of(layer.name):
                weight = quantize(matrix_of(linear, dense), text, method=method)
            packed = _packed(linear, weight)
            for buffer in packed.buffers():
                buffer._is_hf_initialized = True
            packed._parameters["bias"] = linear._parameters["bias"]
            replace(model, layer.names, linear, packed.train(linear.training))
            self.quantizer.conversion.add(layer.name, text, dense.numel())
            self.quantizer.conversion.convolutions += isinstance(packed, Conv2d)
            if missing_keys is not None:
                missing_keys.difference_update(f"{name}.weight" for name in layer.names)
        return {}


def _packed(module: Any, weight: Weight) -> Linear | Conv2d:
    """``weight``, on which no bias depends, in the place of a linear layer or a convolution."""
    if isinstance(module, nn.Conv2d):
        return Conv2d.in_place_of(module, weight)
    packed = Linear.from_weight(weight)
    packed.dtype, packed._conv1d = module.weight.dtype, is_conv1d(module)
    return packed
