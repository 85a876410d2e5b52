# SPDX-License-Identifier: Apache-2.0
"""The quantization_config of hqq (ladder.checkpoints.hqq), as transformers writes it.

``quant_config`` has the settings of all layers (``weight_quant_params``), or of each kind of layers
by its tag: the name without ``model``, ``layers`` and numbers. Kinds that it does not name then are
dense. Folders that hqq itself wrote have no quantization_config.

Source: transformers 4.57, HqqConfig and integrations/hqq.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ladder.checkpoints.layer import fail

_BITS = (8, 6, 5, 4, 3, 2, 1.58, 1)


@dataclass(frozen=True)
class Module:
    """The settings of one module."""

    bits: float | None = None  #: None: the config does not say
    group_size: int = 0  #: codes that share a scale, as ladder.checkpoints.hqq.measure finds them
    stored: int = 0  #: bits in which a code is stored, likewise


@dataclass(frozen=True)
class Config:
    """An hqq quantization_config."""

    usual: Module | None = Module()
    tags: Mapping[str, Module | None] = field(default_factory=dict)
    dense: tuple[str, ...] = ()  #: tags of layers that are

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization_config`` of config.json.

        Raises:
            CheckpointError: a key has the wrong type or a value outside the format's set.
        """
        dense = fields.get("skip_modules") or ()
        if not isinstance(dense, list | tuple) or not all(isinstance(name, str) for name in dense):
            fail("quantization_config.skip_modules", " is ", repr(dense), ", not a list of names")
        given = _object("quant_config", fields.get("quant_config"))
        if not given:
            return cls(dense=tuple(dense))
        if "weight_quant_params" in given:
            return cls(_module("quant_config", given), dense=tuple(dense))
        tags = {tag: _module(f"quant_config.{tag}", each) for tag, each in given.items()}
        return cls(None, tags, tuple(dense))

    def for_module(self, name: str) -> Module | None:
        """The settings of one module, None when it stays dense."""
        parts = name.split(".")
        tag = ".".join(p for p in parts if p not in ("model", "layers") and not p.isnumeric())
        return None if tag in self.dense else self.tags.get(tag, self.usual)


def _object(where: str, given: Any) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        fail(f"quantization_config.{where}", " is ", repr(given), ", not an object")
    return given or {}


def _module(where: str, given: Any) -> Module | None:
    if given is None:
        return None
    where = f"{where}.weight_quant_params"
    fields = _object(where, _object(where, given).get("weight_quant_params"))
    bits = fields.get("nbits")
    if bits is not None and (type(bits) not in (int, float) or bits not in _BITS):
        fail(f"quantization_config.{where}.nbits", " is ", repr(bits), ", not one of ",
             ", ".join(map(str, _BITS)))  # fmt: skip
    return Module(bits)
