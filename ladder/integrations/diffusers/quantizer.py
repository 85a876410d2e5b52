# SPDX-License-Identifier: Apache-2.0
"""The DiffusersQuantizer of quant_method "ladder": ladder folders, and quantising while loading."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import version
from typing import Any

import torch
from diffusers.quantizers.base import DiffusersQuantizer
from torch import Tensor, nn

from ladder.checkpoints.layer import Stored
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.diffusers.saving import put_config
from ladder.integrations.folders.checkpoint import read_headers
from ladder.integrations.folders.choice import Choice, choose
from ladder.integrations.folders.config import LadderConfig
from ladder.integrations.folders.convolutions import (
    LoadingConv2d,
    swap_convolutions,
    swap_convolutions_by_config,
)
from ladder.integrations.folders.dense import dense
from ladder.integrations.folders.describe import describe_quantised
from ladder.integrations.folders.embeddings import (
    LoadingEmbedding,
    swap_embeddings,
    swap_embeddings_by_config,
)
from ladder.integrations.folders.linears import swap_linears, swap_linears_by_config
from ladder.integrations.folders.loading import LoadingLinear
from ladder.nn.convert import set_activation_type
from ladder.nn.offered import offer_activation_types
from ladder.nn.packed import OF_X, PackedModule
from ladder.nn.report import Conversion
from ladder.weight import PARTS

#: Modules that wait for what the files hold packed.
_ROOMS = (LoadingLinear, LoadingConv2d, LoadingEmbedding)


class LadderDiffusersQuantizer(DiffusersQuantizer):
    """Loads ladder folders; quantises any other folder when given a :class:`LadderConfig`."""

    use_keep_in_fp32_modules = True
    is_serializable = True
    is_trainable = True  # of adapters: packed weights have no gradient
    is_compileable = True
    quantization_config: LadderConfig
    #: What is to be quantised while loading; None of a ladder folder.
    choice: Choice | None = None
    _files: Iterable[str] | None = None
    _keys: Collection[str] = ()
    #: Of the bytes that packed weights take, what accelerate counts.
    _counted = 1.0

    @property
    def conversion(self) -> Conversion | None:
        """What quantising while loading has packed and left, and why; None of a ladder folder."""
        return None if self.choice is None else self.choice.report

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        """Raises Unsupported for a device map with disk in it, whether given or found."""
        for name, device in device_map.items() if isinstance(device_map, Mapping) else ():
            if device == "disk":
                raise Unsupported(
                    f'device_map has "{name}" on disk, where diffusers would write the scales of '
                    "packed layers in dtype: give it a device, or use "
                    "pipeline.enable_model_cpu_offload()"
                )

    @property
    def supports_parallel_loading(self) -> bool:
        return self.choice is None  # whose report counts

    # --- before a tensor is read ---------------------------------------------------------------

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: Any) -> list[str]:
        self._keys, self._files = loaded_keys, checkpoint_files
        return loaded_keys

    def _process_model_before_weight_loading(
        self, model: Any, state_dict: Mapping[str, Tensor] | None = None, **kwargs: Any
    ) -> None:
        if state_dict is not None:  # a single file: diffusers does not know whether it is packed
            self._keys = state_dict.keys()
            self.pre_quantized = any(key.endswith(".qweight") for key in self._keys)
        if not self.pre_quantized:
            self.choice = choose(model, self.quantization_config)
            self.choice.refuse_unused()
            return
        if state_dict is not None:
            headers = {key: Stored(t.dtype, tuple(t.shape)) for key, t in state_dict.items()}
        elif self._files is None:
            raise Unsupported(
                f"diffusers {version('diffusers')} does not say which files it reads: ladder "
                "folders need diffusers 0.41 or newer"
            )
        else:
            headers = read_headers(self._files)
        config = self.quantization_config.stored
        if headers is None:  # pickled files
            swap_convolutions_by_config(model, config, cut=False)
            swap_embeddings_by_config(model, config, cut=False)
            swap_linears_by_config(model, config)
        else:
            headers = swap_convolutions(model, headers, config, cut=False)
            swap_linears(model, swap_embeddings(model, headers, config, cut=False), config)
        # diffusers would leave what is missing on the meta device, with a warning.
        for name, module in model.named_modules():
            for part in module.state_dict() if isinstance(module, _ROOMS) else ():
                if f"{name}.{part}" not in self._keys:
                    raise CheckpointError(f"{name}.{part} is missing, and {name} is packed")

    def get_special_dtypes_update(self, model: Any, torch_dtype: torch.dtype) -> dict[str, Any]:
        """What weights that are to be quantised take at least, for accelerate, which knows 2, 4 and
        8 bits; :meth:`adjust_max_memory` has the rest."""
        from accelerate.utils import CustomDtype

        special: dict[str, Any] = {}
        known = {0.25: CustomDtype.INT2, 0.5: CustomDtype.INT4, 1.0: CustomDtype.FP8}
        counted = actual = 0.0
        for name, parameter in model.named_parameters():
            each = None if self.choice is None else self.choice.bytes_per_element(name)
            size = parameter.itemsize if each is None else each
            if each is not None and each < parameter.itemsize:
                size = max((s for s in known if s <= each), default=0.25)
                special[name] = known[size]
            counted += size * parameter.numel()
            actual += (size if each is None else each) * parameter.numel()
        self._counted = counted / actual if actual else 1.0
        return special

    def adjust_max_memory(self, max_memory: dict[Any, Any]) -> dict[Any, Any]:
        return {
            device: int(size * self._counted) if isinstance(size, int) else size
            for device, size in max_memory.items()
        }

    # --- each tensor ---------------------------------------------------------------------------

    def check_if_quantized_param(
        self, model: Any, param_value: Tensor, param_name: str, *args: Any, **kwargs: Any
    ) -> bool:
        if self.choice is not None:
            return self.choice.layer_of(param_name) is not None
        return isinstance(model.get_submodule(param_name.rpartition(".")[0]), _ROOMS)

    def check_quantized_param_shape(self, name: str, room: Tensor, found: Tensor) -> bool:
        if room.shape != found.shape:
            raise CheckpointError(f"{name} has shape {list(found.shape)}, not {list(room.shape)}")
        return True

    def create_quantized_param(
        self,
        model: Any,
        param_value: Tensor,
        param_name: str,
        target_device: Any,
        state_dict: Mapping[str, Tensor],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        holder, _, part = param_name.rpartition(".")
        if self.choice is not None:
            packed = self.choice.pack(model, param_name, param_value.to(target_device))[1]
            if isinstance(packed, PackedModule):
                packed.dtype = param_value.dtype
            return
        room: Any = model.get_submodule(holder)
        if part in (*PARTS, *OF_X):  # param_value has torch_dtype
            value = state_dict[param_name].to(target_device)
        else:
            old = room._parameters[part]
            value = nn.Parameter(param_value.to(target_device), requires_grad=old.requires_grad)
        value._is_hf_initialized = True
        setattr(room, part, value)

    # --- afterwards ----------------------------------------------------------------------------

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        config = self.quantization_config
        if self.choice is None:
            for name, module in [*model.named_modules()]:
                if isinstance(module, _ROOMS):
                    _check_filled(module, name)
                    module.finish(name)
            stored = config.stored
            offer_activation_types(model, stored.activation_type_of)
        else:
            if config.stored.activation_type is not None:
                set_activation_type(model, config.stored.activation_type)
            stored = describe_quantised(model, config.stored)
            self.choice.finish()
        self.quantization_config = LadderConfig.from_stored(stored)
        put_config(model, self.quantization_config)
        # ModelMixin refuses casts of what is marked so, and packed layers take them: the parts of
        # their weights stay as they are.
        model.is_quantized = False
        return model

    def _dequantize(self, model: Any) -> Any:
        model = dense(model)
        put_config(model, None)
        del model.quantization_method
        return model


def _check_filled(module: nn.Module, name: str) -> None:
    for part, tensor in module.state_dict().items():
        if tensor.is_meta:
            raise CheckpointError(f"{name}.{part} was not loaded")
