# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a floating-point folder become packed weights, and which are copied."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch import nn

from ladder.checkpoints.mixtures import PlannedExperts, plan_experts
from ladder.checkpoints.model import file_names, meta_model, renamer
from ladder.checkpoints.model_files import Described, describe_tensors
from ladder.checkpoints.shards import ShardSet
from ladder.checkpoints.ties import other_ties, tied_heads
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.nn.dense_experts import GATE_UP, STACKS
from ladder.nn.layer_types import LayerTypes, names_of
from ladder.nn.linear import Linear
from ladder.nn.outputs import COPIED
from ladder.nn.report import Conversion
from ladder.nn.select import Found, Left, covers, dense_weight, packable, survey
from ladder.nn.select_conv import convolutions as convolutions_of
from ladder.nn.select_conv import matrix_of
from ladder.nn.select_embedding import embeddings as embeddings_of
from ladder.nn.select_embedding import kept_heads
from ladder.nn.targets import heads_of
from ladder.ops import activations
from ladder.types import TType

_FLOATS = ("F16", "BF16", "F32", "F64")


@dataclass(frozen=True)
class Planned:
    """A linear layer, convolution or embedding by its name in the files, which is that of a tensor
    of theirs but for an output embedding that was tied to another module."""

    name: str  #: in the model
    type: TType
    n: int
    k: int
    module: nn.Linear | nn.Conv2d | nn.Embedding  #: or a Conv1D of transformers; on the meta device
    tensors: dict[str, Described]  #: part -> dtype, shape
    source: str  #: the tensor of the files that it is made of


@dataclass(frozen=True)
class FolderPlan:
    """What becomes of a folder.

    Attributes:
        conversion: what is packed and what is left, by the names in the files.
        modules: linear layers, convolutions and embeddings to be packed, by the names in the files.
        experts: to be packed.
        dense: linear layers that stay dense.
        untied: output embeddings that have a weight of their own, by their names in the model.
        kept: of these, tensors to be written that stay dense, and the tensors of the files that
            they are.
    """

    conversion: Conversion
    modules: dict[str, Planned]
    experts: list[PlannedExperts]
    dense: list[str]
    untied: frozenset[str]
    kept: dict[str, str]

    @property
    def embeddings(self) -> tuple[str, ...]:
        """Those of ``modules`` that are such."""
        return tuple(
            name for name, plan in self.modules.items() if isinstance(plan.module, nn.Embedding)
        )

    @property
    def filters(self) -> dict[str, tuple[int, ...]]:
        """The shape of the weight of each convolution, by its name in the files."""
        return {
            name: tuple(plan.module.weight.shape)
            for name, plan in self.modules.items()
            if isinstance(plan.module, nn.Conv2d)
        }

    def wanted(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight to be packed that x is multiplied by, of experts (E, H, I), by
        the names in the model."""
        filters, embeddings = self.filters, self.embeddings
        shapes = {
            p.name: filters.get(home, (p.n, p.k))
            for home, p in self.modules.items()
            if home not in embeddings
        }
        return shapes | {each.layer.name: each.layer.layout.shape for each in self.experts}

    def types_in_model(self) -> dict[str, TType]:
        """The type of each weight, by its name in the model."""
        return {plan.name: plan.type for plan in self.modules.values()} | {
            f"{each.layer.name}.{stack}": getattr(each.room, stack).weight_type
            for each in self.experts
            for stack in STACKS.values()
        }

    def check_activations(self, activation_type: str | None) -> None:
        """Raise Unsupported for a linear layer or experts whose weights take no such
        activations."""
        without_x = {*self.filters, *self.embeddings}
        for name, plan in self.modules.items():
            if name in without_x:
                continue
            if why := activations.objection(activation_type, plan.type, plan.k):
                raise Unsupported(f"{name}: {why}")
        for each in self.experts:
            if why := each.room.activation_objection(activation_type):
                raise Unsupported(f"{each.name}: {why}")


def plan_folder(
    folder: Path,
    shards: ShardSet,
    skip: tuple[str, ...] | None,
    types: LayerTypes,
    convolutions: bool,
    head: bool,
    embeddings: bool,
) -> FolderPlan:
    """What is to be packed and what is left.

    Raises:
        InvalidArgument: an entry of ``skip`` that names no module, or one of ``types`` that names
            none that is packed; or an embedding of a type that has a scale for several rows.
        CheckpointError: a tensor of the files does not fit the model, or there is nothing to pack.
    """
    model = meta_model(folder)
    rename, _ = renamer(model)
    every, none = packable(model), survey(model, (), loaded=False)
    possible = {p.layer.name: p for p in plan_experts(model, shards, none.experts, types)}
    of_experts = {n for p in possible.values() for s in p.sources.values() for n in s.names}
    stored = {
        rename(name).removesuffix(".weight"): name.removesuffix(".weight")
        for name in shards.home
        if name.endswith(".weight") and name not in of_experts
    } | {name: plan.name for name, plan in possible.items()}
    given = None if skip is None else _in_model(skip, stored, model)
    heads = heads_of(model) if head else set()
    tied = tied_heads(model, heads, stored)
    layers = survey(model, given, loaded=False, untied=heads)
    conversion, plans, experts = Conversion(left=dict(layers.left)), {}, []
    names: list[str] = []  # of what is packed
    found = layers.found
    if convolutions:
        filters, left = convolutions_of(model, given, types, loaded=False)
        for conv in filters:
            conversion.left.pop(f"{conv.name}.weight", None)
        conversion.left.update(left)
        found = (*found, *filters)
    kept: frozenset[str] = frozenset()
    beside: dict[str, str] = {}
    if embeddings:
        rows, left = embeddings_of(model, given, types, loaded=False)
        there = [row for row in rows if any(name in stored for name in row.names)]
        for row in there:
            conversion.left.pop(f"{row.name}.weight", None)
        conversion.left.update(left)
        kept, reasons = kept_heads(model, there, conversion.left)
        conversion.left.update(reasons)
        sources = tied_heads(model, {*reasons}, stored)
        beside = {f"{file_names(model)(own)}.weight": source for own, source in sources.items()}
        found = (*found, *there)
    for layer in found:
        weight = dense_weight(layer.module)
        home = next((stored[name] for name in layer.names if name in stored), None)
        source = f"{home}.weight"
        if home is None and (own := next((n for n in layer.names if n in tied), None)):
            home, source = file_names(model)(own), tied[own]
        if home is None:
            conversion.left[layer.name] = Left("the files have no weight of it", weight.numel())
            continue
        ttype = types.of_layer(layer, also=home)
        plans[home] = _planned(shards, source, layer, ttype)
        names += names_of(layer, also=home)
        conversion.add(home, ttype, weight.numel())
        conversion.convolutions += isinstance(layer.module, nn.Conv2d)
        conversion.embeddings += isinstance(layer.module, nn.Embedding)
    for mixture in layers.experts:
        count = mixture.layout.shape[0]
        planned = possible.get(mixture.name)
        for parameter, (stack, weights) in mixture.stacks().items():
            if planned is None:
                why = Left("the files have no weight of it", weights, count)
                conversion.left[f"{mixture.name}.{parameter}"] = why
            else:
                name = planned.name + stack.removeprefix(mixture.name)
                names += names_of(mixture, parameter, planned.name)
                ttype = types.of_layer(mixture, parameter, planned.name)
                _, h, i = mixture.layout.shape
                if objection := ttype.superblock_objection(h if parameter == GATE_UP else i):
                    raise InvalidArgument(f"{name}: {objection}")
                conversion.add(name, ttype, weights, count)
        if planned is not None:
            _check_floats(shards, planned)
            experts.append(planned)
    types.check_named(names, conversion.left)
    packed = {*plans, *(planned.name for planned in experts)}
    dense = [stored.get(name, name) for name in every if stored.get(name) not in packed]
    if not packed:
        raise CheckpointError(f"{folder}: no linear layer is left to convert\n{conversion}")
    untied = kept.union(heads.intersection(planned.name for planned in plans.values()))
    if untied:
        others = other_ties(model, shards, {*plans})
        for name, source in others.items():
            if name.endswith(".weight") and name not in beside:
                copied = f"{COPIED} {rename(source).removesuffix('.weight')}"
                count = math.prod(shards.entry(source).shape)
                conversion.left[rename(name)] = Left(copied, count)
        beside = others | beside
    return FolderPlan(conversion, plans, experts, dense, untied, beside)


def _check_floats(shards: ShardSet, planned: PlannedExperts) -> None:
    for sources in planned.sources.values():
        for name in sources.names:
            if (dtype := shards.entry(name).dtype) not in _FLOATS:
                raise CheckpointError(f"{name} is {dtype}, not in floating point")


def _in_model(skip: tuple[str, ...], stored: dict[str, str], model: nn.Module) -> list[str]:
    """``skip`` by the names in the model of what it names in the files."""
    every = {name for name, _ in model.named_modules()}
    entries: list[str] = []
    for entry in skip:
        of_files = {name for name, file in stored.items() if covers(entry, file)}
        entries += sorted(of_files & every)
        if not of_files or any(covers(entry, name) for name in every):
            entries.append(entry)
    return entries


def _planned(shards: ShardSet, name: str, layer: Found, ttype: TType) -> Planned:
    """``name``: of its tensor in the files."""
    module = cast(nn.Linear, layer.module)
    weight = module.weight
    entry, shape = shards.entry(name), tuple(weight.shape)
    if len(entry.shape) != len(shape) or entry.dtype not in _FLOATS:
        what = "matrix" if len(shape) == 2 else f"tensor of {len(shape)} dimensions"
        raise CheckpointError(
            f"{name} is {entry.dtype} {list(entry.shape)}, not a floating-point {what}"
        )
    if entry.shape != shape:
        raise CheckpointError(f"{name} has shape {list(entry.shape)}, not {list(shape)}")
    n, k = matrix_of(module, weight).shape
    if why := ttype.superblock_objection(k):
        raise InvalidArgument(f"{layer.name}: {why}")
    parts = Linear(k, n, False, ttype, device="meta").packed_weight.tensors()
    return Planned(layer.name, ttype, n, k, module, describe_tensors(parts), name)
