# SPDX-License-Identifier: Apache-2.0
"""Folders whose tensors are those of a ladder folder by other names, as they are."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.core_model_loading import ConversionOps, WeightConverter

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.mxfp4 import STACK_NAMES, Translation, translate
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.folders.checkpoint import read_headers
from ladder.integrations.transformers.quantizer import Quantizer
from ladder.integrations.transformers.swap import swap_stored
from ladder.nn.select import packable


class TranslatedHfQuantizer(Quantizer):
    """Loads such a folder as if it were a ladder folder. The model is then a ladder model."""

    requires_calibration = True  # what such folders need to be quantised, ladder does not do
    method: str

    def _prepare(self, model: Any, files: Any) -> None:
        headers = read_headers(files)
        if headers is None:
            raise Unsupported(f"ladder loads {self.method} weights from safetensors")
        translation = Translation(self.quantization_config.ladder_source, headers)
        if not translation.stacks:
            raise CheckpointError(f"quant_method is {self.method}, but no experts are quantised")
        dense = [n for n in headers if n.endswith((*STACK_NAMES,)) and n not in translation.names]
        if dense:
            raise Unsupported(
                f"{dense[0]} is of experts that are dense, and {translation.stacks[0]} is packed: "
                "ladder takes all experts of such a folder packed; `ladder repack` reads it"
            )
        self._translation = translation
        self._names, self._singles = swap_stored(
            model, translation.headers, self._stored_config(model), self._plan
        )

    def _stored_config(self, model: Any) -> StoredConfig:
        fields = self.quantization_config.ladder_source
        return self._translation.stored_config(fields, tuple(packable(model)))

    def update_weight_conversions(self, weight_conversions: list[Any], *model: Any) -> Any:
        own = [
            WeightConverter(f"experts.{theirs}", f"experts.{ours}", operations=[_Translate()])
            for theirs, ours in STACK_NAMES.items()
        ]
        return super().update_weight_conversions([*own, *weight_conversions], *model)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        # transformers would undo them where the model is saved, which is a ladder model by now.
        kept = [c for c in model._weight_conversions if not _is_own(c)]
        model._weight_conversions = kept
        return super()._process_model_after_weight_loading(model, **kwargs)


def _is_own(conversion: Any) -> bool:
    return any(isinstance(each, _Translate) for each in getattr(conversion, "operations", ()))


class _Translate(ConversionOps):
    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        full_layer_name: str,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        (value,) = input_dict.values()
        tensor = value[0] if isinstance(value, list) else value
        return {full_layer_name: translate(source_patterns[0], tensor)}
