# SPDX-License-Identifier: Apache-2.0
"""What the tensors of a GGUF file are to hold that is made of a ladder folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.export.alike import is_apart, text_name
from ladder.checkpoints.export.dense import Dense, dense_of
from ladder.checkpoints.export.units import Decoded, Unit
from ladder.checkpoints.gguf.encode import Form, form_of
from ladder.checkpoints.gguf.model import EXPERT_TENSORS, GgufModel
from ladder.checkpoints.gguf.rope import FACTOR_TENSORS
from ladder.checkpoints.model import renamer
from ladder.checkpoints.shards import ShardSet
from ladder.errors import CheckpointError, Unsupported
from ladder.nn.dense_experts import STACKS

_HEAD = "output.weight"
#: What old files of models have beside parameters.
_BUFFERS = "rotary_emb.inv_freq"


@dataclass(frozen=True)
class Blocks:
    """A tensor of blocks: the units whose rows it has, one after the other."""

    name: str
    units: tuple[Unit, ...]
    form: Form
    bytes_shape: tuple[int, ...]
    order: Tensor | None = None  #: [N]: the row of the file that each row of the unit is

    @property
    def number(self) -> int:
        return self.form.number


def plan_tensors(
    found: GgufModel,
    shards: ShardSet,
    units: Sequence[Unit],
    decoded: Sequence[Decoded],
    config: Mapping[str, Any],
    dtype: torch.dtype,
    *,
    tied: bool,
) -> list[Blocks | Dense]:
    """The tensors of the file, in the order of the template.

    Args:
        config: of the folder.
        dtype: of matrices that are dense, and that the template has quantised, or not at all.
        tied: whether the output embedding of the folder is the input embedding.
    """
    by_model, _ = renamer(found.model)

    def rename(name: str) -> str:
        return by_model(text_name(name))

    of_module: dict[str, list[Unit]] = {}
    for unit in units:
        module = rename(f"{unit.source}.weight").removesuffix(".weight")
        of_module.setdefault(module, []).append(unit)
    packed = {each.source for each in (*units, *decoded)}
    every = dense_of(shards, packed, decoded)
    dense = {rename(name): each for name, each in every.items() if not is_apart(config, name)}
    left, unused = set(of_module), set(dense)
    planned: list[Blocks | Dense] = []
    for name, entry in found.file.entries.items():
        if name in FACTOR_TENSORS:
            planned.append(Dense.of_template(found.file, name))
            continue
        target = found.names[name]
        module, _, part = target.rpartition(".")
        role = ".".join(name.split(".")[2:])
        if EXPERT_TENSORS.get(role) == part and part in STACKS:
            module, own = f"{module}.{STACKS[part]}", _of_role(of_module, module, part, role)
        else:
            own = of_module.get(module, []) if part == "weight" else []
        if own:
            planned.append(_blocks(found, name, own, entry.shape))
            left.discard(module)
        elif target in dense:
            planned.append(Dense.planned(found, name, dense[target], dtype))
            unused.discard(target)
        elif EXPERT_TENSORS.get(role) == part:
            raise Unsupported(
                f"{found.file.path}: {name} is {target} of the model, which the folder has not as "
                "packed experts: dense ones are not written"
            )
        else:
            raise CheckpointError(
                f"{found.file.path}: {name} is {target} of the model, which the folder has not: it "
                "is a file of another model"
            )
    head = _head_of(found)
    if _HEAD not in found.file.entries and head in left:
        (unit,) = of_module[head]
        planned.append(_blocks(found, _HEAD, [unit], (unit.n, unit.k)))
        left.discard(head)
    elif _HEAD not in found.file.entries and f"{head}.weight" in unused and not tied:
        planned.append(Dense.added(_HEAD, shards, dense[f"{head}.weight"], dtype))
    unused.discard(f"{head}.weight")
    left |= {name for name in unused if not name.endswith(_BUFFERS)}
    if left:
        raise CheckpointError(
            f"{found.file.path}: has no tensor for {min(left)}: it is a file of another model"
        )
    return planned


def _of_role(
    of_module: Mapping[str, list[Unit]], module: str, parameter: str, role: str
) -> list[Unit]:
    """Of a stack of experts, those whose rows a tensor has."""
    every = of_module.get(f"{module}.{STACKS[parameter]}", [])
    if role.startswith("ffn_gate_exps"):
        return [unit for unit in every if unit.first == 0]
    return [unit for unit in every if unit.first] if role.startswith("ffn_up_exps") else every


def _head_of(found: GgufModel) -> str:
    """The name of the output embedding."""
    head = found.model.get_output_embeddings()
    return next(name for name, module in found.model.named_modules() if module is head)


def _blocks(
    found: GgufModel,
    name: str,
    units: Sequence[Unit],
    shape: tuple[int, ...],
) -> Blocks:
    first = units[0]
    rows, k = sum(unit.n for unit in units), first.k
    if (math.prod(shape[:-1]), shape[-1]) != (rows, k):
        raise CheckpointError(
            f"{found.file.path}: {name} has shape {list(shape)}, but {first.source} {[rows, k]}: "
            "it is a file of another model"
        )
    form = form_of(first.type, first.k)
    order = None
    if name in found.file.entries and len(shape) == 2:
        order = found.row_order(name, transposed=False)
    return Blocks(name, tuple(units), form, (*shape[:-1], form.shape(1, k)[1]), order)
