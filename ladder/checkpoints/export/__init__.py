# SPDX-License-Identifier: Apache-2.0
"""``ladder export``: a ladder folder becomes one of another package, with the same weights."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.export import to_compressed_tensors, to_gguf, to_gptq, to_mlx
from ladder.checkpoints.export.alike import is_apart
from ladder.checkpoints.export.units import Decoded, Unit, is_of, read_units
from ladder.checkpoints.folder import QUANT_METHOD, StoredConfig, without_ladder
from ladder.checkpoints.header import DTYPE_NAMES
from ladder.checkpoints.info import CONV1D
from ladder.checkpoints.model_files import (
    Described,
    ShardFiller,
    check_apart,
    nbytes,
    write_model,
)
from ladder.checkpoints.report import Report, TypeRow
from ladder.checkpoints.shards import ShardSet, open_shards, read_json
from ladder.checkpoints.source import require_folder
from ladder.checkpoints.writer import carried_files, check_destination
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.nn.report import Progress
from ladder.nn.select import check_entries, entries_of

#: What writes each format.
FORMATS: Mapping[str, ModuleType] = {
    "compressed-tensors": to_compressed_tensors,
    "gptq": to_gptq,
    "mlx": to_mlx,
}
#: The format of files, not folders, of llama.cpp.
GGUF = "gguf"
#: Kernels of ladder's (``ladder tune``), which no other package knows.
_PLANS = "plans.json"
_NAMED = 4  #: modules that a report names


def export(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    format: str,
    *,
    dense: Iterable[str] = (),
    like: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Write the ladder folder ``src`` as the folder, or GGUF file, ``dst`` of another package, for
    programs that do not know ladder.

    Codes, scales and zero points stay what they are, so that ``ladder repack`` of ``dst`` gives the
    weights of ``src``; only the reciprocal of NVFP4's second scale is rounded, and scales of
    "gguf", which are float16, and the report says so. Scales of superblocks become float32, but in
    a GGUF file of the same format. Packed convolutions, embeddings but for MLX
    and GGUF, and what ``dense`` names become dense, in the dtype of the configuration, as a model
    loaded in that dtype has them; in a GGUF file in the dtype of ``like``. Stacks of experts become
    single projections, but in a GGUF file. Tensors are streamed, and ``dst`` appears when it is
    whole, as with :func:`ladder.checkpoints.repack`.

    Args:
        format: "compressed-tensors" (integers of 1 to 8 bits, FP8, MXFP4, MXFP6, MXFP8, NVFP4),
            "gptq" (unsigned integers of 2, 3, 4 and 8 bits) or "mlx" (integers of 1 to 8 bits in
            groups, MXFP4, MXFP8), or "gguf" (integers of 1 to 8 bits in groups, with one or two
            levels of scales, ternary, MXFP4).
        dense: modules to decode, by whole names or whole parts of them, as ``skip`` of
            :func:`ladder.convert`.
        like: with "gguf" any GGUF file of the same model, dense or quantised, of llama.cpp's
            converter: the fields, the tokenizer and the names of tensors come from it.
        force: replace an existing ``dst``.
        progress: called with (tensor, bytes written, bytes in all) after each piece.
    Raises:
        InvalidArgument: an unknown ``format``, no ``like`` where one is needed, an entry of
            ``dense`` that names no packed module, ``dst`` exists, or one of the folders lies in the
            other.
        Unsupported: a weight that ``format`` does not hold as it is, naming the module.
        CheckpointError: ``src`` is damaged, no ladder folder, or nothing of it stays packed; or
            ``like`` is damaged, or a file of another model.
        DestinationError: ``dst`` cannot be written: read-only, or a full disk.
    """
    start = time.perf_counter()
    if format not in (*FORMATS, GGUF):
        raise InvalidArgument(f'format is "{format}", not one of {", ".join((*FORMATS, GGUF))}')
    if (like is None) == (format == GGUF):
        raise InvalidArgument(
            'like (--like) names a GGUF file of the model, which "gguf" needs and no other has'
        )
    writer = FORMATS.get(format, to_gguf)
    folder, destination = Path(src), Path(os.path.abspath(dst))
    if like is not None:
        to_gguf.check_file(folder, destination, Path(like), force=force)
    else:
        check_apart(folder, destination)
        check_destination(destination, force=force)
    require_folder(folder)
    config = read_json(folder / "config.json")
    stored = _stored(folder, config)
    shards = open_shards(folder)
    entries = entries_of("dense", dense)
    units, decoded = read_units(folder, shards, stored, entries, embeddings=writer.EMBEDDINGS)
    check_entries("dense", entries, (each.source for each in (*units, *decoded)))
    if like is not None:
        units = [unit for unit in units if not is_apart(config, unit.source)]
        decoded = [each for each in decoded if not is_apart(config, each.source)]
    else:
        units = [unit.with_float_scales() for unit in units]
    if not units:
        raise CheckpointError(f"{folder}: no packed layer is left to export")
    for unit in units:
        if why := writer.objection(unit):
            hint = ". dense (--dense) names modules to decode" if unit.expert is None else ""
            raise Unsupported(
                f"{unit.source}: {format} cannot hold a weight of "
                f"{unit.stored_type or unit.type}: {why}{hint}"
            )
    report = Report(
        str(folder), str(dst), QUANT_METHOD, modules=len(units), bytes_before=shards.nbytes
    )
    report.notes += _notes(units, decoded, writer)
    if like is not None and (apart := sum(is_apart(config, name) for name in shards.home)):
        report.notes.append(
            f"{apart} tensors are left out, which a file of the language model has not"
        )
    if like is not None:
        dtype = _dtype(config)
        to_gguf.write_gguf(
            shards, units, decoded, destination, Path(like), config, dtype, report, progress
        )
        report.seconds = time.perf_counter() - start
        return report
    left = {*stored.modules_to_not_convert, *(each.name for each in decoded if each.is_linear)}
    left -= {unit.source for unit in units}  # a tied head that is packed may be listed, too
    fields = writer.config(units, sorted(left))
    settings = writer.settings(fields)
    files = carried_files(folder, shards.files | {"config.json", _PLANS})
    packed = {each.source for each in (*units, *decoded)}
    others = [name for name in shards.home if not is_of(name, packed)]
    described = [dict[str, Described]() for _ in shards.shards]
    report.tensors_carried, report.files_carried = len(others), len(files)
    for unit in units:
        parts = _parts(unit, writer, settings)
        described[_home(shards, unit.source)] |= {f"{unit.name}.{p}": w for p, w in parts.items()}
        row = report.types.setdefault(str(unit.type), TypeRow())
        row.add(unit.n, unit.k, sum(nbytes(*what) for what in parts.values()))
    dtype = _dtype(config)
    for each in decoded:
        what = DTYPE_NAMES[dtype], each.shape
        described[_home(shards, each.source)][f"{each.name}.weight"] = what
    for name in others:
        entry = shards.entry(name)
        described[shards.home[name]][name] = entry.dtype, entry.shape
    report.shards, report.bytes_after = write_model(
        folder,
        destination,
        described,
        partial(_fill, shards, units, decoded, others, writer, settings, dtype),
        files=files,
        config=without_ladder(config) | dict.fromkeys(writer.KEYS, fields),
        force=force,
        progress=progress,
    )
    report.seconds = time.perf_counter() - start
    return report


def _parts(unit: Unit, writer: ModuleType, settings: Any) -> dict[str, Described]:
    """dtype and shape of each part, as who reads the folder expects them."""
    shapes = writer.shapes(unit, settings.for_module(unit.name))
    scales = unit.type.scale_dtype
    assert scales is not None
    return {part: (DTYPE_NAMES[own or scales], shape) for part, (shape, own) in shapes.items()}


def _stored(folder: Path, config: Mapping[str, Any]) -> StoredConfig:
    fields = config.get("quantization_config")
    if not isinstance(fields, dict) or fields.get("quant_method") != QUANT_METHOD:
        raise CheckpointError(
            f"{folder} is no ladder folder: `ladder convert` or `ladder repack` makes one"
        )
    if "_class_name" in config:
        raise Unsupported(f"{folder} is a model of diffusers, of which other packages read nothing")
    if config.get("model_type") in CONV1D:
        raise Unsupported(
            f"{folder} is of model_type {config['model_type']}, whose layers are Conv1D: other "
            "packages quantise nn.Linear only"
        )
    return StoredConfig.from_dict(fields)


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    """Of what is decoded: that of the model."""
    said = config.get("dtype") or config.get("torch_dtype") or "float32"
    found = getattr(torch, str(said).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise CheckpointError(f"config.json has dtype {said!r}, not a floating-point one of torch")
    return found


def _home(shards: ShardSet, module: str) -> int:
    return shards.home[f"{module}.qweight"]


def _notes(units: list[Unit], decoded: list[Decoded], writer: ModuleType) -> list[str]:
    notes = []
    if decoded:
        more = f" and {len(decoded) - _NAMED} more" if len(decoded) > _NAMED else ""
        names = ", ".join(each.name for each in decoded[:_NAMED])
        notes.append(f"decoded: {names}{more}")
    if writer is not to_gguf and any(unit.type.scale2 is not None for unit in units):
        notes.append(
            "second scales are written as their reciprocals in float32, by which others divide: "
            "weights change by at most 2^-23 of themselves"
        )
    if any(unit.stored_type is not None for unit in units):
        notes.append(
            "scales of superblocks are written as the float32 products of both levels: weights are "
            "the same, and take more bits"
        )
    return notes + list(writer.notes(units))


def _fill(
    shards: ShardSet,
    units: list[Unit],
    decoded: list[Decoded],
    others: list[str],
    writer: ModuleType,
    settings: Any,
    dtype: torch.dtype,
    index: int,
    file: ShardFiller,
) -> None:
    read: tuple[str, dict[str, Tensor]] = ("", {})
    for unit in units:
        if _home(shards, unit.source) != index:
            continue
        if read[0] != unit.source:  # units of one stack follow each other
            read = unit.source, unit.read(shards)
        scheme = settings.for_module(unit.name)
        single_rows = writer.takes_single_rows(unit)
        try:
            parts = writer.tensors(unit.weight(read[1], single_rows=single_rows), scheme)
        except Unsupported as error:
            raise Unsupported(f"{unit.source}: {error}") from None
        if unit.static and writer is to_compressed_tensors:
            parts["input_scale"] = unit.of_expert(read[1]["input_scale"])
        for part, tensor in parts.items():
            file.write(f"{unit.name}.{part}", tensor)
    for each in decoded:
        if _home(shards, each.source) == index:
            file.write(f"{each.name}.weight", each.values(shards).to(dtype))
    for name in others:
        if shards.home[name] == index:
            file.copy(shards, name)


__all__ = ["FORMATS", "GGUF", "export"]
