# SPDX-License-Identifier: Apache-2.0
"""Folders of other packages, as they are, with ladder's kernels."""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Sequence
from typing import Any

from ladder.checkpoints import mlx_config
from ladder.checkpoints.activation_schemes import recorded, say_of_experts, say_without_scale
from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.layer import Layer
from ladder.checkpoints.model import file_names
from ladder.checkpoints.source import FORMATS, METHODS, TRANSLATED
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.integrations.folders.checkpoint import find_modules, read_headers, settings_of
from ladder.integrations.folders.loading import ForeignLinear, buffer_name
from ladder.integrations.transformers import unnamed
from ladder.integrations.transformers.embeddings import Decode, take_embeddings
from ladder.integrations.transformers.quantizer import Quantizer
from ladder.integrations.transformers.single_experts import open_experts
from ladder.integrations.transformers.stacks import TakeApart, take_stacks
from ladder.integrations.transformers.translated import TranslatedHfQuantizer
from ladder.nn.dense_experts import STACKS
from ladder.nn.linear import Linear
from ladder.nn.select import dense_weight, packable
from ladder.types import TType


class ForeignHfQuantizer(Quantizer):
    """Loads a folder of another format and makes its weights ladder's, module by module.

    The model is then a ladder model: ``save_pretrained`` writes a ladder folder.
    """

    requires_calibration = True  # what these formats need to quantise, ladder does not do
    method: str
    _made: Sequence[Any] = ()  #: conversions of tensors that become others

    def _prepare(self, model: Any, files: Any) -> None:
        headers = read_headers(files)
        if headers is None:
            raise Unsupported(
                f"ladder loads {self.method} weights from safetensors; "
                "for pickled ones run `ladder repack` first"
            )
        format = FORMATS[self.method]
        getattr(format, "check_headers", lambda headers: None)(headers)
        settings = settings_of(format, self.quantization_config.ladder_source, files)
        if left := getattr(format, "LEFT_OUT", ()):
            known = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
            patterns = {rf"(^|\.){re.escape(part)}$" for part in left}
            model._keys_to_ignore_on_load_unexpected = {*known, *patterns}
        headers, stacks = take_stacks(model, headers, self.method)
        if hasattr(format, "check_whole"):
            whole = model.base_model is model
            format.check_whole(model, headers, "" if whole else f"{model.base_model_prefix}.")
        headers, decoders = take_embeddings(model, headers, self.method, settings)
        self._made = [*stacks, *decoders]
        self._names = names = {}
        self._layers: dict[str, Layer] = {}
        cut = self._plan is not None
        self._singles = open_experts(model, headers, format.PARTS, format.codes_part, cut=cut)
        for module in find_modules(model, headers, format.PARTS, format.codes_part):
            name, linear = module.stored_name, model.get_submodule(module.name)
            codes = format.codes_part(module.parts)
            config = settings.for_module(name)
            if config is None:
                raise CheckpointError(
                    f"{name}.{codes} is there, but quantization_config leaves {name} unquantised"
                )
            shape = tuple(dense_weight(linear).shape)
            layer = format.measure(module.parts, config, name, shape[1])
            if (layer.n, layer.k) != shape:
                raise CheckpointError(
                    f"{name}.{codes} holds a weight of {[layer.n, layer.k]}, not {list(shape)} as "
                    "the model has"
                )
            wanted = None if self._plan is None else self._plan.wanted(module.name)
            packed = ForeignLinear(linear, format, config, module.parts, module.name, layer, wanted)
            model.set_submodule(module.name, packed.train(linear.training))
            names[module.name] = name
            self._layers[module.name] = layer
        for single in self._singles.values():
            single.check_whole(headers)
        if not self._names:
            raise CheckpointError(
                f"quant_method is {self.method}, but no Linear of the model is quantised"
            )

    def update_weight_conversions(self, weight_conversions: list[Any], *model: Any) -> Any:
        every = [*self._made, *weight_conversions]
        return super().update_weight_conversions(every, *model)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        # transformers would undo them where the model is saved.
        model._weight_conversions = [
            each for each in model._weight_conversions if not _is_made(each)
        ]
        for key in getattr(FORMATS[self.method], "KEYS", ()):
            vars(model.config).pop(key, None)  # of no truth of a ladder model, which may be saved
        return super()._process_model_after_weight_loading(model, **kwargs)

    def get_weight_conversions(self) -> list[Any]:
        """Renames parts whose names have dots, which no tensor of a module can have."""
        from transformers.core_model_loading import WeightRenaming

        made: list[Any] = super().get_weight_conversions()
        dotted = [part for part in FORMATS[self.method].PARTS if "." in part]
        return made + [WeightRenaming(rf"\.{re.escape(p)}$", f".{buffer_name(p)}") for p in dotted]

    def _stored_config(self, model: Any) -> StoredConfig:
        called = file_names(model)
        self._say_without_scale(model)
        layers: list[tuple[str, Layer, TType, bool]] = []
        mixed = []  # stacks whose projections are to have x rounded in several ways
        for name, module in model.named_modules(remove_duplicate=False):
            if isinstance(module, Linear) and name in self._names:
                ordered = module.g_idx is not None
                layers.append((self._names[name], self._layers[name], module.weight_type, ordered))
        for name, single in self._singles.items():
            for stack in STACKS.values():
                of = [self._layers[f"{name}.{each}"] for each in single.layers(stack)]
                stored = called(f"{name}.{stack}")
                made = model.get_submodule(f"{name}.{stack}")
                layers.append((stored, of[0], made.weight_type, made.g_idx is not None))
                if len({layer.activation_type for layer in of}) > 1:
                    mixed.append(stored)
        types = {stored: str(ttype) for stored, _, ttype, _ in layers}
        return StoredConfig.describing(
            types,
            packable(model),
            source={"quant_method": self.method} | self.quantization_config.ladder_source,
            activation_types=recorded(layers) | dict.fromkeys(mixed),
        )

    def _say_without_scale(self, model: Any) -> None:
        for name, single in self._singles.items():
            for stack in STACKS.values():
                called, packed = f"{name}.{stack}", model.get_submodule(f"{name}.{stack}")
                ttype, ordered = packed.weight_type, packed.g_idx is not None
                of = [self._layers[f"{name}.{each}"] for each in single.layers(stack)]
                if packed.input_scale is not None:
                    say_of_experts(called, packed.input_scale)
                elif any(each.keeps_input_scale(ttype, act_order=ordered) for each in of):
                    say_without_scale([called])
        say_without_scale([
            self._names[name]
            for name, module in model.named_modules()
            if name in self._names and isinstance(module, Linear) and module.input_scale is None
            and self._layers[name].keeps_input_scale(
                module.weight_type, act_order=module.g_idx is not None
            )
        ])  # fmt: skip


def _is_made(conversion: Any) -> bool:
    """Whether a conversion is one of :func:`take_embeddings` or :func:`take_stacks`."""
    operations = getattr(conversion, "operations", ())
    return any(isinstance(each, Decode | TakeApart) for each in operations)


def _config_class(base: type | None, method: str) -> type:
    """A ``base`` that only keeps the folder's config, which is ladder's to read: nothing of
    ``base`` runs, whose package may not be installed. None: transformers has no such method."""

    def from_dict(
        cls: Any, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any
    ) -> Any:
        config = cls.__new__(cls)
        config.quant_method, config.ladder_source = method, copy.deepcopy(config_dict)
        return (config, kwargs) if return_unused_kwargs else config

    fields = {
        "from_dict": classmethod(from_dict),
        "post_init": lambda self: None,
        "to_dict": lambda self: copy.deepcopy(self.ladder_source),
        "ladder_source": {},
        "ladder_replaces": base,
    }
    # transformers compares the names of classes when a user passes a config as well.
    kind = base or importlib.import_module("transformers").utils.quantization_config
    own = base or kind.QuantizationConfigMixin
    kept = type(own.__name__, (own,), fields)
    return kept


def mappings() -> Any:
    """The module that maps a quant_method to its classes, as it is now: it may be reloaded."""
    return importlib.import_module("transformers.quantizers.auto")


def _keys(method: str) -> tuple[str, ...]:
    """What transformers' mappings call a method: bitsandbytes by its bits, where the config says
    them. A quantizer is looked up by the last, too, if the config is of ladder's class."""
    return (method, f"{method}_4bit", f"{method}_8bit") if method == "bitsandbytes" else (method,)


def enabled() -> tuple[str, ...]:
    """Methods whose folders load with ladder now."""
    known = mappings().AUTO_QUANTIZER_MAPPING
    return tuple(m for m in METHODS if hasattr(known.get(m), "ladder_replaces"))


class _Enabled:
    """Undoes :func:`enable` at the end of a ``with``; ignored otherwise."""

    def __init__(self, methods: tuple[str, ...]) -> None:
        self.methods = methods

    def __enter__(self) -> _Enabled:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.methods:
            disable(*self.methods)


def enable(*methods: str) -> _Enabled:
    """Load unmodified folders of other packages with ladder; these packages are not needed.

    Holds until :func:`disable`, or to the end of ``with enable("gptq"):``. Quantising *to* these
    formats is not possible meanwhile.

    Args:
        methods: of those in ``ladder.checkpoints.source.METHODS``; none means all.
    Raises:
        InvalidArgument: another method.
    """
    changed = []
    quantizers = mappings().AUTO_QUANTIZER_MAPPING
    configs = mappings().AUTO_QUANTIZATION_CONFIG_MAPPING
    for method in _known(methods):
        if method in enabled():
            continue
        kind = TranslatedHfQuantizer if method in TRANSLATED else ForeignHfQuantizer
        name = f"Ladder{re.sub(r'[^A-Z0-9]', '', method.upper())}HfQuantizer"
        for key in _keys(method):
            # transformers does not know every method: w4afp8 is SGLang's, modelopt NVIDIA's.
            fields = {"method": method, "ladder_replaces": quantizers.get(key)}
            quantizers[key] = type(name, (kind,), fields)
            configs[key] = _config_class(configs.get(key), _keys(method)[-1])
        if method == mlx_config.QUANT_METHOD:
            unnamed.enable(mappings())
        changed.append(method)
    return _Enabled(tuple(changed))


def disable(*methods: str) -> None:
    """Give these folders back to transformers. Arguments and errors as :func:`enable`."""
    auto = mappings()
    if mlx_config.QUANT_METHOD in _known(methods):
        unnamed.disable(auto)
    for key in (key for method in _known(methods) for key in _keys(method)):
        for mapping in (auto.AUTO_QUANTIZER_MAPPING, auto.AUTO_QUANTIZATION_CONFIG_MAPPING):
            before = getattr(mapping.get(key), "ladder_replaces", mapping.get(key))
            if before is None:
                mapping.pop(key, None)
            else:
                mapping[key] = before


def _known(methods: tuple[str, ...]) -> tuple[str, ...]:
    for method in methods:
        if method not in METHODS:
            raise InvalidArgument(f'method is "{method}", not one of {", ".join(METHODS)}')
    return methods or METHODS
