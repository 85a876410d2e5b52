# SPDX-License-Identifier: Apache-2.0
"""The quantization_config of Quark (ladder.checkpoints.quark): which module has which format.

``layer_quant_config`` has the settings of modules by patterns (fnmatch), of which the first that
fits counts, ``global_quant_config`` those of the others; modules of ``exclude`` are dense. What a
cache of keys and values is rounded to (``kv_cache_quant_config``) is left out.

Source: Quark 0.13, torch/export/main_export/quant_config_parser.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch

from ladder.checkpoints.activation_schemes import ActivationScheme
from ladder.checkpoints.layer import BYTES, config_flag, config_int, config_word, fail
from ladder.errors import Unsupported

MX_GROUP = 32


class Element(NamedTuple):
    """What a dtype of weights is here."""

    name: str
    bits: int
    stored: tuple[torch.dtype, ...]
    qschemes: tuple[str, ...]


_WHOLE, _MX = ("per_tensor", "per_channel"), ("per_group",)
ELEMENTS = {
    "fp8_e4m3": Element("float8_e4m3", 8, BYTES["float8_e4m3"], _WHOLE),
    "int8": Element("int8", 8, (torch.int8,), _WHOLE),
    "fp4": Element("float4_e2m1", 4, (torch.uint8,), _MX),
    "fp6_e2m3": Element("float6_e2m3", 6, (torch.uint8,), _MX),
    "fp6_e3m2": Element("float6_e3m2", 6, (torch.uint8,), _MX),
}
#: dtype of activations -> kind and bits of an ActivationScheme.
_OF_X = {
    name: ("int" if name == "int8" else "float", element.bits) for name, element in ELEMENTS.items()
}
_STRATEGIES = {"per_tensor": "tensor", "per_channel": "token", "per_group": "group"}
#: Algorithms that may leave products of x with a matrix to be done in each call.
_ROTATIONS = ("rotation", "quarot")


@dataclass(frozen=True)
class Module:
    """The settings of one module."""

    dtype: str
    qscheme: str
    activations: ActivationScheme | None

    @property
    def activation_type(self) -> str | None:
        return None if self.activations is None else self.activations.activation_type


@dataclass(frozen=True)
class Config:
    """A Quark quantization_config."""

    usual: Module | None
    layers: Mapping[str, Module | None] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization_config`` of config.json. The log says how activations are rounded,
        where that is not as the config says.

        Raises:
            CheckpointError: a key has the wrong type or a value outside the format's set.
            Unsupported: weights of other formats, or more than weights and inputs quantised.
        """
        export = _object("export", fields.get("export"))
        if (form := config_word(export, ("weight_format",), "real_quantized")) != "real_quantized":
            raise Unsupported(
                f"quantization_config.export.weight_format is {form!r}: its weights are floats"
            )
        for key in ("softmax_quant_spec", "layer_type_quant_config"):
            if fields.get(key):
                raise Unsupported(f"quantization_config.{key} is there, which ladder does not read")
        algorithms = fields.get("algo_config") or ()
        for each in algorithms if isinstance(algorithms, list | tuple) else (algorithms,):
            name = config_word(_object("algo_config", each), ("name",), "")
            if name in _ROTATIONS:
                raise Unsupported(
                    f"quantization_config.algo_config has {name}, which may have activations "
                    "rotated in each call"
                )
        exclude = fields.get("exclude") or []
        if not isinstance(exclude, list) or not all(isinstance(name, str) for name in exclude):
            fail("quantization_config.exclude", " is ", repr(exclude), ", not a list of names")
        cached = _object("kv_cache_quant_config", fields.get("kv_cache_quant_config"))
        layers = _object("layer_quant_config", fields.get("layer_quant_config"))
        return cls(
            _module("global_quant_config", fields.get("global_quant_config")),
            {
                key: _module(f"layer_quant_config.{key}", each, cached=key in cached)
                for key, each in layers.items()
            },
            tuple(exclude),
        )

    def for_module(self, name: str) -> Module | None:
        """The settings of one module, None when it stays dense."""
        if any(fnmatchcase(name, pattern) for pattern in self.exclude):
            return None
        for pattern, module in self.layers.items():
            if fnmatchcase(name, pattern):
                return module
        return self.usual


def _object(where: str, given: Any) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        fail(f"quantization_config.{where}", " is ", repr(given), ", not an object")
    return given or {}


def _module(where: str, given: Any, *, cached: bool = False) -> Module | None:
    """Settings of modules; ``cached``: their outputs are those of a cache of keys and values."""
    fields = _object(where, given)
    if not fields.get("weight"):
        return None
    if fields.get("bias"):
        raise Unsupported(f"quantization_config.{where}.bias is quantised, and ladder's is not")
    if fields.get("output_tensors") and not cached:
        raise Unsupported(f"quantization_config.{where}.output_tensors are quantised")
    weight = _object(f"{where}.weight", fields["weight"])
    place = f"quantization_config.{where}"
    dtype, qscheme = _kind(f"{place}.weight", weight)
    if config_flag(weight, "is_dynamic", False) or config_flag(weight, "is_scale_quant", False):
        raise Unsupported(f"{place}.weight has scales that ladder does not read")
    axis, wanted = weight.get("ch_axis"), (0,) if qscheme == "per_channel" else (1, -1)
    if qscheme != "per_tensor" and axis not in (None, *wanted):
        raise Unsupported(f"{place}.weight.ch_axis of {qscheme} is {axis!r}, not {wanted[0]}")
    return Module(dtype, qscheme, _activations(f"{place}.input_tensors", fields))


def _kind(where: str, fields: Mapping[str, Any]) -> tuple[str, str]:
    """dtype and qscheme of ``fields``."""
    dtype = config_word(fields, ("dtype",), "")
    if dtype not in ELEMENTS:
        raise Unsupported(f"{where}.dtype is {dtype!r}; ladder reads {', '.join(ELEMENTS)}")
    qscheme, known = config_word(fields, ("qscheme",), ""), ELEMENTS[dtype].qschemes
    if qscheme not in known:
        raise Unsupported(f"{where}.qscheme of {dtype} is {qscheme!r}, not {' or '.join(known)}")
    if qscheme == "per_group":
        size = config_int(fields, ("group_size",), 0)
        form = config_word(fields, ("scale_format",), "")
        if (size, form) != (MX_GROUP, "e8m0"):
            raise Unsupported(f"{where} has scales of {form or 'floats'} for groups of {size}, not "
                              f"of e8m0 for {MX_GROUP}")  # fmt: skip
    return dtype, qscheme


def _activations(where: str, fields: Mapping[str, Any]) -> ActivationScheme | None:
    given = _object(where, fields.get("input_tensors"))
    if not given:
        return None
    dtype, qscheme = _kind(where, given)
    scheme = ActivationScheme(
        *_OF_X[dtype],
        config_flag(given, "is_dynamic", False),
        _STRATEGIES[qscheme],
        MX_GROUP if qscheme == "per_group" else 0,
        config_flag(given, "symmetric", True),
    )
    scheme.say(where)
    return scheme


__all__ = ["ELEMENTS", "MX_GROUP", "Config", "Element", "Module"]
