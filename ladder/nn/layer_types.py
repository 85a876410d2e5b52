# SPDX-License-Identifier: Apache-2.0
"""Which tType each layer of a model is quantised to."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ladder.errors import InvalidArgument
from ladder.nn.dense_experts import STACKS
from ladder.nn.mixtures import FoundExperts
from ladder.nn.select import Found, Left, covers, entries_of, no_such_module
from ladder.types import TType, parse, with_defaults


@dataclass(frozen=True)
class LayerTypes:
    """The tType of each layer.

    Attributes:
        usual: of layers that no entry names.
        entries: names of modules, whole or whole parts of them that follow each other, and the
            types of these. Of several that name a layer a whole name decides, else the entry with
            the most parts, of equally many the last.
    """

    usual: TType
    entries: Mapping[str, TType] = field(default_factory=dict)

    def of(self, *names: str) -> TType:
        """The type of the layer that has these names."""
        whole = [entry for entry in names if entry in self.entries]
        found = whole or [e for e in self.entries if any(covers(e, name) for name in names)]
        if not found:
            return self.usual
        most = max(entry.count(".") for entry in found)
        return self.entries[[entry for entry in found if entry.count(".") == most][-1]]

    def of_layer(self, layer: Found | FoundExperts, stack: str = "", also: str = "") -> TType:
        """The type of a linear layer or convolution, or of the stack of experts that is made of
        parameter ``stack``.

        Args:
            also: what the files call the module.
        """
        return self.of(*names_of(layer, stack, also))

    def of_stacks(self, layer: FoundExperts, also: str = "") -> tuple[TType, TType]:
        """The types of both stacks, that of gate and up first."""
        first, second = (self.of_layer(layer, stack, also) for stack in STACKS)
        return first, second

    def every(self) -> dict[str, TType]:
        """All types, by the entry that has each; "" has the usual one."""
        return {"": self.usual, **self.entries}

    def check_named(
        self, packed: Iterable[str], left: Mapping[str, Left], heads: Container[str] = ()
    ) -> None:
        """Raise InvalidArgument for the first entry that names none of the ``packed`` modules, with
        the reason where it names one that is ``left``.

        Args:
            packed: all names that each has.
            heads: output embeddings that would be packed if that was asked for.
        """
        known = list(dict.fromkeys(packed))
        whole = set(known)
        for entry in self.entries:
            if entry in whole or any(covers(entry, name) for name in known):
                continue
            for name, each in left.items():
                if covers(entry, name) or covers(entry, name.removesuffix(".weight")):
                    hint = "; head=True packs output embeddings" if name in heads else ""
                    raise InvalidArgument(
                        f'types has "{entry}", but {name} is not quantised: {each.reason}{hint}'
                    )
            raise no_such_module("types", entry, known)

    def of_part(self, part: str, parts: Iterable[str]) -> LayerTypes:
        """The types of one model of a pipeline: entries that begin with the name of another model
        of ``parts`` do not concern it."""
        others = tuple(f"{name}." for name in parts if name != part)
        own = {
            entry.removeprefix(f"{part}."): ttype
            for entry, ttype in self.entries.items()
            if not entry.startswith(others)
        }
        return LayerTypes(self.usual, own)


def names_of(layer: Found | FoundExperts, stack: str = "", also: str = "") -> list[str]:
    """What an entry may name a layer by. Of a stack of experts, made of parameter ``stack``, these
    are the names of the stack and of the parameter: ``mlp.experts.down``,
    ``mlp.experts.down_proj``."""
    names = [*layer.names, *([also] if also and also not in layer.names else [])]
    if not stack:
        return names
    return [f"{name}.{each}" for name in names for each in (STACKS[stack], stack)]


def every_name(layers: Iterable[Found | FoundExperts]) -> Iterable[str]:
    """:func:`names_of` of all weights of all ``layers``."""
    for layer in layers:
        for stack in STACKS if isinstance(layer, FoundExperts) else ("",):
            yield from names_of(layer, stack)


def layer_types(
    weight_type: str | TType,
    group_size: int | None = None,
    symmetric: bool | None = None,
    types: Mapping[str, str | TType] | None = None,
) -> LayerTypes:
    """What a user means by a type, and ``types`` of layers that have others.

    Types of these are :func:`completed`.

    Raises:
        InvalidArgument: as :func:`ladder.types.with_defaults`, naming the entry; or ``types`` is
            something else.
    """
    usual = with_defaults(weight_type, group_size=group_size, symmetric=symmetric)
    given: Any = {} if types is None else types
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"types is {given!r}, not types by the names of modules")
    entries = {}
    for entry in entries_of("types", given):
        try:
            entries[entry] = completed(given[entry], group_size, symmetric)
        except InvalidArgument as error:
            raise InvalidArgument(f'types["{entry}"]: {error}') from None
    return LayerTypes(usual, entries)


def completed(
    weight_type: str | TType, group_size: int | None = None, symmetric: bool | None = None
) -> TType:
    """As :func:`ladder.types.with_defaults`, but that ``group_size`` and ``symmetric`` are for
    types that do not speak of them, and that groups without scales ("uint6,group=64"), which would
    mean nothing, have those that a size alone gives."""
    given = parse(weight_type)
    if isinstance(weight_type, TType):
        return given
    if given.scale is None and given.zero == "none" and given.rows == 1 and given.columns:
        weight_type, group_size = given.element.name, given.columns
    elif "," in weight_type or str(given) != given.element.name or given.bits > 8:
        return given
    unsigned = given.element.encoding == "unsigned_integer"
    return with_defaults(
        weight_type, group_size=group_size, symmetric=symmetric if unsigned else None
    )


def check_bits(types: LayerTypes, what: str) -> None:
    """Raise InvalidArgument for the first type of more than 8 bits, with ``what`` takes 1 to 8."""
    for entry, ttype in types.every().items():
        if ttype.bits > 8:
            whose = f'types["{entry}"]: ' if entry else ""
            raise InvalidArgument(f"{whose}type {ttype} has {ttype.bits} bits; {what} 1 to 8")
