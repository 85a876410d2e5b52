# SPDX-License-Identifier: Apache-2.0
"""Names and layouts of tensors that are mlx-lm's, and not those of transformers.

    <block>.switch_mlp.<projection>.<part>    [E, ...]: the experts of a layer, stacked

become experts one by one, as they were in the files that mlx-lm has stacked:

    <block>.experts.<e>.<projection>.<part>   [...], in a block called mlp
    <block>.experts.<e>.w1, w3, w2.<part>     in one called block_sparse_moe (Mixtral)

Other stacks (gpt-oss, latent attention whose kv_b_proj is cut by heads) and convolutions, whose
channels MLX has last, are refused.

Source: mlx-lm 0.32.2, models/switch_layers.py and ``sanitize`` in models/*.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ladder.checkpoints.header import Entry, read_header
from ladder.checkpoints.layer import Stored, fail, stored_as
from ladder.checkpoints.shards import SafetensorsShard, ShardSet
from ladder.errors import Unsupported

_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
#: What files of transformers call the projections of an expert, by MLX's names, for each block.
_PROJECTIONS = {"mlp": {name: name for name in _MIXTRAL}, "block_sparse_moe": _MIXTRAL}
_BLOCK = rf"(?P<block>(?:.*\.)?(?P<kind>{'|'.join(_PROJECTIONS)}))"
_STACK = re.compile(rf"{_BLOCK}\.switch_mlp\.(?P<name>\w+)")
_EXPERT = re.compile(rf"{_BLOCK}\.experts\.\d+\.(?P<name>\w+)")


class _Part(NamedTuple):
    """A tensor of one expert: part of a stack."""

    stack: str
    expert: int


def _experts_of(stack: str) -> tuple[str, str] | None:
    """The module that holds the experts of which MLX has a projection as ``stack``, and the name of
    the projection; None of other modules."""
    found = _STACK.fullmatch(stack)
    name = found and _PROJECTIONS[found["kind"]].get(found["name"])
    return (f"{found['block']}.experts", name) if found and name else None


def stack_of(module: str) -> str:
    """What MLX calls the stack of which ``module`` is one expert's; of another module ""."""
    if (found := _EXPERT.fullmatch(module)) is None:
        return ""
    names = {ours: theirs for theirs, ours in _PROJECTIONS[found["kind"]].items()}
    name = names.get(found["name"])
    return f"{found['block']}.switch_mlp.{name}" if name else ""


def experts_of(name: str, stored: Stored | Entry) -> list[str]:
    """Names of the tensors, one for each expert, that tensor ``name`` is; of no stack none."""
    module, _, part = name.rpartition(".")
    if not stored.shape or (found := _experts_of(module)) is None:
        return []
    return [f"{found[0]}.{e}.{found[1]}.{part}" for e in range(stored.shape[0])]


def check_headers(headers: Mapping[str, Stored]) -> None:
    """Raise Unsupported for the first tensor that has no place in a model of transformers."""
    for name, (dtype, shape) in headers.items():
        module, _, part = name.rpartition(".")
        if part == "global_scale":
            raise Unsupported(f"{name} is there: ladder reads scales of MLX's groups alone")
        if part == "weight" and len(shape) > 2 and _experts_of(module) is None:
            packed = dtype == torch.uint32
            what = "a stack" if packed else "a convolution, channels last, or a stack"
            raise Unsupported(
                f"{name} has shape {list(shape)}, {what} as MLX has it: ladder reads linear "
                "layers, and stacks of experts called <block>.switch_mlp.<gate, up or down>_proj"
            )


def with_experts(shards: ShardSet) -> ShardSet:
    """The same files, with experts one by one.

    Raises:
        CheckpointError: the parts of a stack are of several numbers of experts, or an expert is
            there twice.
        Unsupported: as :func:`check_headers`.
    """
    entries = {name: shards.entry(name) for name in shards.home}
    check_headers({n: stored_as(e.dtype, e.shape) for n, e in entries.items()})
    firsts: dict[str, tuple[str, int]] = {}
    for name, entry in entries.items():
        module = name.rpartition(".")[0]
        if _experts_of(module) is not None and entry.shape:
            first, count = firsts.setdefault(module, (name, entry.shape[0]))
            if count != entry.shape[0]:
                fail(name, " is of ", entry.shape[0], " experts, and ", first, " of ", count)
    if not firsts:
        return shards
    opened = [_Shard(shard.path) for shard in shards.shards]
    home: dict[str, int] = {}
    for index, shard in enumerate(opened):
        for name in shard.entries:
            if name in home or (name in entries and name in shard.split):
                fail(name, " is there beside ", stack_of(name.rpartition(".")[0]))
            home[name] = index
    return ShardSet([*opened], home, shards.files)


class _Shard(SafetensorsShard):
    """A file of stacks, whose experts are tensors of their own: their bytes follow each other."""

    @cached_property
    def _stored(self) -> dict[str, Entry]:
        """Tensors of the file. ``super().entries`` would be kept under the name of ``entries``."""
        return read_header(self.path)

    @cached_property
    def split(self) -> dict[str, _Part]:
        """Tensors of experts, by their names."""
        parts = {}
        for stack, entry in self._stored.items():
            for expert, name in enumerate(experts_of(stack, entry)):
                parts[name] = _Part(stack, expert)
        return parts

    @cached_property
    def entries(self) -> dict[str, Entry]:
        stacks = {part.stack for part in self.split.values()}
        entries = {name: entry for name, entry in self._stored.items() if name not in stacks}
        for name, (stack, expert) in self.split.items():
            whole = self._stored[stack]
            size = whole.nbytes // whole.shape[0]
            begin = whole.begin + expert * size
            entries[name] = Entry(whole.dtype, whole.shape[1:], begin, begin + size)
        return entries

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        parts = {name: self.split.get(name) for name in names}
        stored = super().read(sorted({p.stack if p else name for name, p in parts.items()}))
        return {n: stored[p.stack][p.expert] if p else stored[n] for n, p in parts.items()}
