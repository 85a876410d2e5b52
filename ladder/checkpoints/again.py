# SPDX-License-Identifier: Apache-2.0
"""A ladder folder whose packed weights are quantised anew: ``ladder convert --again``."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints import diffusion
from ladder.checkpoints.again_model import PARAMETERS, Homes, Made
from ladder.checkpoints.calibrated import Budget, Calibration
from ladder.checkpoints.folder import QUANT_METHOD, StoredConfig
from ladder.checkpoints.info import describe
from ladder.checkpoints.model_files import (
    Described,
    ShardFiller,
    describe_tensors,
    nbytes,
    write_model,
)
from ladder.checkpoints.report import Report
from ladder.checkpoints.shards import ShardSet, open_shards, read_json
from ladder.checkpoints.writer import carried_files
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.nn.layer_types import LayerTypes
from ladder.nn.linear import Linear
from ladder.nn.report import Progress
from ladder.nn.select import Left, check_entries, covers
from ladder.ops import activations
from ladder.quantization import quantize, weights_of
from ladder.types import TType, parse
from ladder.weight import PARTS, Weight

#: Kernels of the weights as they were (``ladder tune``).
_PLANS = "plans.json"
_NAMED = 4  #: modules that a report names


@dataclass(frozen=True)
class _Packed:
    """A packed module of the folder, as :func:`ladder.checkpoints.info.describe` has it."""

    name: str
    n: int
    k: int
    type: TType
    experts: int | None  #: weights of a stack
    parts: tuple[str, ...]  #: that the files have
    k_is_known: bool  #: False: ``k`` is what rows have room for

    def weight(self, tensors: Mapping[str, Tensor], ttype: TType) -> Weight:
        """Of ``tensors`` by part, to be of ``ttype``. Raises CheckpointError where they are no such
        weight, or leave K open."""
        weight = Weight(self.type, (self.n, self.k), **tensors)
        try:
            weight.check(self.name)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        self._check_columns(weight, ttype)
        return weight

    def _check_columns(self, weight: Weight, ttype: TType) -> None:
        """Rows are whole words, so K is what they have room for, or fewer; the files do not say."""
        if self.k_is_known or _parts(self, ttype) == _parts(replace(self, k=self._fewest), ttype):
            return
        if not weight.codes()[:, -1].any():
            raise CheckpointError(
                f"{self.name}: rows of {weight.qweight.shape[1]} words of {self.type} have "
                f"{self._fewest} to {self.k} columns, which the folder does not say, and column "
                f"{self.k - 1} has code 0 in all rows, as what fills the last word has; {ttype} "
                "needs the number"
            )

    @property
    def _fewest(self) -> int:
        """Columns that take as many words as ``k``."""
        return (self.type.words(self.k) - 1) * 32 // self.type.bits + 1


@dataclass
class _Moved:
    """How far weights move: sums over all."""

    error: float = 0.0
    size: float = 0.0

    def add(self, before: Tensor, after: Weight) -> None:
        self.error += (after.dequantize() - before).double().square().sum().item()
        self.size += before.double().square().sum().item()

    def note(self) -> str:
        share = math.sqrt(self.error / self.size) if self.size else 0.0
        return (
            f"quantised anew: weights move by {share:.2%} of their size (root mean square), beside "
            "what quantising them first has cost"
        )


def convert_again(
    folder: Path,
    destination: Path,
    types: LayerTypes,
    *,
    method: str,
    activation_type: str | None,
    skip: tuple[str, ...] | None,
    convolutions: bool,
    calibration: Calibration | None,
    budget: Budget | None,
    force: bool,
    progress: Progress | None,
) -> Report:
    """Write the ladder folder ``folder`` as ``destination``, its packed weights of ``types``, by
    their names in the files.

    Their values are rounded once more. What is dense stays dense, ``skip`` stays as it is packed,
    and so do convolutions unless ``convolutions``, and embeddings. Arguments have been checked as
    :func:`ladder.checkpoints.convert.convert` does; errors are those.
    """
    start = time.perf_counter()
    config = read_json(folder / "config.json")
    stored = StoredConfig.from_dict(config["quantization_config"])
    shards = open_shards(folder)
    modules = _modules(folder, shards)
    check_entries("skip", skip or (), modules)
    chosen = {
        name: module
        for name, module in modules.items()
        if (convolutions or name not in stored.convolutions)
        and name not in stored.embeddings
        and not any(covers(entry, name) for entry in skip or ())
    }
    if not chosen:
        raise CheckpointError(f"{folder}: no packed layer is left to convert")
    homes = None if calibration is None else Homes.of(calibration, chosen, stored.convolutions)
    picked = None
    if budget is not None and homes is not None:
        picked = homes.choose(budget, method, activation_type, progress)
        type_of = {name: picked[homes.called(name)] for name in chosen}
    else:
        type_of = _types_of(types, chosen, modules.keys() - chosen.keys())
    for name, module in chosen.items():
        if why := type_of[name].superblock_objection(module.k):
            raise InvalidArgument(f"{name}: {why}")
        if name in stored.convolutions:
            continue
        if why := activations.objection(activation_type, type_of[name], module.k):
            raise Unsupported(f"{name}: {why}")
    files = carried_files(folder, shards.files | {"config.json", _PLANS})
    report = Report(
        str(folder),
        str(destination),
        QUANT_METHOD,
        modules=len(chosen),
        files_carried=len(files),
        bytes_before=shards.nbytes,
        tensors_carried=len(shards.home) - sum(len(each.parts) for each in chosen.values()),
        chosen=picked,
    )
    if kept := sorted(modules.keys() - chosen.keys()):
        more = f" and {len(kept) - _NAMED} more" if len(kept) > _NAMED else ""
        report.notes.append(f"packed as before: {', '.join(kept[:_NAMED])}{more}")
    wanted = StoredConfig.describing(
        {n: str(type_of.get(n, module.type)) for n, module in modules.items()},
        stored.modules_to_not_convert,
        source=stored.source,
        activation_types={
            name: activation_type if name in chosen else stored.activation_type_of(name)
            for name in modules
            if name not in stored.convolutions and name not in stored.embeddings
        },
        convolutions=stored.convolutions,
        embeddings=stored.embeddings,
    )
    moved, made = _Moved(), None
    if homes is not None:
        made = homes.calibrated(type_of, method, progress, destination)
        report.notes += made.said
        progress = None
    fill = partial(_fill, shards, chosen, type_of, method, report, moved, made, progress)
    report.shards, report.bytes_after = write_model(
        folder,
        destination,
        _described(shards, chosen, type_of),
        fill,
        files=files,
        force=force,
        **diffusion.config_and_stem(wanted, config),
    )
    report.notes.append(moved.note())
    report.seconds = time.perf_counter() - start
    return report


def _types_of(types: LayerTypes, chosen: Iterable[str], kept: Iterable[str]) -> dict[str, TType]:
    """The type of each chosen module. Raises InvalidArgument for an entry that names none."""
    names = {name: _names_of(name) for name in chosen}
    left = {name: Left("it stays as it is packed", 0) for name in kept}
    types.check_named((name for each in names.values() for name in each), left)
    return {name: types.of(*each) for name, each in names.items()}


def _names_of(name: str) -> tuple[str, ...]:
    """Of a stack of experts also by the parameter that it is made of, as
    :func:`ladder.nn.layer_types.names_of`."""
    owner, _, stack = name.rpartition(".")
    parameter = PARAMETERS.get(stack)
    return (name,) if parameter is None else (name, f"{owner}.{parameter}")


def _modules(folder: Path, shards: ShardSet) -> dict[str, _Packed]:
    found = {}
    for row in describe(folder)["modules"]:
        name = row["name"]
        # A static scale of x is of another rounding.
        parts = tuple(p for p in (*PARTS, "input_scale") if f"{name}.{p}" in shards.home)
        # Layers whose K is a multiple of 32 fill their words, whatever the type.
        known = "filters" in row or row["act_order"] or row["k"] % 32 == 0
        found[name] = _Packed(
            name, row["n"], row["k"], parse(row["type"]), row.get("experts"), parts, known
        )
    return found


def _parts(module: _Packed, ttype: TType) -> dict[str, Described]:
    alone = Linear(module.k, module.n, False, ttype, device="meta").packed_weight.tensors()
    if module.experts is not None:
        alone = {name: part.expand(module.experts, *part.shape) for name, part in alone.items()}
    return describe_tensors(alone)


def _owner(name: str, chosen: Mapping[str, Any]) -> tuple[str, str]:
    """The chosen module and part that a tensor is; "" and its name where it is none."""
    module, _, part = name.rpartition(".")
    return (module, part) if module in chosen and part in chosen[module].parts else ("", name)


def _described(
    shards: ShardSet, chosen: Mapping[str, _Packed], type_of: Mapping[str, TType]
) -> list[dict[str, Described]]:
    described: list[dict[str, Described]] = [{} for _ in shards.shards]
    for name, home in shards.home.items():
        module, part = _owner(name, chosen)
        if not module:
            entry = shards.entry(name)
            described[home][name] = (entry.dtype, entry.shape)
        elif part == "qweight":
            parts = _parts(chosen[module], type_of[module])
            described[home] |= {f"{module}.{each}": what for each, what in parts.items()}
    return described


def _fill(
    shards: ShardSet,
    chosen: Mapping[str, _Packed],
    type_of: Mapping[str, TType],
    method: str,
    report: Report,
    moved: _Moved,
    made: Made | None,
    progress: Progress | None,
    index: int,
    file: ShardFiller,
) -> None:
    for name in (name for name, home in shards.home.items() if home == index):
        owner, part = _owner(name, chosen)
        if not owner:
            file.copy(shards, name)
        if not owner or part != "qweight":
            continue
        module, ttype = chosen[owner], type_of[owner]
        read = {
            p: shards.read([f"{owner}.{p}"])[f"{owner}.{p}"] for p in module.parts if p in PARTS
        }
        for expert in range(module.experts or 1):
            of = {p: t[expert] for p, t in read.items()} if module.experts is not None else read
            values = module.weight(of, ttype).dequantize()
            if made is not None:
                weight = made.weights[owner][expert].to("cpu")
            else:
                with weights_of(owner), torch.no_grad():
                    weight = quantize(values, ttype, method=method)
            moved.add(values, weight)
            for each, tensor in weight.tensors().items():
                file.write(f"{owner}.{each}", tensor, expert * tensor.numel() * tensor.itemsize)
        size = sum(nbytes(*what) for what in _parts(module, ttype).values())
        report.row_of(ttype).add(module.n * (module.experts or 1), module.k, size)
        if progress is not None:
            progress(owner, report.done, report.modules)
