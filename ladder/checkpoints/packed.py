# SPDX-License-Identifier: Apache-2.0
"""The packed layers of a folder by type and shape, without reading their codes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ladder.checkpoints.folder import QUANT_METHOD, StoredConfig
from ladder.checkpoints.info import DENSE, describe, multiplies
from ladder.checkpoints.shards import open_shards, read_json
from ladder.checkpoints.source import open_folder
from ladder.errors import CheckpointError, InvalidArgument
from ladder.nn.dense_experts import STACKS
from ladder.ops.activations import with_fast_accum
from ladder.types import TType, parse
from ladder.weight import in_order, needs_single_rows

#: Layers of one input that serving frameworks multiply in one product.
GATE_UP = ("gate_proj", "up_proj")
MERGED = (("q_proj", "k_proj", "v_proj"), GATE_UP)
_GATE_UP, _DOWN = STACKS.values()
#: What checkpoints call gate, up and down of one expert: most; Mixtral and its like.
PROJECTIONS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))


@dataclass(frozen=True)
class PackedLayer:
    """A weight [n, k] as a folder has it; ``g_idx`` [k] where columns are not in order of their
    groups. ``activation_type`` is what the folder would have x rounded to; ``says_sums``: and how
    such products are added up, which folders of other packages leave to who multiplies.
    ``scale2`` [1] is the second scale of a type that has one for the whole weight."""

    name: str
    type: TType
    n: int
    k: int
    g_idx: Tensor | None = None
    activation_type: str | None = None
    says_sums: bool = True
    scale2: Tensor | None = None

    def in_engines(self) -> PackedLayer | None:
        """The layer as vLLM's and SGLang's plugins run it, where that is another one."""
        wanted = with_fast_accum(self.activation_type)
        if self.says_sums or wanted == self.activation_type:
            return None
        return replace(self, activation_type=wanted)


@dataclass(frozen=True)
class PackedExperts:
    """The experts of one layer of a mixture, ``count`` weights for each of two products:
    ``gate_up`` [2I, H] and ``down`` [H, I]. Where columns of some expert are not in order of their
    groups, ``g_idx`` is that of the first such expert."""

    name: str
    count: int
    gate_up: PackedLayer
    down: PackedLayer

    def in_engines(self) -> PackedExperts | None:
        """As :meth:`PackedLayer.in_engines`."""
        first, second = self.gate_up.in_engines(), self.down.in_engines()
        return replace(self, gate_up=first, down=second) if first and second else None


def packed_layers(path: str | os.PathLike[str]) -> tuple[list[PackedLayer], list[PackedExperts]]:
    """The linear layers and the experts of a quantised folder that ladder reads, by name, in stacks
    or packed one by one; not convolutions, whose kernels depend on the size of images, and not
    embeddings, which have none. Of their tensors only the small ones are read, where they decide
    the type. Registers the folder's user types.

    Raises:
        InvalidArgument: no such folder, or nothing in it is packed. CheckpointError: damaged.
    """
    summary = describe(path)
    if summary["quant_method"] == DENSE:
        raise InvalidArgument(
            f"{path} has no packed layer: `ladder convert` makes a folder of such"
        )
    says_sums = summary["quant_method"] == QUANT_METHOD
    modules = [m for m in summary["modules"] if multiplies(m)]
    orders = _read(Path(path), "g_idx", [m["name"] for m in modules if m["act_order"]])
    single = (m for m in modules if "experts" not in m)
    seconds = _read(
        Path(path), "scale2", [m["name"] for m in single if parse(m["type"]).scale2_of_tensor]
    )
    layers: dict[str, PackedLayer] = {}
    counts = {}
    for m in modules:
        name, activation_type = m["name"], m["activation_type"]
        layers[name] = PackedLayer(
            name, parse(m["type"]), m["n"], m["k"], orders.get(name), activation_type, says_sums,
            seconds.get(name),
        )  # fmt: skip
        if "experts" in m:
            counts[name] = m["experts"]
    experts = [*_stacked(layers, counts), *_single(layers)]
    return list(layers.values()), sorted(experts, key=lambda each: each.name)


def _stacked(layers: dict[str, PackedLayer], counts: Mapping[str, int]) -> list[PackedExperts]:
    """Take the stacks, of ``counts`` weights each, out of ``layers``.

    Raises CheckpointError where one of the two stacks of a layer is missing.
    """
    stacks = {name: layers.pop(name) for name in counts}
    found = []
    for name, first in stacks.items():
        holder, _, last = name.rpartition(".")
        second = stacks.get(f"{holder}.{_DOWN}")
        other = {_GATE_UP: _DOWN, _DOWN: _GATE_UP}.get(last)
        if other is not None and f"{holder}.{other}" not in stacks:
            raise CheckpointError(f"{name}.qweight is there, but {holder}.{other}.qweight is not")
        if last == _GATE_UP and second is not None:
            found.append(PackedExperts(holder, counts[name], first, second))
    return found


def _single(layers: dict[str, PackedLayer]) -> list[PackedExperts]:
    """Take the experts whose projections are packed one by one out of ``layers``. Those of which
    some are not there, or of several types, stay: nothing makes experts of them."""
    by_holder: dict[str, dict[int, dict[str, PackedLayer]]] = {}
    for name, layer in layers.items():
        holder, _, rest = name.rpartition(".experts.")
        number, _, projection = rest.partition(".")
        if number.isdecimal() and any(projection in names for names in PROJECTIONS):
            of = by_holder.setdefault(f"{holder}.experts", {}).setdefault(int(number), {})
            of[projection] = layer
    found = []
    for holder, experts in by_holder.items():
        names = next(names for names in PROJECTIONS if set(names) & experts[min(experts)].keys())
        whole = all(of.keys() == set(names) for of in experts.values())
        if not whole or sorted(experts) != list(range(len(experts))):
            continue
        rows = [[experts[e][name] for name in names] for e in range(len(experts))]
        gate_up = _product(f"{holder}.{_GATE_UP}", [of[:2] for of in rows])
        down = _product(f"{holder}.{_DOWN}", [of[2:] for of in rows])
        if gate_up is None or down is None:
            continue
        found.append(PackedExperts(holder, len(experts), gate_up, down))
        for layer in (layer for of in rows for layer in of):
            del layers[layer.name]
    return found


def _product(name: str, experts: Sequence[Sequence[PackedLayer]]) -> PackedLayer | None:
    """What one product of experts is, each given by the layers whose rows are its rows; None where
    they are not alike."""
    every = [layer for of in experts for layer in of]
    first = every[0]
    types = {layer.type for layer in every}
    if len(types) > 1:  # of some experts all zero points are the midpoint
        types = {ttype.with_stored_zeros() for ttype in types}
    if len(types) > 1 or {(layer.n, layer.k) for layer in every} != {(first.n, first.k)}:
        return None
    (ttype,) = types
    rows = [layer.n for layer in experts[0]]
    if needs_single_rows(ttype, rows):
        ttype = ttype.of_single_rows()
    if ttype.rows == 1 and any(_seconds_differ(of) for of in experts):
        ttype = ttype.with_second_scales_of_rows()
    orders = (layer.g_idx for layer in every if layer.g_idx is not None)
    in_order = torch.arange(first.k) // (ttype.columns or first.k)
    order = next((order for order in orders if not torch.equal(order.long(), in_order)), None)
    return replace(first, name=name, type=ttype, n=sum(rows), g_idx=order)


def _seconds_differ(parts: Sequence[PackedLayer]) -> bool:
    """Whether one weight of the rows of ``parts`` has second scales for each row."""
    scales = [part.scale2 for part in parts if part.scale2 is not None]
    return not all(torch.equal(scales[0], scale) for scale in scales)


def _read(folder: Path, part: str, names: Sequence[str]) -> dict[str, Tensor | None]:
    """A part, g_idx or scale2, of each of these modules."""
    if not names:
        return {}
    fields = read_json(folder / "config.json").get("quantization_config")
    if not isinstance(fields, dict) or fields.get("quant_method") != QUANT_METHOD:
        source = open_folder(folder)
        return {name: getattr(source.side(source.layer(name)), part) for name in names}
    config, shards = StoredConfig.from_dict(fields), open_shards(folder)
    found: dict[str, Tensor | None] = {}
    for name in names:
        tensor = found[name] = shards.read([f"{name}.{part}"])[f"{name}.{part}"]
        if part == "g_idx" and tensor.dim() > 1:
            # Of a stack the first order that says something.
            ttype = parse(config.type_of(name) or config.weight_type)
            found[name] = next((each for each in tensor if not in_order(each, ttype)), None)
    return found


def merged_layers(layers: Sequence[PackedLayer]) -> list[PackedLayer]:
    """What :data:`MERGED` makes of ``layers``, named by its parts: "...q_proj+k_proj+v_proj".

    Parts of one type and activation type without an order of columns are one weight when their rows
    are put behind each other, with second scales for each row where theirs differ.
    """
    found = {layer.name: layer for layer in layers}
    merged = []
    for names in MERGED:
        for layer in layers:
            holder, _, last = layer.name.rpartition(".")
            if last != names[0]:
                continue
            stem = f"{holder}." if holder else ""
            parts = [found.get(stem + name) for name in names]
            whole = [part for part in parts if part and _like(part) == _like(layer)]
            ordered = any(part.g_idx is not None for part in whole)
            if len(whole) < len(names) or ordered or layer.type.rows != 1:
                continue
            apart = _seconds_differ(whole)
            ttype = layer.type.with_second_scales_of_rows() if apart else layer.type
            rows = sum(part.n for part in whole)
            merged.append(replace(layer, name=stem + "+".join(names), type=ttype, n=rows))
    return merged


def _like(layer: PackedLayer) -> tuple[object, ...]:
    """What the parts of one weight have alike, beside their order of columns."""
    return layer.type, layer.k, layer.activation_type
