# SPDX-License-Identifier: Apache-2.0
"""The QuantizationConfig of SGLang: which layer of a model is packed, and how."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sglang.srt.layers import quantization
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.quantization.base_config import QuantizationConfig
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from ladder.checkpoints.folder import QUANT_METHOD
from ladder.checkpoints.layer import Stored, stored_as
from ladder.checkpoints.shards import open_shards
from ladder.checkpoints.source import FORMATS, TRANSLATED
from ladder.errors import Unsupported
from ladder.integrations.serving.config import FUSED, Answers
from ladder.integrations.serving.stored import Folder, method_named
from ladder.integrations.sglang.absorbed import NAME, AbsorbedMethod
from ladder.integrations.sglang.method import EmbeddingMethod, LinearMethod
from ladder.integrations.sglang.versions import choices, keep_mixtral


class LadderQuantizationConfig(Answers, QuantizationConfig):
    """quant_method "ladder", and the formats that ladder reads when the user asks for ladder."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self.folder = folder

    def get_scaled_act_names(self) -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LadderQuantizationConfig:
        """``quantization_config``, to which SGLang adds what the model fuses and its config."""
        given = dict(config)
        fused = given.pop("packed_modules_mapping", None)
        path = getattr(given.pop("hf_config", None), "_name_or_path", "")
        made = cls(Folder(given, _headers(path)))
        made.packed_modules_mapping = dict(fused or {})
        return made

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: Mapping[str, Any] | None, user_quant: str | None
    ) -> str | None:
        """Take folders of other formats only where the user asked for it.

        Raises Unsupported for those that SGLang's models read by themselves."""
        method = method_named(hf_quant_cfg)
        if user_quant == QUANT_METHOD and method in TRANSLATED:
            raise Unsupported(
                f"quant_method is {method}, whose tensors SGLang's models look for by themselves: "
                "`ladder repack` makes a folder that ladder serves"
            )
        return QUANT_METHOD if user_quant == QUANT_METHOD and method in FORMATS else None

    def apply_weight_name_mapper(self, hf_to_sglang_mapper: Any) -> None:
        def rename(name: str) -> str | None:
            return next(iter(hf_to_sglang_mapper.apply_list([name])), None)

        self.folder = self.folder.renamed(rename)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        """The method of a layer.

        Raises:
            Unsupported: packed experts of a kind that ladder does not serve.
        """
        prefix = self.in_files(prefix)
        if isinstance(layer, LinearBase):
            names = self.modules_of(prefix)
            if any(map(self.folder.is_packed, names)):
                absorbed = prefix.rpartition(".")[2] == NAME
                return (AbsorbedMethod if absorbed else LinearMethod)(self.folder, prefix, names)
            return UnquantizedLinearMethod()
        if isinstance(layer, VocabParallelEmbedding):
            head = isinstance(layer, ParallelLMHead)
            if not self.folder.is_packed(prefix, lookup=not head):
                return None
            return (LinearMethod if head else EmbeddingMethod)(self.folder, prefix, [prefix])
        if self.folder.has_packed_experts(prefix):
            from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

            if type(layer) is FusedMoE:
                from ladder.integrations.sglang.experts import ExpertsMethod

                return ExpertsMethod(self.folder, prefix)
            if type(layer).__name__.endswith("MoE"):
                raise Unsupported(
                    f"{prefix} is a {type(layer).__name__} with packed experts: ladder serves "
                    "those of a FusedMoE"
                )
        return None

    def in_files(self, prefix: str) -> str:
        """The name in the files of the layer ``prefix``: SGLang's Mixtral leaves "model." off."""
        names = self.folder.headers or ()
        if not prefix.startswith("layers.") or any(n.startswith("layers.") for n in names):
            return prefix
        return f"model.{prefix}" if any(n.startswith("model.layers.") for n in names) else prefix

    def modules_of(self, prefix: str) -> list[str]:
        """Names in the files of what SGLang fuses into the layer ``prefix``."""
        head, dot, last = prefix.rpartition(".")
        fused = self.packed_modules_mapping.get(last)
        if fused is None and not self.folder.parts_of(prefix):
            fused = FUSED.get(last)
        return [f"{head}{dot}{name}" for name in fused or [last]]


def _headers(path: str) -> dict[str, Stored] | None:
    """Of the tensors of a folder; None where there are none, as for a name on the Hub."""
    if not path or not any(Path(path).glob("*.safetensors")):
        return None
    shards = open_shards(Path(path))
    entries = ((name, shards.entry(name)) for name in shards.home)
    return {name: stored_as(entry.dtype, entry.shape) for name, entry in entries}


def read_headers(made: Any, model_config: Any, *_: Any, **__: Any) -> Any:
    """What ``get_quant_config`` made, with the headers of the model's files: SGLang 0.5.16 does not
    say in ``quantization_config`` where they are, which alone have act-order, and what is dense."""
    if isinstance(made, LadderQuantizationConfig) and made.folder.headers is None:
        headers = _headers(model_config.model_path)
        if headers is not None:
            made.folder = made.folder.read_ahead(headers)
    return made


def register() -> None:
    """Doing it again is harmless."""
    if QUANT_METHOD not in quantization.QUANTIZATION_METHODS:
        HookRegistry.register(
            "sglang.srt.model_loader.weight_utils.get_quant_config", read_headers, HookType.AFTER
        )
        HookRegistry.register(
            "sglang.srt.model_loader.utils.get_model_architecture", keep_mixtral, HookType.AROUND
        )
    for table in ("BASE_QUANTIZATION_METHODS", "CPU_QUANTIZATION_METHODS", "QUANTIZATION_METHODS"):
        getattr(quantization, table)[QUANT_METHOD] = LadderQuantizationConfig
    if QUANT_METHOD not in choices().QUANTIZATION_CHOICES:
        choices().add_quantization_method_choices([QUANT_METHOD])
