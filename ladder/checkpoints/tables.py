# SPDX-License-Identifier: Apache-2.0
"""Quantised embeddings of other packages that stay packed, and output embeddings tied to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ladder.checkpoints.layer import ttype_of
from ladder.checkpoints.model import file_names, meta_model, renamer
from ladder.checkpoints.source import Source
from ladder.errors import Unsupported
from ladder.nn.layer_types import LayerTypes
from ladder.nn.outputs import heads
from ladder.nn.select import is_linear
from ladder.nn.select_embedding import embeddings as embeddings_of
from ladder.nn.select_embedding import rows_objection
from ladder.nn.targets import heads_of
from ladder.types import TType, parse

#: What a report says of embeddings that nobody asked for.
KEPT_WITH = (
    "--embeddings keeps a quantised input embedding packed, and --head packs an output embedding "
    "that is tied to it"
)


@dataclass(frozen=True)
class Tables:
    """What becomes of the quantised embeddings of a checkpoint. Modules are those of the model.

    Attributes:
        packed: modules that are packed, and what the files call the embedding of which they have
            the weight.
        embeddings: of these, the input embeddings. The others are output embeddings.
        decoded: output embeddings that were tied to one of ``embeddings`` and have the decoded
            weight as their own, likewise.
        notes: sentences about what was asked for and stays dense.
    """

    packed: dict[str, str] = field(default_factory=dict)
    embeddings: tuple[str, ...] = ()
    decoded: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def untied(self) -> bool:
        """Whether an output embedding was tied, and has a weight of its own."""
        return bool(self.decoded) or len(self.packed) > len(self.embeddings)


def plan_tables(
    model: Any,
    stored: Mapping[str, tuple[str, TType]],
    present: Mapping[str, bool],
    *,
    embeddings: bool,
    head: bool,
) -> Tables:
    """Say which of the quantised embeddings of a checkpoint stay packed, and what is to be written
    for output embeddings that are tied to them.

    Args:
        model: of transformers, on the meta device.
        stored: quantised embeddings by their names in ``model``: their names in the files, tTypes.
        present: modules of ``model`` of which the files hold a weight, and whether it is packed.
        embeddings: input embeddings stay packed, those that :func:`ladder.convert` would pack.
        head: output embeddings that are tied to one of ``stored`` are packed, from its codes.
    Raises:
        InvalidArgument: ``embeddings`` is given, and the model has no input embedding.
        Unsupported: the configuration ties them whatever is said, or something else, too, which
            would no more be so.
    """
    packed: dict[str, str] = {}
    decoded: dict[str, str] = {}
    notes: list[str] = []
    if embeddings:
        found, left = embeddings_of(model, None, LayerTypes(parse("uint8")), loaded=False)
        free = {name for each in found for name in each.names}
        for target, (name, ttype) in stored.items():
            if not isinstance(model.get_submodule(target), nn.Embedding):
                continue
            why = rows_objection(ttype)
            if target not in free:
                reason = left.get(f"{target}.weight")
                why = reason.reason if reason else "it is no embedding of the model"
            if why:
                notes.append(f"{name} is decoded: {why}")
            else:
                packed[target] = name
        if not packed and not notes:
            notes.append("no input embedding is quantised: embeddings changes nothing")
    inputs, outputs = tuple(packed), heads(model)
    ties: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    for key, at in ties.items():
        name, other = key.removesuffix(".weight"), at.removesuffix(".weight")
        if name in present or other not in stored:
            continue
        own = stored[other][0]
        if head and name in outputs and is_linear(model.get_submodule(name)):
            packed[name] = own
        elif other in packed:
            decoded[name] = own
    if head:
        notes += [
            f"{name} stays dense: it is not quantised, nor is an embedding that it is tied to"
            for name in sorted(outputs.difference(packed))
            if not present.get(name)
        ]
    tables = Tables(packed, inputs, decoded, notes)
    if tables.untied:
        if head:
            heads_of(model)  # raises where nothing can be untied
        made = {f"{name}.weight" for name in (*packed, *decoded, *present)}
        if more := sorted(ties.keys() - made):
            raise Unsupported(
                f"{more[0]} is tied to {ties[more[0]]}, which tie_word_embeddings: false of an "
                "output embedding with a weight of its own would end: leave out head and embeddings"
            )
    return tables


def tables_of(source: Source, *, embeddings: bool, head: bool) -> Tables:
    """As :func:`plan_tables`, of a folder: modules are called as in the folder that is written."""
    if not embeddings and not head:
        return Tables()
    model = meta_model(source.folder)
    rename, called = renamer(model)[0], file_names(model)

    def in_model(name: str) -> str:
        return rename(f"{name}.weight").removesuffix(".weight")

    stored = {in_model(name): (name, _type_of(source, name)) for name in source.embeddings}
    others = {name.removesuffix(".weight") for name in source.others if name.endswith(".weight")}
    present = {in_model(name): name in source.modules for name in (*source.modules, *others)}
    found = plan_tables(model, stored, present, embeddings=embeddings, head=head)
    # An embedding keeps the name that the files have for it; a head that was tied has none there.
    here = {name: stored[name][0] for name in found.embeddings}
    return Tables(
        {here.get(name) or called(name): of for name, of in found.packed.items()},
        tuple(here.values()),
        {called(name): of for name, of in found.decoded.items()},
        found.notes,
    )


def _type_of(source: Source, module: str) -> TType:
    layer = source.layer(module)
    return ttype_of(layer, source.side(layer))
