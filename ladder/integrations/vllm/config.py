# SPDX-License-Identifier: Apache-2.0
"""The QuantizationConfig of vLLM: which layer of a model is packed, and how."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)

from ladder.checkpoints.folder import QUANT_METHOD
from ladder.checkpoints.layer import stored_as
from ladder.checkpoints.source import METHODS
from ladder.integrations.serving.config import FUSED, Answers
from ladder.integrations.serving.stored import Folder, method_named
from ladder.integrations.vllm import asked
from ladder.integrations.vllm.method import EmbeddingMethod, LinearMethod, TiedMethod


class LadderQuantizationConfig(Answers, QuantizationConfig):
    """quant_method "ladder", and the formats that ladder reads when the user asks for ladder."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self.folder = folder

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LadderQuantizationConfig:
        return cls(Folder(config))

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Take folders of other formats only where the user asked for it."""
        method = method_named(hf_quant_cfg)
        if method in METHODS and (user_quant == QUANT_METHOD or method in asked()):
            return QUANT_METHOD
        return None

    @staticmethod
    def get_checkpoint_weight_mapper() -> Any:
        """Every tensor: vLLM's own drops the order of columns (``.g_idx``)."""
        from vllm.model_executor.models.utils import WeightsMapper

        return WeightsMapper()

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        rename = getattr(hf_to_vllm_mapper, "get_rename_mapper", None)
        if rename is not None:
            mapper = rename()
        else:  # q_proj must not become qkv_proj
            mapper = dataclasses.replace(hf_to_vllm_mapper, orig_to_new_stacked={})
        self.folder = self.folder.renamed(functools.partial(_renamed, mapper))

    def maybe_update_config(
        self, model_name: str, hf_config: Any = None, revision: str | None = None
    ) -> None:
        """Read the headers of the files, which decide what is packed."""
        from vllm.transformers_utils.config import get_safetensors_params_metadata

        found = get_safetensors_params_metadata(model_name, revision=revision)
        if not found:
            return
        headers = {
            name: stored_as(e["dtype"], e["shape"])
            for name, e in found.items()
            if "dtype" in e  # no tensor: "__metadata__"
        }
        self.folder = self.folder.read_ahead(headers)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        """The method of a layer.

        Raises:
            Unsupported: packed experts of a kind that ladder does not serve.
        """
        if isinstance(layer, (LinearBase, ParallelLMHead, VocabParallelEmbedding)):
            lookup = not isinstance(layer, (LinearBase, ParallelLMHead))
            if (method := self.packed_method(prefix, lookup=lookup)) is not None:
                return method
            if isinstance(layer, ParallelLMHead) and self.folder.ties(prefix):
                return TiedMethod()
            if not isinstance(layer, LinearBase):
                return None
            from ladder.integrations.vllm import before_loading

            before_loading.install()
            return before_loading.dense_method(self, get_current_vllm_config())
        return self._experts(layer, prefix)

    def packed_method(self, name: str, *, lookup: bool = False) -> LinearMethod | None:
        """The method of the layer ``name``; None where the files hold nothing of it packed.
        ``lookup``: it is an embedding."""
        names = self.modules_of(name)
        if not any(self.folder.is_packed(each, lookup=lookup) for each in names):
            return None
        return (EmbeddingMethod if lookup else LinearMethod)(self.folder, name, names)

    def modules_of(self, prefix: str) -> list[str]:
        """Names in the files of what vLLM fuses into the layer ``prefix``."""
        head, dot, last = prefix.rpartition(".")
        says = self.packed_modules_mapping.get(last, [last])
        # Some models do not say what they fuse, or say it of files that have it fused.
        for parts in (says, [last], FUSED.get(last, [last])):
            names = [f"{head}{dot}{name}" for name in parts]
            if any(map(self.folder.has_tensors, names)):
                return names
        return [f"{head}{dot}{name}" for name in says]

    def _experts(self, layer: torch.nn.Module, prefix: str) -> Any:
        moe = getattr(layer, "moe_config", None)
        if moe is None:
            return None
        if self.folder.has_packed_experts(prefix):
            from ladder.integrations.vllm import before_loading
            from ladder.integrations.vllm.experts import ExpertsMethod

            before_loading.install()
            return ExpertsMethod(self.folder, prefix, moe)
        from vllm.model_executor.layers.fused_moe import UnquantizedFusedMoEMethod

        return UnquantizedFusedMoEMethod(moe)


def _renamed(mapper: Any, name: str) -> str | None:
    return next(iter(mapper.apply_list([name])), None)


def register() -> None:
    """Doing it again is harmless."""
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    if QUANT_METHOD not in QUANTIZATION_METHODS:
        register_quantization_config(QUANT_METHOD)(LadderQuantizationConfig)
