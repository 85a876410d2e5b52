# SPDX-License-Identifier: Apache-2.0
"""What becomes of each tensor of a GGUF file."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import Tensor

from ladder.checkpoints.gguf.block import Block
from ladder.checkpoints.gguf.blocks import BLOCKS, FLOATS
from ladder.checkpoints.gguf.experts import plan_experts
from ladder.checkpoints.gguf.header import Entry, GgufFile
from ladder.checkpoints.gguf.model import GgufModel
from ladder.checkpoints.gguf.pieces import Dense, Packed, Piece, Plan, check_format
from ladder.checkpoints.gguf.rope import FACTOR_TENSORS
from ladder.checkpoints.tables import Tables, plan_tables
from ladder.errors import CheckpointError, Unsupported
from ladder.nn.dense_experts import STACKS
from ladder.nn.select import dense_weight, is_conv1d, packable, survey
from ladder.types import TType


def make_plan(
    found: GgufModel, *, float16: bool, embeddings: bool = False, head: bool = False
) -> Plan:
    """Say what becomes of each tensor.

    Args:
        float16: scales of float32 are rounded to float16.
        embeddings, head: as :func:`ladder.checkpoints.repack`.
    Raises:
        InvalidArgument: as :func:`plan_tables`.
        Unsupported: the format of a tensor, or an order of columns, cannot be held exactly.
        CheckpointError: gate and up of a layer of experts do not fit together.
    """
    file, layers = found.file, survey(found.model, (), loaded=False)
    linear = {name: layer.module for layer in layers.found for name in layer.names}
    shapes = {name: tuple(tensor.shape) for name, tensor in found.model.state_dict().items()}
    plan = Plan()
    tables = _tables(found, linear, float16, embeddings=embeddings, head=head)
    plan.embeddings, plan.untied, plan.notes = tables.embeddings, tables.untied, tables.notes
    taken: set[str] = set()
    for each in layers.experts:
        taken |= set(plan_experts(found, each, plan, float16=float16))
    for source, entry in file.entries.items():
        name = found.names.get(source)
        if source in taken or source in FACTOR_TENSORS:
            continue
        check_format(file, entry)
        if name is None:  # known, but of experts that are not as ladder.Experts has them
            raise Unsupported(f"{file.path}: {source} is of experts that ladder does not pack")
        block = BLOCKS.get(entry.format)
        module, is_weight = name.removesuffix(".weight"), name.endswith(".weight")
        if block is not None and is_weight and module in linear and len(entry.shape) == 2:
            _check_shape(file, entry, name, tuple(dense_weight(linear[module]).shape))
            order = found.row_order(source, transposed=is_conv1d(linear[module]))
            plan.packed.append(_packed(module, block, entry, float16, order))
        elif block is not None and is_weight and module in tables.packed:
            _check_shape(file, entry, name, shapes[name])
            plan.packed.append(_packed(module, block, entry, float16))
        else:
            dtype = torch.float32 if block else FLOATS[entry.format]
            if found.is_untouched(source):
                _check_shape(file, entry, name, shapes[name])
            plan.dense.append(Dense(source, name, dtype, shapes[name], block))
    for module, source in tables.packed.items():
        if module not in tables.embeddings:
            entry = file.entries[source]
            plan.packed.append(_packed(module, BLOCKS[entry.format], entry, float16))
    for module, source in tables.decoded.items():
        entry, name = file.entries[source], f"{module}.weight"
        block = BLOCKS[entry.format]
        plan.dense.append(Dense(source, name, torch.float32, shapes[name], block))
    packed = {each.name for each in plan.packed}
    stacks = {name for name in packed for suffix in STACKS.values() if name.endswith(f".{suffix}")}
    packed |= {name.rpartition(".")[0] for name in stacks}
    plan.left = [name for name in packable(found.model) if name not in packed]
    return plan


def _tables(
    found: GgufModel, linear: Container[str], float16: bool, *, embeddings: bool, head: bool
) -> Tables:
    """What becomes of quantised embeddings whose tensors are the model's parameters as they are."""
    if not embeddings and not head:
        return Tables()
    stored: dict[str, tuple[str, TType]] = {}
    present: dict[str, bool] = {}
    for source, name in found.names.items():
        module, _, part = name.rpartition(".")
        block = BLOCKS.get(found.file.entries[source].format)
        if part != "weight":
            continue
        present[module] = block is not None and module in linear
        if block is not None and module not in linear and found.is_untouched(source):
            stored[module] = source, block.narrow if float16 else block.ttype
    return plan_tables(found.model, stored, present, embeddings=embeddings, head=head)


def _packed(
    module: str, block: Block, entry: Entry, float16: bool, order: Tensor | None = None
) -> Packed:
    """A module of all rows of a matrix."""
    n, k = entry.shape
    ttype = block.narrow if float16 else block.ttype
    return Packed(module, block, ttype, n, k, (Piece(entry.name, 0, n, 0, order),))


def _check_shape(file: GgufFile, entry: Entry, name: str, shape: tuple[int, ...]) -> None:
    if entry.shape != shape:
        raise CheckpointError(
            f"{file.path}: {entry.name} has shape {list(entry.shape)}, but {name} {list(shape)}"
        )
