# SPDX-License-Identifier: Apache-2.0
"""quantization_config of compressed-tensors: which modules are quantised, and how.

Each of ``config_groups`` has a scheme and targets; ``ignore`` leaves modules out. Both name modules
in full, by ``re:`` and an expression that matches from the start of the name, or by class. Files do
not tell classes: a module with a quantised weight is an Embedding by its name, or else a Linear.

Source: compressed-tensors 0.20, quantization/quant_config.py, quant_args.py, utils/match.py.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ladder.checkpoints.activation_schemes import ActivationScheme
from ladder.checkpoints.layer import config_flag, config_int, config_word, fail, is_embedding
from ladder.errors import CheckpointError, Unsupported

_log = logging.getLogger("ladder")
_ROOT = "quantization_config"

#: format -> element of each width that it stores; None: unsigned integers, of which it stores
#: 1 to 8 bits.
_ELEMENTS: dict[str, dict[int, str] | None] = {
    "pack-quantized": None,
    "int-quantized": None,
    "float-quantized": {8: "float8_e4m3"},
    "naive-quantized": {8: "float8_e4m3"},  # of floats; integers are as int-quantized
    "nvfp4-pack-quantized": {4: "float4_e2m1"},
    "mxfp4-pack-quantized": {4: "float4_e2m1"},
    "mxfp6-pack-quantized": {6: "float6_e2m3"},
    "mxfp8-quantized": {8: "float8_e4m3"},
}
_SPARSE = ("sparse-bitmask", "sparse-24-bitmask", "marlin-24")
_UNCOMPRESSED = ("dense", "fakequant")
#: Strategies whose scales belong to all columns of a row or more.
_WHOLE = ("tensor", "channel")


@dataclass(frozen=True)
class Scheme:
    """How the weights of one config group are stored."""

    format: str
    bits: int
    element: str | None  #: None: unsigned integers of ``bits``
    strategy: str  #: tensor, channel, group, tensor_group, block
    group_size: int  #: -1 where all of K is one group
    block: tuple[int, int] | None  #: rows and columns that share a scale, of strategy block
    symmetric: bool
    act_order: bool  #: groups are told by weight_g_idx
    activations: ActivationScheme | None = None
    whole_codes: bool = False  #: of one layer: words hold whole codes, none across two words

    @property
    def packed(self) -> bool:
        """Whether the codes are bit streams called weight_packed, or whole bytes called weight."""
        return "pack-" in self.format

    @property
    def packs_zeros(self) -> bool:
        return self.packed and not self.symmetric and self.strategy in ("group", "channel")

    @property
    def scale(self) -> str | None:
        """Format of scales that are stored as codes of 8 bits; None where they are floats."""
        if self.format.startswith("mx"):
            return "e8m0"
        return "float8_e4m3" if self.format.startswith("nvfp4") else None

    @property
    def activation_type(self) -> str | None:
        return None if self.activations is None else self.activations.activation_type


@dataclass(frozen=True)
class Config:
    """Targets and scheme of each config group, in order, and what they leave out."""

    groups: tuple[tuple[tuple[str, ...], Scheme | None], ...]
    ignore: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization_config`` of config.json, or its older name ``compression_config``.

        A ``kv_cache_scheme`` is left to the cache: a warning names it, and another each group
        whose activations ladder rounds otherwise than it says (``activation_schemes``).

        Raises:
            CheckpointError: a key has the wrong type or a value outside the format's set.
            Unsupported: outputs are quantised, weights are sparse or not compressed, or they are
                rotated while a model runs.
        """
        if isinstance(nested := fields.get("quantization_config"), Mapping):
            fields = {**fields, **nested}
        _check_whole(fields)
        groups = fields.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            fail(f"{_ROOT}.config_groups", " is ", repr(groups), ", not an object of groups")
        usual = config_word(fields, ("format",), "dense")
        made = tuple(_group(name, group, usual) for name, group in groups.items())
        return cls(made, _names(fields, "ignore", f"{_ROOT}.ignore"))

    def for_module(self, name: str) -> Scheme | None:
        """The scheme of one module, None when it stays dense.

        A target that is the name goes before expressions, and those before classes; among equals
        the alphabet decides, as in compressed-tensors.
        """
        if any(_matches(entry, name) for entry in self.ignore):
            return None
        schemes = {target: scheme for targets, scheme in self.groups for target in targets}
        found = [target for target in schemes if _matches(target, name)]
        if not found:
            return None
        return schemes[min(found, key=lambda each: (_rank(each, name), each))]


def _check_whole(fields: Mapping[str, Any]) -> None:
    """Raise Unsupported for what concerns all modules and can not be left out."""
    form = config_word(fields, ("format",), "dense")
    sparsity = fields.get("sparsity_config") or {}
    sparse = sparsity.get("format", "dense") if isinstance(sparsity, Mapping) else sparsity
    for key, value in (("format", form), ("sparsity_config.format", sparse)):
        if value in _SPARSE or (key.startswith("sparsity") and value != "dense"):
            raise Unsupported(f"{_ROOT}.{key} is {value!r}: ladder reads no sparse weights")
    transforms = fields.get("transform_config")
    if isinstance(transforms, Mapping) and transforms.get("config_groups"):
        raise Unsupported(
            f"{_ROOT}.transform_config has {', '.join(map(str, transforms['config_groups']))}: "
            "ladder does not rotate activations"
        )
    if fields.get("kv_cache_scheme"):
        _log.warning("%s.kv_cache_scheme is not used: the cache keeps the model's dtype", _ROOT)


def _group(name: Any, group: Any, usual: str) -> tuple[tuple[str, ...], Scheme | None]:
    where = f"{_ROOT}.config_groups.{name}"
    if not isinstance(group, Mapping):
        fail(where, " is ", repr(group), ", not an object with targets and weights")
    targets = _names(group, "targets", f"{where}.targets")
    outputs = _activations(group, "output_activations", where)
    if outputs is not None:
        raise Unsupported(f"{where}.output_activations is {outputs}: ladder rounds no outputs")
    activations = _activations(group, "input_activations", where)
    weights = group.get("weights")
    if weights is None:
        if activations is not None:
            _log.warning("%s.input_activations is %s of layers whose weights are not quantised: "
                         "ladder leaves them as they are", where, activations)  # fmt: skip
        return targets, None
    if not isinstance(weights, Mapping):
        fail(f"{where}.weights", " is ", repr(weights), ", not an object")
    form = config_word(group, ("format",), usual)
    if form == "mixed-precision":
        fail(f"{where}.format", " is missing, and the format of all is mixed-precision")
    if form in (*_SPARSE, *_UNCOMPRESSED):
        raise Unsupported(
            f"{where}.format is {form!r}: its weights are not compressed, or sparse; ladder reads "
            + ", ".join(_ELEMENTS)
        )
    if form not in _ELEMENTS:
        fail(f"{where}.format", " is ", repr(form), ", not ", " or ".join(_ELEMENTS))
    scheme = _scheme(f"{where}.weights", form, weights, activations)
    if activations is not None:
        activations.say(f"{where}.input_activations")
    return targets, scheme


def _activations(group: Mapping[str, Any], key: str, where: str) -> ActivationScheme | None:
    given = group.get(key)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        fail(f"{where}.{key}", " is ", repr(given), ", not an object")
    return ActivationScheme.from_dict(f"{where}.{key}", given)


def _scheme(
    where: str, form: str, weights: Mapping[str, Any], activations: ActivationScheme | None
) -> Scheme:
    bits = config_int(weights, ("num_bits",), 8)
    kind = config_word(weights, ("type",), "int")
    elements = None if kind == "int" and form == "naive-quantized" else _ELEMENTS[form]
    if kind != ("int" if elements is None else "float"):
        fail(f"{where}.type", " is ", repr(kind), ", which is not of ", form)
    if not 1 <= bits <= 8 or (elements is not None and bits not in elements):
        fail(f"{where}.num_bits", " is ", bits, f", {form} has ",
             "1 to 8" if elements is None else ", ".join(map(str, elements)))  # fmt: skip
    if not (symmetric := config_flag(weights, "symmetric", True)) and elements is not None:
        raise Unsupported(f"{where}.symmetric is false: ladder has no zero points of floats")
    if config_flag(weights, "dynamic", False):
        fail(f"{where}.dynamic", " is true, but scales of stored weights are static")
    size = config_int(weights, ("group_size",), 0)
    implied = "tensor" if size == 0 else "channel" if size == -1 else "group"
    strategy = config_word(weights, ("strategy",), implied)
    if form.startswith("nvfp4") != (strategy == "tensor_group"):
        fail(f"{where}.strategy", " is ", repr(strategy), ", which is not of ", form)
    if form.startswith("mx") and (strategy, size) != ("group", 32):
        fail(f"{where}.group_size", " is ", size, " of strategy ", strategy, f", {form} has 32")
    block = None
    if strategy == "block":
        block = _block(weights.get("block_structure"), f"{where}.block_structure")
    elif strategy in ("group", "tensor_group"):
        if size < 8:
            raise Unsupported(
                f"{where}.group_size is {size}, ladder's groups have 8 columns or more"
            )
    elif strategy not in _WHOLE:
        fail(f"{where}.strategy", " is ", repr(strategy), ", not one of weights")
    order = weights.get("actorder")
    act_order = order is True or str(order).lower() in ("group", "dynamic")
    group_size = -1 if strategy in _WHOLE or block else size
    element = None if elements is None else elements[bits]
    return Scheme(
        form, bits, element, strategy, group_size, block, symmetric, act_order, activations
    )


def _block(given: Any, where: str) -> tuple[int, int]:
    sides = given.lower().split("x") if isinstance(given, str) else given
    if isinstance(sides, list) and len(sides) == 2 and all(str(side).isdecimal() for side in sides):
        rows, columns = (int(side) for side in sides)
        if rows and columns >= 8:
            return rows, columns
    fail(where, " is ", repr(given), ", not [rows, columns] with 8 columns or more")


def _names(fields: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    names = fields.get(key) or ()
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        fail(where, " is ", repr(names), ", not a list of names")
    for name in names:
        _expression(name, where)
    return tuple(names)


def _expression(entry: str, where: str = _ROOT) -> re.Pattern[str] | None:
    if not entry.startswith("re:"):
        return None
    try:
        return re.compile(entry.removeprefix("re:"))
    except (re.error, RecursionError, OverflowError) as error:
        raise CheckpointError(f"{where}: {entry!r} is not a regular expression: {error}") from error


def _matches(entry: str, name: str) -> bool:
    expression = _expression(entry)
    if expression is not None:
        return expression.match(name) is not None
    by_class = entry == "Embedding" if is_embedding(name) else entry.endswith("Linear")
    return entry == name or ("." not in entry and by_class)


def _rank(entry: str, name: str) -> int:
    return 0 if entry == name else 1 if entry.startswith("re:") else 2


__all__ = ["Config", "Scheme"]
