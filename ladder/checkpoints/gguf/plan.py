# SPDX-License-Identifier: Apache-2.0
"""What becomes of each tensor of a GGUF file."""

from __future__ import annotations

import torch

from ladder.checkpoints.gguf.blocks import BLOCKS, FLOATS
from ladder.checkpoints.gguf.experts import plan_experts
from ladder.checkpoints.gguf.header import Entry, GgufFile
from ladder.checkpoints.gguf.model import GgufModel
from ladder.checkpoints.gguf.pieces import Dense, Packed, Piece, Plan, check_format
from ladder.checkpoints.gguf.rope import FACTOR_TENSORS
from ladder.errors import CheckpointError, Unsupported
from ladder.nn.dense_experts import STACKS
from ladder.nn.select import dense_weight, is_conv1d, packable, survey


def make_plan(found: GgufModel, *, float16: bool) -> Plan:
    """Say what becomes of each tensor.

    Args:
        float16: scales of float32 are rounded to float16.
    Raises:
        Unsupported: the format of a tensor, or an order of columns, cannot be held exactly.
        CheckpointError: gate and up of a layer of experts do not fit together.
    """
    file, layers = found.file, survey(found.model, (), loaded=False)
    linear = {name: layer.module for layer in layers.found for name in layer.names}
    shapes = {name: tuple(tensor.shape) for name, tensor in found.model.state_dict().items()}
    plan = Plan()
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
            n, k = entry.shape
            _check_shape(file, entry, name, tuple(dense_weight(linear[module]).shape))
            order = found.row_order(source, transposed=is_conv1d(linear[module]))
            piece = Piece(source, 0, n, 0, order)
            ttype = block.narrow if float16 else block.ttype
            plan.packed.append(Packed(module, block, ttype, n, k, (piece,)))
        else:
            dtype = torch.float32 if block else FLOATS[entry.format]
            if found.is_untouched(source):
                _check_shape(file, entry, name, shapes[name])
            plan.dense.append(Dense(source, name, dtype, shapes[name], block))
    packed = {each.name for each in plan.packed}
    stacks = {name for name in packed for suffix in STACKS.values() if name.endswith(f".{suffix}")}
    packed |= {name.rpartition(".")[0] for name in stacks}
    plan.left = [name for name in packable(found.model) if name not in packed]
    return plan


def _check_shape(file: GgufFile, entry: Entry, name: str, shape: tuple[int, ...]) -> None:
    if entry.shape != shape:
        raise CheckpointError(
            f"{file.path}: {entry.name} has shape {list(entry.shape)}, but {name} {list(shape)}"
        )
