# SPDX-License-Identifier: Apache-2.0
"""Quantising while loading, one weight at a time."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.core_model_loading import ConversionOps


class Quantize(ConversionOps):
    """Turns one dense weight, as soon as it has been read, into a packed module, and the
    parameters of a mixture, when the last of them has been read. What stays dense is returned."""

    def __init__(self, quantizer: Any) -> None:
        self.quantizer = quantizer

    def convert(
        self, input_dict: dict[str, Any], model: Any = None, missing_keys: Any = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        choice, mixtures = self.quantizer.choice, self.quantizer.mixtures
        left: dict[str, Tensor] = {}
        for key, value in input_dict.items():
            dense = value[0] if isinstance(value, list) else value
            if mixtures.take(model, key, dense, choice.config.method, choice.report):
                if missing_keys is not None:
                    missing_keys.discard(key)
                continue
            made = choice.make(model, key, dense)
            for packed in made.packed:
                for buffer in packed.buffers():
                    buffer._is_hf_initialized = True
            if missing_keys is not None:
                missing_keys -= made.keys
            left |= made.dense
        return left
