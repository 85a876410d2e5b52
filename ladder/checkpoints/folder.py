# SPDX-License-Identifier: Apache-2.0
"""The ``quantization_config`` of a ladder folder's config.json. docs/format.md states it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ladder import types
from ladder._version import install_command
from ladder.checkpoints.shards import read_json
from ladder.errors import CheckpointError, InvalidArgument
from ladder.nn.select import covers
from ladder.ops.activations import ACTIVATION_TYPES

_log = logging.getLogger("ladder")

QUANT_METHOD = "ladder"
FORMAT_VERSION = 1

#: An entry of config.json, beside quantization_config, that stops transformers where ladder has not
#: been imported: it quotes the text in a ValueError instead of starting from random weights.
GUARD_KEY = "transformers_weights"
GUARD_TEXT = (
    f"these weights are quantised by ladder: `{install_command()}`, and `import ladder` before "
    "loading them"
)


@dataclass(frozen=True)
class StoredConfig:
    """How the modules of one model are stored.

    ``weight_type`` is the tType of every converted module that ``modules`` does not name.
    ``modules_to_not_convert`` names Linear modules that stay as they are. ``types`` defines the
    user's element types, ``{"bits": 3, "values": [8 numbers]}`` each. ``source`` is the
    quantization_config that the folder was repacked from. ``activation_type`` is that of every
    packed linear layer that ``activation_types`` does not name. Both are wishes: a layer that has
    no kernels for it where it is loaded takes x as it comes (:mod:`ladder.nn.offered`).
    ``convolutions`` has the shape [F, C / groups, Y, X] of each packed convolution, by name, and
    ``embeddings`` the names of the packed embeddings; others are dense whatever the rest says.

    Raises:
        CheckpointError: a field has the wrong shape, a tType does not parse, or the version is
            newer than this ladder.
    """

    weight_type: str
    modules: Mapping[str, str] = field(default_factory=dict)
    modules_to_not_convert: tuple[str, ...] = ()
    types: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    source: Mapping[str, Any] | None = None
    format_version: int = FORMAT_VERSION
    activation_type: str | None = None
    activation_types: Mapping[str, str | None] = field(default_factory=dict)
    convolutions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    embeddings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.format_version) is not int or self.format_version != FORMAT_VERSION:
            _fail("format_version", self.format_version, f"this ladder reads {FORMAT_VERSION}")
        for key in ("modules_to_not_convert", "embeddings"):
            names = getattr(self, key)
            listed = isinstance(names, (list, tuple))
            if not listed or not all(isinstance(name, str) for name in names):
                _fail(key, names, "not a list of names")
            object.__setattr__(self, key, tuple(names))
        for key in ("modules", "types", "activation_types", "convolutions"):
            if not isinstance(getattr(self, key), Mapping):
                _fail(key, getattr(self, key), "not an object")
        if self.source is not None and not isinstance(self.source, Mapping):
            _fail("source", self.source, "not an object")
        _check_activations("activation_type", self.activation_type)
        for name, wanted in self.activation_types.items():
            _check_activations(f"activation_types[{name!r}]", wanted)
        for name, meaning in self.types.items():
            _register(name, meaning)
        object.__setattr__(self, "weight_type", _canonical("weight_type", self.weight_type))
        canonical = {name: _canonical(f"modules[{name!r}]", t) for name, t in self.modules.items()}
        object.__setattr__(self, "modules", canonical)
        shapes = {name: _filters(name, shape) for name, shape in self.convolutions.items()}
        object.__setattr__(self, "convolutions", shapes)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> StoredConfig:
        """Check and read ``quantization_config``; registers its user types. Errors as the class."""
        if fields.get("quant_method") != QUANT_METHOD:
            _fail("quant_method", fields.get("quant_method"), f"not {QUANT_METHOD!r}")
        if "weight_type" not in fields:
            raise CheckpointError("quantization_config.weight_type is missing")
        if "format_version" not in fields:
            raise CheckpointError(
                "quantization_config.format_version is missing: files of ladder have it, and what "
                "a model shall be quantised to is a LadderConfig, no dict"
            )
        _tell_unread(tuple(sorted(set(fields) - _KEYS)))
        return cls(
            weight_type=fields["weight_type"],
            modules={} if fields.get("modules") is None else fields["modules"],
            modules_to_not_convert=fields.get("modules_to_not_convert") or (),
            types={} if fields.get("types") is None else fields["types"],
            source=fields.get("source"),
            format_version=fields["format_version"],
            activation_type=fields.get("activation_type"),
            activation_types=fields.get("activation_types") or {},
            convolutions={} if fields.get("convolutions") is None else fields["convolutions"],
            embeddings=() if fields.get("embeddings") is None else fields["embeddings"],
        )

    @classmethod
    def describing(
        cls,
        types: Mapping[str, str],
        dense: Iterable[str],
        *,
        usual: str | None = None,
        source: Mapping[str, Any] | None = None,
        activation_type: str | None = None,
        activation_types: Mapping[str, str | None] | None = None,
        convolutions: Mapping[str, tuple[int, ...]] | None = None,
        embeddings: Iterable[str] = (),
    ) -> StoredConfig:
        """Return the config of a model.

        Args:
            types: tType of each packed module.
            dense: linear layers that stay as they are. A packed module of which one of these names
                would speak as well is named in ``modules``.
            usual: ``weight_type``; by default the type that most modules have.
            source: see the class.
            activation_type: of every packed module that ``activation_types`` does not name.
            activation_types: of packed modules; what most have becomes that of the class.
            convolutions: those of ``types`` that are none of these two; see the class.
            embeddings: the same.
        """
        shapes, rows = convolutions or {}, tuple(embeddings)
        without_x = {*shapes, *rows}
        rounded = {name: activation_type for name in types if name not in without_x}
        rounded |= activation_types or {}
        most = Counter(rounded.values()).most_common(1)[0][0] if rounded else activation_type
        usual = usual or Counter(types.values()).most_common(1)[0][0]
        left = tuple(sorted(dense))
        modules = {
            module: text
            for module, text in types.items()
            if text != usual
            or (module not in without_x and any(covers(entry, module) for entry in left))
        }
        return cls(
            usual,
            modules,
            left,
            definitions([usual, *modules.values()]),
            source,
            activation_type=most,
            activation_types={name: t for name, t in rounded.items() if t != most},
            convolutions=shapes,
            embeddings=rows,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what config.json holds. JSON-clean; from_dict reads it back."""
        fields: dict[str, Any] = {
            "quant_method": QUANT_METHOD,
            "format_version": self.format_version,
            "weight_type": self.weight_type,
            "modules": dict(self.modules),
            "modules_to_not_convert": list(self.modules_to_not_convert),
        }
        if self.types:
            fields["types"] = {name: dict(meaning) for name, meaning in self.types.items()}
        if self.activation_type is not None:
            fields["activation_type"] = self.activation_type
        if self.activation_types:
            fields["activation_types"] = dict(self.activation_types)
        if self.convolutions:
            fields["convolutions"] = {n: list(shape) for n, shape in self.convolutions.items()}
        if self.embeddings:
            fields["embeddings"] = list(self.embeddings)
        if self.source is not None:
            fields["source"] = dict(self.source)
        return fields

    def put_in(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a model's ``config`` with what config.json holds because its weights are ladder's:
        ``quantization_config``, and the guard, which each part has too that transformers can load
        on its own."""
        guarded = copy.deepcopy(dict(config))
        for part in [guarded, *parts_of(guarded)]:
            part.pop("quantization_config", None)
            part[GUARD_KEY] = GUARD_TEXT
        return guarded | {"quantization_config": self.to_dict()}

    def type_of(self, module: str) -> str | None:
        """Return the tType of a linear layer, or of a packed convolution or embedding, or None when
        a linear layer stays as it is.

        ``modules`` decides first, then ``convolutions`` and ``embeddings``, then
        ``modules_to_not_convert``, whose entries are the name of a module, or whole parts of it
        that follow each other ("lm_head", "mlp", "layers.0").
        """
        if module in self.modules:
            return self.modules[module]
        if module in self.convolutions or module in self.embeddings:
            return self.weight_type
        for entry in self.modules_to_not_convert:
            if covers(entry, module):
                return None
        return self.weight_type

    def activation_type_of(self, module: str) -> str | None:
        """Return what x is to be rounded to before products of a packed module; None: as it is, as
        for all convolutions and embeddings."""
        if module in self.convolutions or module in self.embeddings:
            return None
        return self.activation_types.get(module, self.activation_type)


_KEYS = {each.name for each in dataclasses.fields(StoredConfig)} | {"quant_method"}


@functools.cache  # once for each set of keys
def _tell_unread(keys: tuple[str, ...]) -> None:
    if keys:
        _log.warning(
            "quantization_config has %s, which ladder does not read: weight_type is the whole type",
            ", ".join(keys),
        )


def parts_of(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The configurations inside of a model's that transformers can load as models of their own, at
    any depth: it finds them by their ``model_type``."""
    for value in config.values():
        if isinstance(value, dict) and value.get("model_type"):
            yield value
            yield from parts_of(value)


def without_ties(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` of a model whose output embedding is a layer of its own. transformers takes the
    word of either level, and ties where neither has one, in some models; of models in parts, as an
    encoder and a decoder, that of the part."""
    said: dict[str, Any] = copy.deepcopy(dict(config)) | {"tie_word_embeddings": False}
    if isinstance(text := said.get("text_config"), dict):
        text["tie_word_embeddings"] = False
    for part in parts_of(said):
        if part.get("tie_word_embeddings"):
            part["tie_word_embeddings"] = False
    return said


def without_ladder(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` without what :meth:`StoredConfig.put_in` has put in."""
    plain = copy.deepcopy(dict(config))
    for part in [plain, *parts_of(plain)]:
        part.pop("quantization_config", None)
        part.pop(GUARD_KEY, None)
    return plain


def _fail(key: str, value: object, why: str) -> NoReturn:
    raise CheckpointError(f"quantization_config.{key} is {value!r}, {why}")


def _check_activations(key: str, wanted: object) -> None:
    if wanted not in (None, *ACTIVATION_TYPES):
        known = ", ".join(ACTIVATION_TYPES)
        _fail(key, wanted, f"none that this ladder knows: {known}")


def _filters(name: str, shape: object) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, (list, tuple)) else ()
    if len(sizes) != 4 or any(type(size) is not int or size < 1 for size in sizes):
        _fail(f"convolutions[{name!r}]", shape, "not the four sizes of filters")
    return tuple(sizes)


def _canonical(key: str, text: object) -> str:
    if not isinstance(text, str):
        _fail(key, text, "not a tType")
    try:
        return str(types.parse(text))
    except InvalidArgument as error:
        raise CheckpointError(f"quantization_config.{key} is {text!r}: {error}") from error


def definitions(spellings: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the meaning of every format in ``spellings`` that only this process knows: those that
    ``register_type`` and ``float_type`` made."""
    found: dict[str, dict[str, Any]] = {}
    for text in spellings:
        found |= types.parse(text).meanings
    return found


def define_from(path: Path) -> None:
    """Register the formats in the JSON file ``path``, an object as ``types`` of config.json is.

    Raises:
        CheckpointError: no such file, or an entry of another form or with a name that means
            something else, which it names. Entries before it are registered.
    """
    for name, meaning in read_json(path).items():
        try:
            _register(name, meaning)
        except CheckpointError as error:
            what = str(error).removeprefix("quantization_config.types")
            raise CheckpointError(f"{path}: {what}") from error


def _register(name: str, meaning: object) -> None:
    key = f"types[{name!r}]"
    fields = types.FLOAT_FIELDS
    if not isinstance(meaning, Mapping) or set(meaning) not in ({"bits", "values"}, {*fields}):
        _fail(key, meaning, "not {bits, values} or {" + ", ".join(fields) + "}")
    try:
        if "values" in meaning:
            bits, values = meaning["bits"], meaning["values"]
            numbers = isinstance(values, (list, tuple)) and all(
                type(v) in (int, float) for v in values
            )
            if type(bits) is not int or not numbers:
                _fail(key, meaning, "not an integer and a list of numbers")
        else:
            exponent, mantissa, bias, specials = (meaning[field] for field in fields)
            if {type(exponent), type(mantissa), type(bias)} != {int} or type(specials) is not str:
                _fail(key, meaning, "not three integers and a word")
        types.define(name, meaning)
    except InvalidArgument as error:
        raise CheckpointError(f"quantization_config.{key}: {error}") from error
