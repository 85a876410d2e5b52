# SPDX-License-Identifier: Apache-2.0
"""Quantised embeddings and routers of other packages, which are decoded while they are loaded:
ladder packs linear layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps, WeightConverter

from ladder.checkpoints.layer import Stored, assemble, stored
from ladder.checkpoints.model import after_renamings, renamer
from ladder.checkpoints.source import FORMATS
from ladder.errors import CheckpointError
from ladder.integrations.folders.checkpoint import parts_by_module, submodule
from ladder.nn.select import is_linear


class Decode(ConversionOps):
    """Makes the weight of module ``stored`` of its parts, which ``names`` has by their patterns.
    transformers copies it. ``weight`` is the model's."""

    #: By such an attribute transformers knows operations that take parts in the files' own dtypes.
    hf_quantizer = True

    def __init__(
        self, method: str, settings: Any, stored: str, names: Mapping[str, str], weight: Tensor
    ) -> None:
        self.method, self.settings, self.stored, self.names = method, settings, stored, names
        self.k, self.dtype = weight.shape[1], weight.dtype

    def convert(
        self, input_dict: dict[str, Any], *args: Any, full_layer_name: str = "", **kwargs: Any
    ) -> dict[str, Tensor]:
        tensors = {}
        for pattern, value in input_dict.items():
            tensors[self.names[pattern]] = value[0] if isinstance(value, list) else value
        device = next(iter(tensors.values())).device
        tensors = {part: tensor.cpu() for part, tensor in tensors.items()}
        format = FORMATS[self.method]
        layer = format.measure(stored(tensors), self.settings, self.stored, self.k)
        codes = tensors[format.codes_part(tensors)]
        words = format.words(codes, layer, slice(0, layer.n))
        weight = assemble(layer, format.side(tensors, layer), words)
        dtype = format.decoded_dtype(layer)
        return {full_layer_name: weight.dequantize().to(dtype).to(device, self.dtype)}


def _has_weight(module: nn.Module | None) -> TypeGuard[nn.Module]:
    """Whether a module has a weight [N, K], as embeddings, routers and linear layers have."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, nn.Parameter) and weight.dim() == 2


def take_embeddings(
    model: Any, headers: dict[str, Stored], method: str, settings: Any
) -> tuple[dict[str, Stored], list[WeightConverter]]:
    """The headers of all but quantised modules that are no linear layers, or that the format has
    decoded by their names, and what decodes these while they are loaded.

    Raises:
        CheckpointError: such a module has another shape than the model's; as ``measure`` of the
            format.
    """
    format = FORMATS[method]
    if not hasattr(format, "decoded_dtype"):
        return headers, []
    named = getattr(format, "is_decoded", lambda name, parts: False)
    (rename, _), renamed = renamer(model), after_renamings(model)
    kept, converters = dict(headers), []
    for name, parts in parts_by_module(headers, format.PARTS).items():
        module = submodule(model, rename(f"{name}.weight").removesuffix(".weight"))
        if not _has_weight(module) or format.codes_part(parts) is None:
            continue
        if is_linear(module) and not named(name, parts):
            continue
        config = settings.for_module(name)
        if config is None:
            raise CheckpointError(
                f"{name} is quantised, but quantization_config leaves {name} unquantised"
            )
        layer = format.measure(parts, config, name, module.weight.shape[1])
        if (layer.n, layer.k) != tuple(module.weight.shape):
            raise CheckpointError(
                f"{name} holds a weight of {[layer.n, layer.k]}, not {list(module.weight.shape)} "
                "as the model has"
            )
        names = {re.escape(renamed(f"{name}.{part}")): part for part in parts}
        made = Decode(method, config, name, names, module.weight)
        converters.append(WeightConverter([*names], renamed(f"{name}.weight"), operations=[made]))
        for part in parts:
            del kept[f"{name}.{part}"]
    return kept, converters
