# SPDX-License-Identifier: Apache-2.0
"""The quantization_config of torchao (ladder.checkpoints.torchao) beside the metadata of the files.

``quant_type`` has the config of all linear layers, or of each by its name (FqnToConfig). The
metadata decides what a tensor is; what config.json says must not contradict it.

Source: transformers 5.24, TorchAoConfig; torchao 0.18, quantization/quant_api.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ladder.checkpoints.activation_schemes import ActivationScheme
from ladder.checkpoints.layer import fail
from ladder.checkpoints.torchao_described import (
    CODES,
    FLOAT8,
    INT4,
    INT8,
    INTX,
    MX,
    NVFP4,
    TILES,
    Module,
    module_of,
)
from ladder.errors import CheckpointError, Unsupported

#: What the configs of torchao make. Of others nothing is known, and so nothing is checked.
_MADE = {
    "Int4WeightOnlyConfig": (INT4, TILES),
    "Float8DynamicActivationInt4WeightConfig": (INT4,),
    "Int8WeightOnlyConfig": (INT8,),
    "Int8DynamicActivationInt8WeightConfig": (INT8,),
    "Int8StaticActivationInt8WeightConfig": (INT8,),
    "IntxWeightOnlyConfig": (INTX,),
    "Int8DynamicActivationIntxWeightConfig": (INTX,),
    "Float8WeightOnlyConfig": (FLOAT8,),
    "Float8DynamicActivationFloat8WeightConfig": (FLOAT8,),
    "MXDynamicActivationMXWeightConfig": (MX,),
    "NVFP4WeightOnlyConfig": (NVFP4,),
    "NVFP4DynamicActivationNVFP4WeightConfig": (NVFP4,),
}


class QuantType:
    """``quant_type`` of config.json.

    Raises:
        CheckpointError: it is not what transformers writes.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        given = fields.get("quant_type")
        if given is not None and not isinstance(given, str | dict):
            fail("quantization_config.quant_type", " is ", repr(given), ", not an object")
        #: None: nothing to compare with, as in folders of old versions, which name a function.
        self._usual = given.get("default") if isinstance(given, dict) else None
        if self._usual is not None and not isinstance(self._usual, dict):
            fail("quantization_config.quant_type.default", " is ", repr(self._usual),
                 ", not an object")  # fmt: skip

    def _of(self, name: str) -> tuple[Mapping[str, Any] | None, bool]:
        """The config of a tensor, None where there is none; and whether it is said by name."""
        config, parameter, module = self._usual, name, name.rpartition(".")[0]
        if config is None or not str(config.get("_type")).endswith("FqnToConfig"):
            return config, False
        data = config.get("_data") or {}
        named: Any = data
        if isinstance(data, dict):
            named = data.get("fqn_to_config") or data.get("module_fqn_to_config") or {}
        if not isinstance(named, dict) or any(
            each is not None and not isinstance(each, dict) for each in named.values()
        ):
            fail("quantization_config.quant_type.default", " has ", repr(named),
                 ", not an object of objects")  # fmt: skip
        patterns = [key for key in named if key.startswith("re:")]
        for each in (parameter, module):
            if each in named:
                return named[each], True
        for key in patterns:
            try:
                found = any(re.fullmatch(key[3:], each) for each in (parameter, module))
            except re.error as error:
                raise CheckpointError(
                    f"quantization_config has {key!r}, no expression: {error}"
                ) from None
            if found:
                return named[key], True
        return named.get("_default"), False

    def check(self, name: str, module: Module) -> None:
        """Raise CheckpointError where config.json says other than the metadata of tensor ``name``
        does, with both."""
        config, by_name = self._of(name)
        if config is None:
            if by_name:
                fail(f"{name} is {module.kind}", ", and quantization_config leaves it dense")
            return
        made = _MADE.get(str(config.get("_type")))
        if made is not None and module.kind not in made:
            fail(f"{name} is {module.kind}", ", and quantization_config says ", config["_type"])
        data = config.get("_data")
        group = data.get("group_size") if isinstance(data, dict) else None
        if made is None or type(group) is not int or module.block is None:
            return
        if module.block[1] != group and module.kind in (INT4, TILES):
            fail(f"{name} has block_size {list(module.block)}", ", and quantization_config says ",
                 "group_size ", group)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """A torchao quantization_config, and what the metadata of the files says of each module."""

    said: QuantType
    modules: Mapping[str, Module] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization_config`` of config.json. Raises CheckpointError as QuantType."""
        return cls(QuantType(fields))

    def with_metadata(self, metadata: Mapping[str, str]) -> Config:
        """The same, of files with this metadata. The log says how activations are rounded, where
        that is not as the metadata says.

        Raises:
            CheckpointError: damaged metadata, or config.json contradicts it.
            Unsupported: kinds of tensors that ladder does not read, and packed tensors that are no
                weight of a module, as stacks of experts.
        """
        modules: dict[str, Module] = {}
        schemes: dict[ActivationScheme, str] = {}
        for name, said in metadata.items():
            module, dot, part = name.rpartition(".")
            found = module_of(name, said) if dot else None  # "format", "tensor_names"
            if found is None:
                continue
            if part != "weight":
                raise Unsupported(f"{name} is torchao's {found.kind}: ladder packs `.weight` alone")
            self.said.check(name, found)
            modules[module] = found
            if found.activations is not None:
                schemes.setdefault(found.activations, name)
        for scheme, name in schemes.items():
            scheme.say(f"the metadata of {name}")
        return replace(self, modules=modules)

    def for_module(self, name: str) -> Module:
        """The settings of one module that has parts. Raises CheckpointError where the files do not
        say what they are."""
        if name not in self.modules:
            fail(f"{name}.{CODES}", " is there, and the metadata of the files does not say what ",
                 name, ".weight is")  # fmt: skip
        return self.modules[name]
