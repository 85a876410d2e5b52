# SPDX-License-Identifier: Apache-2.0
"""The packed modules of a ladder folder as other packages have them: one by one, with a name each,
or decoded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder import ops
from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.info import describe
from ladder.checkpoints.packed import PROJECTIONS
from ladder.checkpoints.shards import ShardSet
from ladder.errors import CheckpointError, Unsupported
from ladder.nn.dense_experts import STACKS
from ladder.nn.select import covers
from ladder.types import TType, parse
from ladder.weight import PARTS, Weight

_GATE_UP, _DOWN = STACKS.values()


@dataclass(frozen=True)
class _Source:
    """A packed module of the folder. ``k`` are columns; ``experts``, of a stack, how many.
    ``stored_type`` is its type in the folder, where ``type`` is what it becomes."""

    source: str
    type: TType
    rows: int  #: in the folder, of one expert
    k: int
    parts: tuple[str, ...]
    experts: int | None = None
    stored_type: TType | None = None

    def read(self, shards: ShardSet) -> dict[str, Tensor]:
        names = {f"{self.source}.{part}": part for part in self.parts}
        return {names[name]: tensor for name, tensor in shards.read([*names]).items()}

    def whole(self, tensors: Mapping[str, Tensor], expert: int | None) -> Weight:
        """Raises CheckpointError where ``tensors`` are no such weight."""
        of = {part: t if expert is None else t[expert] for part, t in tensors.items()}
        parts = {part: tensor for part, tensor in of.items() if part in PARTS}
        weight = Weight(self.stored_type or self.type, (self.rows, self.k), **parts)
        try:
            weight.check(self.source)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        return weight


@dataclass(frozen=True)
class Unit(_Source):
    """A linear layer that stays packed; all of a module, or rows of one weight of a stack."""

    name: str = ""  #: in the other package's folder
    activation_type: str | None = None
    static: bool = False  #: x has a static scale
    act_order: bool = False
    #: The least and the greatest zero point, of zero points that are stored integers.
    zeros: tuple[int, int] | None = None
    expert: int | None = None
    first: int = 0  #: row of the weight
    n: int = 0

    def of_expert(self, part: Tensor) -> Tensor:
        return part if self.expert is None else part[self.expert]

    def with_float_scales(self) -> Unit:
        """The same for packages without superblocks: with the float32 products of both levels."""
        if not self.type.superblock:
            return self
        return replace(self, type=self.type.with_float_scales(), stored_type=self.type)

    def weight(self, tensors: Mapping[str, Tensor], *, single_rows: bool) -> Weight:
        """Of the ``tensors`` of the module. ``single_rows``: with scales for each row."""
        weight = self.whole(tensors, self.expert)
        weight = weight if self.stored_type is None else weight.with_float_scales()
        weight = weight.of_single_rows() if single_rows else weight
        return weight if self.n == self.rows else weight.narrow_rows(self.first, self.n)


@dataclass(frozen=True)
class Decoded(_Source):
    """A module that becomes dense."""

    name: str = ""
    shape: tuple[int, ...] = ()
    is_linear: bool = True

    def values(self, shards: ShardSet) -> Tensor:
        """Of the shape of the dense weight."""
        values = self.whole(self.read(shards), None).dequantize()
        if len(self.shape) == 2:
            return values
        f, c, y, x = self.shape
        return values.view(f, y, x, c).permute(0, 3, 1, 2).contiguous()


def is_of(name: str, packed: Collection[str]) -> bool:
    """Whether a tensor is part of the weight of one of the modules ``packed``."""
    module, _, part = name.rpartition(".")
    return module in packed and part != "bias"


def read_units(
    folder: Path,
    shards: ShardSet,
    stored: StoredConfig,
    dense: Collection[str],
    *,
    embeddings: bool,
) -> tuple[list[Unit], list[Decoded]]:
    """Every packed module of a ladder folder.

    Args:
        dense: entries that name modules to decode.
        embeddings: packed embeddings stay packed.
    Raises:
        CheckpointError: the folder is damaged.
        Unsupported: a module has what no other package has: numbers by which columns of x are
            multiplied, biases of experts, rows whose number of columns no tensor says; or
            ``dense`` names a stack.
    """
    units: list[Unit] = []
    decoded: list[Decoded] = []
    for row in describe(folder)["modules"]:
        name = row["name"]
        if f"{name}.pre_scale" in shards.home:
            raise Unsupported(f"{name}.pre_scale multiplies columns of x, which neither format has")
        parts = tuple(p for p in (*PARTS, "input_scale") if f"{name}.{p}" in shards.home)
        base: dict[str, Any] = {
            "source": name, "type": parse(row["type"]), "rows": row["n"], "k": row["k"],
            "parts": parts, "experts": row.get("experts"),
        }  # fmt: skip
        if "filters" not in row and not row["act_order"] and row["k"] % 32:
            raise Unsupported(
                f"{name}: a row of up to {row['k']} codes ends within a word, so that the folder "
                "does not say how many columns it has"
            )
        named = any(covers(entry, name) for entry in dense)
        if named or "filters" in row or ("embedding" in row and not embeddings):
            if "experts" in row:
                raise Unsupported(f"{name} is a stack of experts, which is not decoded")
            shape = tuple(row.get("filters", (row["n"], row["k"])))
            linear = "filters" not in row and "embedding" not in row
            decoded.append(Decoded(**base, name=name, shape=shape, is_linear=linear))
            continue
        more = base | {
            "activation_type": stored.activation_type_of(name),
            "static": "input_scale" in parts,
            "act_order": "g_idx" in parts,
            "zeros": _zeros(shards, name, base["type"], row["k"]),
        }
        units += _of_stack(shards, more) if "experts" in row else [
            Unit(**more, name=name, n=row["n"])
        ]  # fmt: skip
    return units, decoded


def _of_stack(shards: ShardSet, base: dict[str, Any]) -> list[Unit]:
    """The projections of each expert."""
    name, rows = base["source"], base["rows"]
    holder, _, stack = name.rpartition(".")
    if f"{name}.bias" in shards.home:
        raise Unsupported(f"{name}.bias: experts with biases have no name in other packages")
    gate, up, down = PROJECTIONS[".block_sparse_moe." in f".{holder}."]
    half = rows // 2
    cuts = [(gate, 0, half), (up, half, half)] if stack == _GATE_UP else [(down, 0, rows)]
    return [
        Unit(**base, name=f"{holder}.{expert}.{called}", expert=expert, first=first, n=count)
        for expert in range(base["experts"])
        for called, first, count in cuts
    ]


def _zeros(shards: ShardSet, name: str, ttype: TType, k: int) -> tuple[int, int] | None:
    if ttype.zero not in ("integer", "quantized"):
        return None
    zeros = shards.read([f"{name}.zeros"])[f"{name}.zeros"]
    if ttype.zero == "quantized":
        zeros = ops.unpack(zeros.flatten(0, -2), ttype.groups(k), ttype.bits)
    return int(zeros.min()), int(zeros.max())


def integer_zeros(weight: Weight) -> Tensor:
    """[N, G] uint8: the zero points of a weight of unsigned integers whose rows have their own
    scales."""
    ttype, (n, k) = weight.type, weight.shape
    groups = ttype.groups(k)
    if ttype.zero == "midpoint":
        return weight.qweight.new_full((n, groups), 1 << ttype.bits - 1, dtype=torch.uint8)
    assert weight.zeros is not None
    if ttype.zero == "quantized":
        return ops.unpack(weight.zeros, groups, ttype.bits)
    return weight.zeros
