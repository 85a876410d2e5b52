# SPDX-License-Identifier: Apache-2.0
"""The HfQuantizer of quant_method "ladder": ladder folders, and quantising while loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers.quantizers.base import HfQuantizer

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.model import file_names, renamer
from ladder.errors import CheckpointError
from ladder.integrations.folders.checkpoint import read_headers
from ladder.integrations.folders.choice import Choice, choose
from ladder.integrations.folders.config import LadderConfig
from ladder.integrations.folders.convolutions import LoadingConv2d
from ladder.integrations.folders.dense import dense
from ladder.integrations.folders.describe import (
    describe_model,
    describe_quantised,
    only,
    packed_types,
)
from ladder.integrations.folders.embeddings import LoadingEmbedding
from ladder.integrations.folders.loading import LoadingLinear
from ladder.integrations.transformers import guard
from ladder.integrations.transformers.conversions import restore, spare
from ladder.integrations.transformers.experts import LoadingStack
from ladder.integrations.transformers.mixtures import LoadingMixtures
from ladder.integrations.transformers.single_experts import SingleExperts
from ladder.integrations.transformers.swap import swap_stored
from ladder.integrations.transformers.tensor_parallel import (
    gathered_state,
    group_of,
    read_plan,
)
from ladder.nn.convert import set_activation_type
from ladder.nn.dense_experts import STACKS
from ladder.nn.experts import Experts
from ladder.nn.offered import offer_activation_types
from ladder.nn.report import Conversion


class Quantizer(HfQuantizer):
    """What every source of packed weights has in common; subclasses fill ``_prepare``."""

    is_trainable = True  # of adapters: packed weights have no gradient
    is_qat_trainable = False
    is_compileable = True
    #: Names in the files of modules of the model.
    _names: Mapping[str, str] = MappingProxyType({})
    #: Experts whose projections the files hold packed one by one, by the names of their modules.
    _singles: Mapping[str, SingleExperts] = MappingProxyType({})
    _spared: Sequence[Any] = ()

    def _prepare(self, model: Any, files: Any) -> None:
        """Replace the modules on the meta device that the files hold packed."""
        raise NotImplementedError

    def update_weight_conversions(self, weight_conversions: list[Any], *model: Any) -> Any:
        names = {
            f"{single.stored}.{name}"
            for single in self._singles.values()
            for name in single.layers()
        }
        self._spared = spare(weight_conversions, names) if names else ()
        return super().update_weight_conversions(weight_conversions, *model)

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        return True

    # transformers hands the model's config to one of these before it looks for files.
    def update_tp_plan(self, config: Any) -> Any:
        return guard.lift(config)

    def update_ep_plan(self, config: Any) -> Any:
        return guard.lift(config)

    def update_attn_implementation(self, config: Any) -> Any:
        return guard.lift(config)

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Any = None, **kwargs: Any
    ) -> Any:
        self._plan = read_plan(model, pre_quantized=self.pre_quantized)
        self._dtypes = {name: p.dtype for name, p in model.named_parameters()}
        self._prepare(model, checkpoint_files)
        return model

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        _restore_dtypes(model, self._dtypes)
        group = group_of(model, self._plan)
        restore(self._spared)
        # By name: a list of modules would keep the layers of experts alive beside the stacks.
        every = model.named_modules()
        for name in [name for name, module in every if isinstance(module, SingleExperts)]:
            model.get_submodule(name).finish(model, name)
        for name, module in [*model.named_modules()]:
            if isinstance(module, LoadingLinear):
                if self._plan is not None:
                    self._plan.check_applied(module, name)
                module.finish(name, group)
            elif isinstance(module, (LoadingStack, LoadingConv2d, LoadingEmbedding)):
                module.finish(name)
        stored = self._stored_config(model)
        if self.pre_quantized:  # folders are loaded on any device
            called = file_names(model)
            offer_activation_types(model, lambda name: self._wish(model, stored, name, called))
        elif stored.activation_type is not None:
            set_activation_type(model, stored.activation_type)
        self.quantization_config = LadderConfig.from_stored(stored)
        model.config.quantization_config = self.quantization_config
        model.quantization_method = self.quantization_config.quant_method
        return model

    def _wish(
        self, model: Any, stored: StoredConfig, name: str, called: Callable[[str], str]
    ) -> str | None:
        """What ``stored`` would have the x of a packed module rounded to; None where the stacks of
        experts differ."""
        if not isinstance(model.get_submodule(name), Experts):
            return stored.activation_type_of(self._names.get(name, name))
        return only(stored.activation_type_of(called(f"{name}.{s}")) for s in STACKS.values())

    def _stored_config(self, model: Any) -> StoredConfig:
        """What config.json will say when ``model`` is saved."""
        raise NotImplementedError

    def get_state_dict_and_metadata(self, model: Any) -> tuple[Any, dict[str, str]]:
        if getattr(model, "_hf_peft_config_loaded", False):
            return None, {}
        state = gathered_state(model)
        if state is None:  # else layers are cut, whose types are those of their parts
            config = LadderConfig.from_stored(
                describe_model(model, self.quantization_config.stored)
            )
            self.quantization_config = model.config.quantization_config = config
        guard.set_on_save(model.config)
        return state, {}

    def _dequantize(self, model: Any, dtype: torch.dtype | str | None = None) -> Any:
        # transformers gives the dtype of the config, which is a name after save_pretrained.
        model = dense(model, getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        guard.forget(model.config)  # what dense() refuses stays packed
        return model


def _restore_dtypes(model: Any, wanted: dict[str, torch.dtype]) -> None:
    """transformers 5.17 leaves a dense tensor of a quantised folder in its stored dtype when the
    model calls it otherwise than the file. float32 may be on purpose (norms)."""
    for name, parameter in model.named_parameters():
        kept = {wanted.get(name, parameter.dtype), torch.float32}
        if parameter.is_floating_point() and not parameter.is_meta and parameter.dtype not in kept:
            parameter.data = parameter.data.to(wanted[name])


class LadderHfQuantizer(Quantizer):
    """Loads ladder folders; quantises any other folder when given a :class:`LadderConfig`."""

    requires_calibration = False
    quantization_config: LadderConfig

    def _prepare(self, model: Any, files: Any) -> None:
        if self.pre_quantized:
            self._names, self._singles = swap_stored(
                model, read_headers(files), self.quantization_config.stored, self._plan
            )
        else:
            self._choose(model)
            self._check_tied(model, files)

    def _stored_config(self, model: Any) -> StoredConfig:
        stored = self.quantization_config.stored
        if self.pre_quantized and not self._singles:
            return stored
        said = describe_quantised(model, stored)
        if not self.pre_quantized:
            return said
        # The folder names single projections, and a copy of it has stacks.
        called, packed = file_names(model), packed_types(model)
        without_x = {*said.convolutions, *said.embeddings}
        wishes = {n: stored.activation_type_of(n) for n in packed if n not in without_x}
        for name, single in self._singles.items():
            for stack in STACKS.values():
                wishes[called(f"{name}.{stack}")] = only(
                    stored.activation_type_of(f"{single.stored}.{each}")
                    for each in single.layers(stack)
                )
        return StoredConfig.describing(
            packed,
            stored.modules_to_not_convert,
            usual=stored.weight_type,
            source=stored.source,
            activation_types=wishes,
            convolutions=said.convolutions,
            embeddings=said.embeddings,
        )

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        if self.choice is not None:
            self.mixtures.finish(self.choice.report)
        model = super()._process_model_after_weight_loading(model, **kwargs)
        if self.choice is not None:
            self.choice.finish()
        return model

    # --- quantising while loading --------------------------------------------------------------

    choice: Choice | None = None
    mixtures = LoadingMixtures()

    @property
    def conversion(self) -> Conversion | None:
        """What quantising while loading has packed and left, and why; None of a ladder folder."""
        return None if self.choice is None else self.choice.report

    def _choose(self, model: Any) -> None:
        """Choose what is to be quantised.

        Raises InvalidArgument for a name in the config that names no module.
        """
        stored = self.quantization_config.stored
        self.choice = choose(model, self.quantization_config)
        types = self.quantization_config.types
        self.mixtures = LoadingMixtures(self.choice.experts, types, stored.modules)
        self.choice.refuse_unused(self.mixtures.names)

    def _check_tied(self, model: Any, files: Any) -> None:
        """Raise CheckpointError where the files have an output embedding alone, and not the weight
        to which it was tied."""
        headers = read_headers(files)
        if self.choice is None or not self.choice.untied or headers is None:
            return
        rename, _ = renamer(model)
        there = {rename(name) for name in headers}
        for name, at in self.choice.untied.items():
            if at not in there:
                raise CheckpointError(
                    f"the files have no {at}, of which head and embeddings make {name}, too"
                )

    def _takes(self, parameter: str) -> bool:
        """Whether a parameter is to be packed."""
        if self.choice is None:
            return False
        return self.choice.takes(parameter) or self.mixtures.takes(parameter)

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        return self._takes(param_name)

    def param_element_size(self, model: Any, param_name: str, param: Tensor) -> float:
        if self.choice is None or not self._takes(param_name):
            return param.element_size()
        if self.mixtures.takes(param_name):
            return self.mixtures.bytes_per_element(param_name, param.element_size())
        return self.choice.bytes_per_element(param_name) or param.element_size()

    def get_quantize_ops(self) -> Any:
        # transformers is only half imported when it imports this module.
        from ladder.integrations.transformers.quantize_op import Quantize

        return Quantize(self)
