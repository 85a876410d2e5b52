# SPDX-License-Identifier: Apache-2.0
"""The packed layers of a folder by type and shape, without reading their codes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.info import DENSE, describe
from ladder.checkpoints.shards import open_shards, read_json
from ladder.checkpoints.source import open_folder
from ladder.errors import InvalidArgument
from ladder.types import TType, parse

#: Layers of one input that serving frameworks multiply in one product.
MERGED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass(frozen=True)
class PackedLayer:
    """A weight [n, k] as a folder has it; ``g_idx`` [k] where columns are not in order of their
    groups. ``activation_type`` is what the folder would have x rounded to."""

    name: str
    type: TType
    n: int
    k: int
    g_idx: Tensor | None = None
    activation_type: str | None = None


def packed_layers(path: str | os.PathLike[str]) -> list[PackedLayer]:
    """Those of a quantised folder that ladder reads, by name, without experts. Of their tensors
    only the small ones are read, where they decide the type. Registers the folder's user types.

    Raises:
        InvalidArgument: no such folder, or nothing in it is packed. CheckpointError: damaged.
    """
    summary = describe(path)
    if summary["quant_method"] == DENSE:
        raise InvalidArgument(
            f"{path} has no packed layer: `ladder convert` makes a folder of such"
        )
    orders = dict(_orders(Path(path), [m["name"] for m in summary["modules"] if m["act_order"]]))
    return [
        PackedLayer(
            m["name"], parse(m["type"]), m["n"], m["k"], orders.get(m["name"]), m["activation_type"]
        )
        for m in summary["modules"]
        if "experts" not in m
    ]


def _orders(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, Tensor | None]]:
    """g_idx of each of these modules."""
    if not names:
        return
    fields = read_json(folder / "config.json").get("quantization_config")
    if isinstance(fields, dict) and fields.get("quant_method") == "ladder":
        StoredConfig.from_dict(fields)
        shards = open_shards(folder)
        for name in names:
            yield name, shards.read([f"{name}.g_idx"])[f"{name}.g_idx"]
        return
    source = open_folder(folder)
    for name in names:
        yield name, source.side(source.layer(name)).g_idx


def merged_layers(layers: Sequence[PackedLayer]) -> list[PackedLayer]:
    """What :data:`MERGED` makes of ``layers``, named by its parts: "...q_proj+k_proj+v_proj".

    Parts of one type and activation type, without an order of columns and without a second scale
    (one for a whole weight) are one weight when their rows are put behind each other.
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
            mixed = any(part.g_idx is not None or part.type.scale2 for part in whole)
            if len(whole) < len(names) or mixed or layer.type.rows != 1:
                continue
            rows = sum(part.n for part in whole)
            merged.append(replace(layer, name=stem + "+".join(names), n=rows))
    return merged


def _like(layer: PackedLayer) -> tuple[object, ...]:
    """What the parts of one weight have alike, beside their order of columns."""
    return layer.type, layer.k, layer.activation_type
