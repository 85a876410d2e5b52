# SPDX-License-Identifier: Apache-2.0
"""Quantise a floating-point model folder, one tensor at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ladder.checkpoints import diffusion
from ladder.checkpoints.again import convert_again
from ladder.checkpoints.calibrated import Budget, Calibration, check_no_pipeline
from ladder.checkpoints.folder import QUANT_METHOD, StoredConfig, without_ties
from ladder.checkpoints.hqq_files import written_by_hqq
from ladder.checkpoints.mixtures import PlannedExperts
from ladder.checkpoints.mlx_config import settings_of
from ladder.checkpoints.model_files import (
    Described,
    ShardFiller,
    check_apart,
    write_model,
)
from ladder.checkpoints.plan import Planned, plan_folder
from ladder.checkpoints.report import Report
from ladder.checkpoints.shards import ShardSet, open_shards, read_json
from ladder.checkpoints.source import OLD_KEY, read_quantization, require_folder
from ladder.checkpoints.writer import carried_files, check_destination
from ladder.errors import CheckpointError, InvalidArgument
from ladder.nn.calibration import Calibrated
from ladder.nn.dense_experts import STACKS
from ladder.nn.layer_types import LayerTypes, check_bits, layer_types
from ladder.nn.mixed_precision import candidates_of
from ladder.nn.report import Progress
from ladder.nn.select import entries_of
from ladder.nn.select_conv import matrix_of
from ladder.nn.stack import PackedStack
from ladder.qat.scales import is_scale
from ladder.quantization import METHODS, quantize, weights_of
from ladder.types import TType

#: For each tensor of the files of which experts are made, the experts and their parameter.
_Merged = dict[str, tuple[PlannedExperts, str]]


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    weight_type: str | TType = "uint4",
    *,
    group_size: int | None = None,
    symmetric: bool | None = None,
    types: Mapping[str, str | TType] | Iterable[str | TType] | None = None,
    bits: float | None = None,
    measure: str = "one",
    method: str = "search",
    activation_type: str | None = None,
    skip: Iterable[str] | None = None,
    convolutions: bool = False,
    head: bool = False,
    embeddings: bool = False,
    parts: Iterable[str] | None = None,
    again: bool = False,
    calibration: Calibration | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Write the model folder ``src``, of transformers or diffusers, as the ladder folder ``dst``,
    its linear layers and experts quantised; of a pipeline of diffusers the models that ``parts``
    names.

    Which layers are packed, and which stay dense, is as :func:`ladder.convert` says; the report has
    a reason for each. Tensors are streamed, other files are carried over, and ``dst`` appears when
    it is whole, as with :func:`ladder.checkpoints.repack.repack`.

    Args:
        weight_type, group_size, symmetric, method: as :func:`ladder.quantize`.
        types: other types of some layers, as :func:`ladder.convert`, by their names in the model or
            in the files; with ``bits`` the types to choose from.
        bits: choose the type of each layer of ``types`` so that weights take so many bits on
            average, as :func:`ladder.choose_types` does with the batches of ``calibration``; then
            codes are calibrated. ``weight_type`` is for nothing then.
        measure: with ``bits``, as :func:`ladder.choose_types`.
        activation_type: of every packed layer when the folder is loaded, as
            :attr:`ladder.Linear.activation_type`.
        skip: modules to leave as they are, as :func:`ladder.convert`, by their names in the model
            or in the files; each must name one.
        convolutions: quantise ``nn.Conv2d``, too, those that :func:`ladder.convert` packs.
        head: quantise the output embedding, too, as :func:`ladder.convert` does: of a folder whose
            configuration ties it to the input embedding, which is copied, that says so no more.
        embeddings: quantise the input embedding, too, as :func:`ladder.convert` does: of a folder
            whose configuration ties the output embedding to it, that says so no more, and without
            ``head`` the dense weight is written as the output embedding's. With ``bits`` it has the
            widest of ``types``, which is not counted.
        parts: models of a pipeline, by their folders; by default its ``transformer`` or ``unet``.
            All others are copied. ``skip`` and ``types`` may have "part.module" for a module of one
            of them.
        again: ``src`` is a ladder folder, whose packed weights are quantised anew: their values are
            rounded once more, and the report says how far they move. What is dense stays dense, and
            what ``skip`` names as it is packed. ``activation_type`` is that of the new layers;
            static scales of x are dropped.
        calibration: the model of ``src``, loaded, and what it is called with: codes are chosen by
            what layers are given, as :func:`ladder.convert` does. Not for pipelines of diffusers.
        force: replace an existing ``dst``.
        progress: called with (module, done, count) after each module.
    Raises:
        InvalidArgument: arguments out of range, ``dst`` exists, a weight is not finite, or the
            model of ``calibration`` is not that of ``src`` or cannot be called with a batch.
        CheckpointError: ``src`` is damaged, or quantised already and not a ladder folder to be
            quantised ``again``.
        Unsupported: ``activation_type`` does not take a layer's weight; or transformers or
            diffusers, which knows the model's linear layers, is not installed.
    """
    if head and again:
        raise InvalidArgument(
            "head is for a folder that is not quantised; of a ladder folder ladder.convert packs "
            "the output embedding of the loaded model"
        )
    if embeddings and again:
        raise InvalidArgument(
            "embeddings is for a folder that is not quantised; of a ladder folder ladder.convert "
            "packs the input embedding of the loaded model"
        )
    if method not in METHODS:
        raise InvalidArgument(f'method is "{method}", not one of {", ".join(METHODS)}')
    budget = None
    if bits is not None:
        if calibration is None:
            raise InvalidArgument(
                f"bits is {bits!r}, and calibration is not given: types are chosen by data"
            )
        if types is None:
            raise InvalidArgument(f"bits is {bits!r}, and there are no types to choose from")
        budget = Budget(bits, tuple(candidates_of(types, group_size, symmetric)), measure)
        by_layer, calibration = LayerTypes(budget.widest), calibration.kept()
    else:
        given: Any = types
        by_layer = layer_types(weight_type, group_size, symmetric, given)
        check_bits(by_layer, "convert writes")
    folder, destination = Path(src), Path(os.path.abspath(dst))
    require_folder(folder, or_pipeline=True)
    check_apart(folder, destination)
    check_destination(destination, force=force)
    how = _How(
        method, activation_type, convolutions, head, embeddings, again, calibration, budget,
        progress,
    )  # fmt: skip
    of_pipeline = diffusion.is_pipeline(folder)
    if calibration is not None:
        check_no_pipeline(folder)
    if parts is not None and not of_pipeline:
        raise InvalidArgument(
            f"parts are models of a pipeline of diffusers, and {folder} has no {diffusion.INDEX}"
        )
    entries = None if skip is None else entries_of("skip", skip)
    if of_pipeline:
        chosen = diffusion.parts_of_pipeline(folder, parts)
        report = diffusion.convert_pipeline(
            folder, destination, chosen, entries, by_layer, partial(_convert, how), force=force
        )
    else:
        report = _convert(how, folder, destination, entries, by_layer, force=force)
    report.destination = str(dst)
    return report


@dataclass(frozen=True)
class _How:
    """What is to be made of every layer that is packed."""

    method: str
    activation_type: str | None
    convolutions: bool
    head: bool
    embeddings: bool
    again: bool
    calibration: Calibration | None
    budget: Budget | None
    progress: Progress | None


def _convert(
    how: _How,
    folder: Path,
    destination: Path,
    skip: tuple[str, ...] | None,
    types: LayerTypes,
    *,
    force: bool = False,
) -> Report:
    """As :func:`convert`, of one model, whose arguments have been checked."""
    start = time.perf_counter()
    activation_type = how.activation_type
    config = read_json(folder / "config.json")
    given = (config.get("quantization_config"), config.get(OLD_KEY), settings_of(config))
    if any(each is not None for each in given):
        _, found = read_quantization(folder, config)
        if found != QUANT_METHOD:
            raise CheckpointError(
                f"{folder} is quantised already, quant_method {found!r}: `ladder repack` makes a "
                "ladder folder of it, whose weights can be quantised again"
            )
        if not how.again:
            raise CheckpointError(
                f"{folder} is quantised already, quant_method {found!r}: --again (again=True) "
                "quantises its values anew, which rounds them twice"
            )
        return convert_again(
            folder,
            destination,
            types,
            method=how.method,
            activation_type=activation_type,
            skip=skip,
            convolutions=how.convolutions,
            calibration=how.calibration,
            budget=how.budget,
            force=force,
            progress=how.progress,
        )
    if how.again:
        raise CheckpointError(f"{folder} is not quantised: nothing is to be quantised again")
    if written_by_hqq(folder):
        raise CheckpointError(f"{folder} is quantised already, by hqq: `ladder repack` reads it")
    shards = open_shards(folder)
    if learned := sorted(filter(is_scale, shards.home)):
        raise CheckpointError(
            f"{folder} has learned scales of ladder.qat, {learned[0]} and {len(learned) - 1} more, "
            "and others would be found here: load it into a model that is prepared as it was "
            "(load_state_dict), and ladder.qat.convert packs that"
        )
    make_plan = partial(
        plan_folder, folder, shards, skip,
        convolutions=how.convolutions, head=how.head, embeddings=how.embeddings,
    )  # fmt: skip
    plan = make_plan(types)
    made, chosen = None, None
    if how.budget is not None and how.calibration is not None:
        chosen = how.calibration.choose(
            plan.wanted(), how.budget, how.method, activation_type, how.progress
        )
        types = LayerTypes(types.usual, chosen)
        plan = make_plan(types)
    plan.check_activations(activation_type)
    conversion, plans, filters = plan.conversion, plan.modules, plan.filters
    made_of: dict[str, list[str]] = {}
    for name, each in plans.items():
        made_of.setdefault(each.source, []).append(name)
    if how.calibration is not None:
        in_model = LayerTypes(types.usual, plan.types_in_model())
        made = how.calibration.run(plan.wanted(), in_model, how.method, how.progress, destination)
        conversion.errors, conversion.blocks = made.errors, made.blocks
    merged = {
        name: (each, parameter)
        for each in plan.experts
        for parameter, sources in each.sources.items()
        for name in sources.names
    }
    copies = {name: [name] for name in shards.home if name not in merged}
    for name in plans:
        copies.pop(f"{name}.weight", None)
    for name, source in plan.kept.items():
        copies.setdefault(source, []).append(name)
    files = carried_files(folder, shards.files | {"config.json"})
    report = Report(
        str(folder),
        str(destination),
        "none",
        modules=len(conversion.packed),
        files_carried=len(files),
        bytes_before=shards.nbytes,
        tensors_carried=sum(map(len, copies.values())),
        conversion=conversion,
        chosen=chosen,
    )
    stored = StoredConfig.describing(
        conversion.packed,
        plan.dense,
        activation_type=activation_type,
        convolutions=filters,
        embeddings=plan.embeddings,
    )
    report.shards, report.bytes_after = write_model(
        folder,
        destination,
        _described(shards, plans, made_of, copies, merged),
        partial(_fill, how, shards, plans, made_of, copies, merged, made, report),
        files=files,
        force=force,
        **diffusion.config_and_stem(stored, without_ties(config) if plan.untied else config),
    )
    report.seconds = time.perf_counter() - start
    conversion.log()
    return report


def _described(
    shards: ShardSet,
    plans: dict[str, Planned],
    made_of: Mapping[str, Sequence[str]],
    copies: Mapping[str, Sequence[str]],
    merged: _Merged,
) -> list[dict[str, Described]]:
    """The tensors of each shard; shards follow the source's.

    Args:
        made_of: packed modules, by the tensors that they are made of.
        copies: what tensors are called that are copied.
    """
    described: list[dict[str, Described]] = [{} for _ in shards.shards]
    for name, home in shards.home.items():
        for module in made_of.get(name, ()):
            parts = plans[module].tensors.items()
            described[home] |= {f"{module}.{part}": what for part, what in parts}
        if name in merged:
            experts, parameter = merged[name]
            if name == experts.sources[parameter].names[0]:  # stands for all of them
                described[home] |= experts.described(parameter)
        for copy in copies.get(name, ()):
            entry = shards.entry(name)
            described[home][copy] = (entry.dtype, entry.shape)
    return described


def _fill(
    how: _How,
    shards: ShardSet,
    plans: dict[str, Planned],
    made_of: Mapping[str, Sequence[str]],
    copies: Mapping[str, Sequence[str]],
    merged: _Merged,
    made: Calibrated | None,
    report: Report,
    index: int,
    file: ShardFiller,
) -> None:
    progress = how.progress if made is None else None  # calibration has told it
    for name in (name for name, home in shards.home.items() if home == index):
        if name in merged:
            experts, parameter = merged[name]
            if name != experts.sources[parameter].names[0]:
                continue
            given = None if made is None else made.stacks[experts.layer.name].get(parameter)
            tensors = experts.tensors(parameter, shards, how.method, given)
            for full, tensor in tensors.items():
                file.write(full, tensor)
            if parameter in STACKS:
                shape = experts.layer.layout.shape
                stack: PackedStack = getattr(experts.room, STACKS[parameter])
                row = report.row_of(stack.weight_type)
                row.add(shape[0] * stack.out_features, stack.in_features, stack.nbytes)
                if progress is not None:
                    called = f"{experts.name}.{STACKS[parameter]}"
                    progress(called, report.done, report.modules)
            continue
        for copy in copies.get(name, ()):
            file.copy(shards, name, copy)
        for module in made_of.get(name, ()):
            planned = plans[module]
            if made is not None and not isinstance(planned.module, nn.Embedding):
                weight = made.weights[planned.name].to("cpu")
            else:
                dense = shards.read([name])[name]
                with weights_of(name):
                    matrix = matrix_of(planned.module, dense)
                    weight = quantize(matrix, planned.type, method=how.method)
            for part, tensor in weight.tensors().items():
                file.write(f"{module}.{part}", tensor)
            report.row_of(planned.type).add(planned.n, planned.k, weight.nbytes)
            if progress is not None:
                progress(module, report.done, report.modules)
