# SPDX-License-Identifier: Apache-2.0
"""The HfQuantizer of quant_method "ladder": ladder folders, and quantising while loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.quantizers.base import HfQuantizer

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.model import file_names
from ladder.errors import InvalidArgument, Unsupported
from ladder.integrations.transformers import guard
from ladder.integrations.transformers.checkpoint import read_headers
from ladder.integrations.transformers.config import LadderConfig
from ladder.integrations.transformers.conversions import restore, spare
from ladder.integrations.transformers.convolutions import LoadingConv2d
from ladder.integrations.transformers.experts import LoadingStack
from ladder.integrations.transformers.loading import LoadingLinear
from ladder.integrations.transformers.mixtures import LoadingMixtures
from ladder.integrations.transformers.saving import describe_model
from ladder.integrations.transformers.single_experts import SingleExperts, only
from ladder.integrations.transformers.swap import swap_stored
from ladder.integrations.transformers.tensor_parallel import (
    gathered_state,
    group_of,
    read_plan,
)
from ladder.nn.conv import Conv2d
from ladder.nn.convert import replace, set_activation_type
from ladder.nn.dense_experts import GATE_UP, STACKS
from ladder.nn.experts import Experts
from ladder.nn.linear import Linear
from ladder.nn.mixtures import mixtures, stack_names
from ladder.nn.offered import offer_activation_types
from ladder.nn.optimize import unoptimize
from ladder.nn.report import Conversion
from ladder.nn.select import (
    Found,
    Left,
    check_entries,
    dense_weight,
    linears,
    packable,
    survey,
)
from ladder.nn.select_conv import convolutions as convolutions_of
from ladder.nn.stack import PackedStack
from ladder.types import parse


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
            elif isinstance(module, (LoadingStack, LoadingConv2d)):
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


def dense(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Replace every :class:`ladder.Linear`, :class:`ladder.Experts` and :class:`ladder.Conv2d` of
    ``model``, in place, by the dense module with the same values, in ``dtype`` or the module's
    own.

    Raises Unsupported, before anything is replaced, where accelerate offloads one of them."""
    for name, module in model.named_modules():
        # The hook moves the tensors that its store had at first, and looks for the dense weight.
        hook = getattr(module, "_hf_hook", None)
        if isinstance(module, (Linear, Experts, Conv2d)) and getattr(hook, "offload", False):
            raise Unsupported(
                f"{name} is offloaded, and accelerate's store has no dense weight for it: load the "
                "model on one device, without disk and without cpu_offload, to dequantise it"
            )
    unoptimize(model)  # whose parents hold the weights of several layers
    names: dict[Linear | Experts | Conv2d, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (Linear, Experts, Conv2d)):
            names.setdefault(module, []).append(name)
    for packed, each in names.items():
        values = packed.dense(dtype) if isinstance(packed, Experts) else packed.dequantize(dtype)
        replace(model, each, packed, values)
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

    def _stored_config(self, model: Any) -> StoredConfig:
        stored = self.quantization_config.stored
        if self.pre_quantized and not self._singles:
            return stored
        called = file_names(model)
        packed = {
            called(name): str(module.weight_type)
            for name, module in model.named_modules()
            if isinstance(module, (Linear, PackedStack, Conv2d))
        }
        filters = {
            called(name): tuple(module.weight.shape)
            for name, module in model.named_modules()
            if isinstance(module, Conv2d)
        }
        if self.pre_quantized:  # the folder names single projections, and a copy of it has stacks
            wishes = {n: stored.activation_type_of(n) for n in packed if n not in filters}
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
                convolutions=filters,
            )
        return StoredConfig.describing(
            packed,
            map(called, packable(model)),
            usual=stored.weight_type,
            activation_type=stored.activation_type,
            convolutions=filters,
        )

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        if self.conversion is not None:
            self.mixtures.finish(self.conversion)
        model = super()._process_model_after_weight_loading(model, **kwargs)
        if self.conversion is not None:
            for name, (layer, _) in self._layers.items():
                if name == layer.name and name not in self.conversion.packed:
                    count = dense_weight(layer.module).numel()
                    self.conversion.left[name] = Left("the files have no weight of it", count)
            self.conversion.log()
        return model

    # --- quantising while loading --------------------------------------------------------------

    #: What :meth:`_choose` and loading have packed and left, and why; None of a ladder folder.
    conversion: Conversion | None = None
    mixtures = LoadingMixtures()

    def _choose(self, model: Any) -> None:
        """Choose what is to be quantised.

        Raises InvalidArgument for a name in the config that names no module.
        """
        config = self.quantization_config
        stored = config.stored
        experts = [*mixtures(model)]
        every = [*linears(model), *experts, *stack_names(experts)]
        every += [n for n, module in model.named_modules() if isinstance(module, nn.Conv2d)]
        check_entries("modules", stored.modules, every, whole=True)
        layers = survey(
            model,
            config.modules_to_not_convert,
            loaded=False,
            option="modules_to_not_convert",
            chosen=stored.modules,
        )
        self.conversion = Conversion(left=dict(layers.left))
        found = layers.found
        if config.convolutions:
            types = {name: parse(text) for name, text in stored.modules.items()}
            types[""] = parse(stored.weight_type)
            convolutions, dense = convolutions_of(
                model,
                config.modules_to_not_convert,
                types,
                loaded=False,
                option="modules_to_not_convert",
            )
            for conv in convolutions:
                self.conversion.left.pop(f"{conv.name}.weight", None)
            self.conversion.left.update(dense)
            found = (*found, *convolutions)
        self._layers: dict[str, tuple[Found, str]] = {}
        for layer in found:
            text = next((stored.modules[n] for n in layer.names if n in stored.modules), None)
            for name in layer.names:
                self._layers[name] = layer, text or stored.weight_type
        self.mixtures = LoadingMixtures(layers.experts, stored.weight_type, stored.modules)
        for name in stored.modules.keys() - self._layers.keys() - self.mixtures.names:
            # Of experts it is their parameters that are left: ...experts.gate_up_proj.
            keys = (name, f"{name}_proj", f"{name}.{GATE_UP}", f"{name}.weight")
            reasons = self.conversion.left
            left = next(reasons[key] for key in keys if key in reasons)
            raise InvalidArgument(f'modules has "{name}", but {left.reason}')

    def layer_of(self, parameter: str) -> tuple[Found, str] | None:
        """The layer whose weight a parameter is, and the tType to which it is to be quantised."""
        module, _, last = parameter.rpartition(".")
        return self._layers.get(module) if last == "weight" else None

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        wanted = self.layer_of(param_name) is not None or self.mixtures.takes(param_name)
        return not self.pre_quantized and wanted

    def param_element_size(self, model: Any, param_name: str, param: Tensor) -> float:
        if not self.pre_quantized and self.mixtures.takes(param_name):
            return self.mixtures.bytes_per_element(param_name, param.element_size())
        layer = None if self.pre_quantized else self.layer_of(param_name)
        if layer is None:
            return param.element_size()
        weight = dense_weight(layer[0].module)
        n, k = weight.shape[0], weight[0].numel()
        return parse(layer[1]).bits_per_weight(n, k) / 8

    def get_quantize_ops(self) -> Any:
        # transformers is only half imported when it imports this module.
        from ladder.integrations.transformers.quantize_op import Quantize

        return Quantize(self)
