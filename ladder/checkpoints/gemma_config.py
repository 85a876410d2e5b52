# SPDX-License-Identifier: Apache-2.0
"""What config.json of a folder of quant_method "gemma" says, and with it the small tensors of its
files (:mod:`ladder.checkpoints.gemma`)."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ladder.checkpoints.activation_schemes import ActivationScheme
from ladder.checkpoints.layer import (
    SCALE_NAMES,
    config_flag,
    config_int,
    expect,
    fail,
    stored_as,
)
from ladder.checkpoints.shards import ShardSet
from ladder.errors import Unsupported
from ladder.ops.activations import static_scale_objection

OF_X, OF_Y = "input_activation_scale", "output_activation_scale"
ROOT = "quantization_config"
_BITS = (2, 4, 8)
_KEYS = ("quant_method", "num_bits", "quantize_embeddings", "module_quant_configs",
         "modules_to_not_convert")  # fmt: skip
_STATIC = ActivationScheme("int", 8, False, "tensor")
#: Where an entry of modules_to_not_convert has to end in a name.
_BOUNDARY = r"(?:(?<=\.)|(?=\.|$))"
_log = logging.getLogger("ladder")


@dataclass(frozen=True)
class Module:
    """The settings of one module."""

    bits: int
    tables: bool  #: whether embeddings are quantised
    activations: ActivationScheme | None
    k: int | None  #: columns, where the model is known

    @property
    def activation_type(self) -> str | None:
        return None if self.activations is None else self.activations.activation_type


@dataclass(frozen=True)
class Config:
    """A Gemma quantization_config, and what the files say beside it."""

    bits: int = 4
    tables: bool = False
    patterns: Mapping[str, int] = field(default_factory=dict)  #: regular expression -> bits
    dense: tuple[str, ...] = ()  #: modules that stay so, by regular expressions
    static: frozenset[str] = frozenset()  #: modules that have a scale of x
    columns: Mapping[str, int] = field(default_factory=dict)  #: K of modules, by the model

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization_config`` of config.json.

        Raises:
            CheckpointError: a key has the wrong type, or a regular expression is none.
            Unsupported: other bits than 2, 4 and 8, or a key that is not known.
        """
        _refuse_unknown(fields, _KEYS, ROOT)
        bits = _bits(fields, 4, ROOT)
        given = fields.get("module_quant_configs") or {}
        if not isinstance(given, Mapping):
            fail(f"{ROOT}.module_quant_configs", " is ", repr(given), ", not an object")
        patterns = {}
        for pattern, own in given.items():
            where = f"{ROOT}.module_quant_configs.{pattern}"
            if not isinstance(own, Mapping):
                fail(where, " is ", repr(own), ", not an object")
            _refuse_unknown(own, ("num_bits",), where)
            patterns[pattern] = _bits(own, bits, where)
        dense = fields.get("modules_to_not_convert") or ()
        if not isinstance(dense, list | tuple) or not all(isinstance(name, str) for name in dense):
            fail(f"{ROOT}.modules_to_not_convert", " is ", repr(dense), ", not a list of names")
        for pattern in (*patterns, *dense):
            try:
                re.compile(pattern)
            except re.error as error:
                fail(ROOT, " has ", repr(pattern), f", no regular expression: {error}")
        tables = config_flag(fields, "quantize_embeddings", False)
        return cls(bits, tables, patterns, tuple(dense))

    def with_tensors(self, shards: ShardSet) -> Config:
        """The same, with the modules whose x is rounded. The log names layers whose y would be.

        Raises CheckpointError for a scale of x or y that is no float, or neither 0 nor positive.
        """
        found: dict[str, list[str]] = {OF_X: [], OF_Y: []}
        names = {n: n.rpartition(".") for n in shards.home if n.rpartition(".")[2] in found}
        for name, (module, _, part) in names.items():
            entry = shards.entry(name)
            stored = stored_as(entry.dtype, entry.shape)
            shape = stored.shape if stored.shape == () else (1,)
            expect({part: stored}, module, part, SCALE_NAMES, shape)
        for name, scale in shards.read(names).items():
            if not scale.any():
                continue
            if why := static_scale_objection(scale, name):
                fail(why)
            found[names[name][2]].append(names[name][0])
        if of_y := sorted(found[OF_Y]):
            _log.warning("%s: %s is left out: y is not rounded", some(of_y), OF_Y)
        return replace(self, static=frozenset(found[OF_X]))

    def for_module(self, name: str) -> Module | None:
        """The settings of one module, None when it stays dense.

        Raises Unsupported where two patterns match that differ in bits, and transformers does not
        take the first.
        """
        if any(re.match(f"(?:{e}){_BOUNDARY}", name) or name.endswith(e) for e in self.dense):
            return None
        every = ((re.search(pattern, name), pattern) for pattern in self.patterns)
        matches = [(match.start(), pattern) for match, pattern in every if match]
        bits = self.bits
        if matches:
            first, taken = matches[0][1], min(matches, key=lambda match: match[0])[1]
            bits = self.patterns[taken]
            if bits != self.patterns[first]:
                raise Unsupported(
                    f"{name} has {self.patterns[first]} bits by {first!r} of module_quant_configs, "
                    f"and {bits} by {taken!r}, which matches further left"
                )
        activations = _STATIC if name in self.static else None
        return Module(bits, self.tables, activations, self.columns.get(name))


def _refuse_unknown(fields: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for key in fields:
        if key not in known:
            raise Unsupported(
                f"{where}.{key} is {fields[key]!r}, and ladder does not know what it means"
            )


def _bits(fields: Mapping[str, Any], default: int, where: str) -> int:
    bits = config_int(fields, ("num_bits",), default)
    if bits not in _BITS:
        raise Unsupported(f"{where}.num_bits is {bits}, and ladder reads 2, 4 and 8 here")
    return bits


def some(names: list[str]) -> str:
    """The first name, and how many more."""
    return names[0] + (f" and {len(names) - 1} more" if names[1:] else "")
