# SPDX-License-Identifier: Apache-2.0
"""The HfQuantizer of quant_method "ladder": ladder folders, and quantising while loading."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.quantizers.base import HfQuantizer, get_keys_to_not_convert

from ladder.checkpoints.folder import StoredConfig
from ladder.errors import CheckpointError, InvalidArgument
from ladder.integrations.transformers import guard
from ladder.integrations.transformers.checkpoint import (
    StoredModule,
    find_modules,
    linears,
    read_headers,
)
from ladder.integrations.transformers.config import LadderConfig
from ladder.integrations.transformers.loading import LoadingLinear
from ladder.nn.linear import Linear
from ladder.types import parse
from ladder.weight import PARTS, Weight


class Quantizer(HfQuantizer):
    """What every source of packed weights has in common; subclasses fill ``_prepare``."""

    is_trainable = True  # of adapters: packed weights have no gradient
    is_qat_trainable = False
    is_compileable = True

    def _prepare(self, model: Any, files: Any) -> None:
        """Replace the modules on the meta device that the files hold packed."""
        raise NotImplementedError

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
        self._dtypes = {name: p.dtype for name, p in model.named_parameters()}
        self._prepare(model, checkpoint_files)
        return model

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        _restore_dtypes(model, self._dtypes)
        for name, module in model.named_modules():
            if isinstance(module, LoadingLinear):
                module.finish(name)
        stored = self._stored_config(model)
        self.quantization_config = LadderConfig.from_stored(stored)
        model.config.quantization_config = self.quantization_config
        model.quantization_method = self.quantization_config.quant_method
        return model

    def _stored_config(self, model: Any) -> StoredConfig:
        """What config.json will say when ``model`` is saved."""
        raise NotImplementedError

    def get_state_dict_and_metadata(self, model: Any) -> tuple[None, dict[str, str]]:
        if not getattr(model, "_hf_peft_config_loaded", False):
            guard.set_on_save(model.config)
        return None, {}

    def _dequantize(self, model: Any, dtype: torch.dtype | str | None = None) -> Any:
        # transformers gives the dtype of the config, which is a name after save_pretrained.
        return dense(model, getattr(torch, dtype) if isinstance(dtype, str) else dtype)


def dense(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Replace every :class:`ladder.Linear` of ``model``, in place, by an ``nn.Linear`` with the
    same values, in ``dtype`` or the module's own."""
    for name, module in list(model.named_modules()):
        if isinstance(module, Linear):
            model.set_submodule(name, module.dequantize(dtype))
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
            _swap_stored(model, files, self.quantization_config.stored)
        else:
            self._types = _choose(model, self.quantization_config)

    def _stored_config(self, model: Any) -> StoredConfig:
        stored = self.quantization_config.stored
        if self.pre_quantized:
            return stored
        return StoredConfig(
            weight_type=stored.weight_type,
            modules=stored.modules,
            modules_to_not_convert=tuple(sorted(linears(model))),
            types=stored.types,
        )

    # --- quantising while loading --------------------------------------------------------------

    def type_of(self, parameter: str) -> str | None:
        """The tType that a parameter is to be quantised to."""
        module, _, last = parameter.rpartition(".")
        return self._types.get(module) if last == "weight" else None

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        return not self.pre_quantized and self.type_of(param_name) is not None

    def param_element_size(self, model: Any, param_name: str, param: Tensor) -> float:
        if self.param_needs_quantization(model, param_name):
            return parse(self.type_of(param_name)).bits_per_weight(*param.shape) / 8
        return param.element_size()

    def get_quantize_ops(self) -> Any:
        # transformers is only half imported when it imports this module.
        from ladder.integrations.transformers.quantize_op import Quantize

        return Quantize(self)


def _choose(model: Any, config: LadderConfig) -> dict[str, str]:
    """Module -> tType of what is to be quantised."""
    stored = config.stored
    if config.modules_to_not_convert is None:
        names = {name for name in get_keys_to_not_convert(model) if name not in stored.modules}
        stored = StoredConfig(stored.weight_type, stored.modules, tuple(names), stored.types)
    types = {name: stored.type_of(name) for name in linears(model)}
    return {name: text for name, text in types.items() if text is not None}


def _swap_stored(model: Any, files: Any, config: StoredConfig) -> None:
    headers = read_headers(files)
    if headers is None:  # a state_dict, or pickled files: the config is all there is to go by
        skip = set(get_keys_to_not_convert(model))
        for name, linear in linears(model).items():
            text = config.type_of(name)
            if text is not None and (name in config.modules or name not in skip):
                parts = {} if linear.bias is None else {"bias": None}
                _swap(model, StoredModule(name, name, parts), text)
        return
    for module in find_modules(model, headers, PARTS, PARTS):
        text = config.type_of(module.stored_name)
        if text is None:
            raise CheckpointError(
                f"{module.stored_name}.qweight is there, but quantization_config leaves "
                f"{module.stored_name} unquantised"
            )
        _check(model.get_submodule(module.name), module, text)
        _swap(model, module, text)


def _check(linear: nn.Linear, module: StoredModule, text: str) -> None:
    """Compare the headers of one module with its type and the model's shape."""
    parts = {part: module.parts.get(part) for part in PARTS}
    if (g_idx := parts.pop("g_idx")) is not None:
        expected = (torch.int32, (linear.in_features,))
        if g_idx != expected:
            raise CheckpointError(
                f"{module.stored_name}.g_idx is {g_idx.dtype} {list(g_idx.shape)}, not "
                f"{expected[0]} {list(expected[1])}"
            )
    for part, found in parts.items():
        if found is not None and not isinstance(found.dtype, torch.dtype):
            raise CheckpointError(
                f"{module.stored_name}.{part} has dtype {found.dtype}, which no part may have"
            )
    on_meta = {
        part: torch.empty(found.shape, dtype=found.dtype, device="meta")
        for part, found in parts.items()
        if found is not None
    }
    if "qweight" not in on_meta:
        raise CheckpointError(f"{module.stored_name}.qweight is missing")
    weight = Weight(parse(text), (linear.out_features, linear.in_features), **on_meta)
    try:
        weight.check(module.stored_name)
    except InvalidArgument as error:
        raise CheckpointError(str(error)) from error


def _swap(model: Any, module: StoredModule, text: str) -> None:
    linear = model.get_submodule(module.name)
    packed = LoadingLinear(
        linear.in_features,
        linear.out_features,
        linear.bias is not None or "bias" in module.parts,
        text,
        act_order="g_idx" in module.parts,
        device="meta",
        dtype=linear.weight.dtype,
    )
    model.set_submodule(module.name, packed.train(linear.training))
