# SPDX-License-Identifier: Apache-2.0
"""What is done between the making of a model and the loading of its tensors.

vLLM asks for the method of a layer by a name that the model gives it, which some models leave out
or make up (MiniCPM3, FalconH1, Granite's hybrids): such a layer is made dense. Now it has its place
in the model, by which its tensors will be found, and becomes packed where the files have it so.

Stacks of experts are loaded before the model sees them: models with a loader of their own
(DeepSeek, gpt-oss) look names of the files up among those of parameters, and know no stacks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from ladder.integrations.serving.experts import STEMS


def dense_method(config: Any, vllm_config: Any) -> UnquantizedLinearMethod:
    """vLLM's own method, no subclass, which it would treat otherwise, of a layer of which the files
    hold nothing packed by the name that it was given.

    Args:
        config: the LadderQuantizationConfig that was asked.
        vllm_config: that of the engine.
    """
    method = UnquantizedLinearMethod()
    method.ladder_asked = config, vllm_config
    return method


def install() -> None:
    """Doing it again is harmless."""
    theirs = DefaultModelLoader.get_all_weights
    if hasattr(theirs, "prepares_for_ladder"):
        return

    @functools.wraps(theirs)
    def get_all_weights(loader: Any, model_config: Any, model: nn.Module) -> Any:
        pack_late(model)
        return without_stacks(model, theirs(loader, model_config, model))

    get_all_weights.prepares_for_ladder = True
    DefaultModelLoader.get_all_weights = get_all_weights


def pack_late(model: nn.Module) -> None:
    """Make room for packed weights in dense layers of ``model`` that the files have packed by the
    layer's name in the model.

    Raises:
        CheckpointError, Unsupported: as :meth:`LinearMethod.create_weights`.
    """
    for name, layer in model.named_modules():
        asked = getattr(getattr(layer, "quant_method", None), "ladder_asked", None)
        if asked is None:
            continue
        config, vllm_config = asked
        packed = config.packed_method(name)
        if packed is None:
            continue
        own = getattr(layer, "input_size_per_partition", layer.input_size)
        sizes = own, layer.output_partition_sizes, layer.input_size, layer.output_size
        device = layer.weight.device
        del layer.weight
        layer.quant_method = packed
        with torch.device(device), set_current_vllm_config(vllm_config):
            packed.create_weights(layer, *sizes, layer.params_dtype)


def without_stacks(
    model: nn.Module, weights: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """What is left of ``weights``, names and tensors of the files, where the stacks of ladder's
    layers of experts in ``model`` are given to these.

    Raises:
        CheckpointError: a stack does not fit its layer.
    """
    from ladder.integrations.vllm.experts import ExpertsMethod

    layers: dict[str, Any] = {}
    folder = None
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, ExpertsMethod):
            layers[method.prefix], folder = module, method.folder
    for name, tensor in weights:
        ours = name if folder is None else folder.ours(name)
        called = folder.called(ours) if folder is not None else None
        head, _, part = (called or "").rpartition(".")
        prefix, _, stack = head.rpartition(".")
        if folder is not None and stack in STEMS and prefix in layers:
            mine = folder.translated(name, tensor)
            list(layers[prefix].load_weights([(f"{stack}.{part}", mine)]))  # a generator
        else:
            yield name, tensor
