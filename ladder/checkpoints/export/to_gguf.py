# SPDX-License-Identifier: Apache-2.0
"""A ladder folder becomes a GGUF file, by one that llama.cpp's converter has made of the model:
that says what a file of this model has to say, and what its tensors are called."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ladder.checkpoints.disk_room import scratch
from ladder.checkpoints.export.alike import check_alike
from ladder.checkpoints.export.dense import Dense
from ladder.checkpoints.export.gguf_plan import Blocks, plan_tensors
from ladder.checkpoints.export.units import Decoded, Unit
from ladder.checkpoints.gguf.blocks import BLOCKS
from ladder.checkpoints.gguf.encode import blocks_of, form_of
from ladder.checkpoints.gguf.header import SPLIT_COUNT, GgufFile
from ladder.checkpoints.gguf.model import open_model
from ladder.checkpoints.gguf.parts import read_model
from ladder.checkpoints.gguf.read import unpack
from ladder.checkpoints.gguf.repack import Rounding
from ladder.checkpoints.report import Report
from ladder.checkpoints.shards import ShardSet
from ladder.checkpoints.writer import is_one_of, require_space, writing
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.nn.report import Progress

#: Numbers of `general.file_type` (llama.cpp's LlamaFileType) of files that are mostly a format.
_FILE_TYPES = {
    "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10,
    "q3_k": 11, "q4_k": 14, "q5_k": 16, "q6_k": 18, "iq4_nl": 25, "tq2_0": 37,
    "mxfp4": 38, "nvfp4": 39,
}  # fmt: skip
_FILE_TYPE, _VERSION = "general.file_type", "general.quantization_version"
_SPLIT = SPLIT_COUNT.partition(".")[0] + "."
_ALIGNMENT = "general.alignment"
_AT_ONCE = 4 << 20  #: elements
#: Packed embeddings stay packed.
EMBEDDINGS = True


def objection(unit: Unit) -> str:
    """Why no format holds the weight of a module; "" where one does."""
    if unit.act_order:
        return "it has no order of columns (act-order)"
    try:
        form_of(unit.type, unit.k)
    except Unsupported as error:
        return str(error)
    return ""


def check_file(folder: Path, destination: Path, like: Path, *, force: bool) -> None:
    """Raise InvalidArgument unless a file ``destination`` may be written of ``folder``."""
    if destination.is_symlink():
        raise InvalidArgument(f"{destination} is a link: name the file that is to be written")
    if destination.is_dir():
        raise InvalidArgument(f"{destination} is a folder: name the file to write")
    if destination.exists() and not force:
        raise InvalidArgument(f"{destination} exists; pass force (--force) to replace it")
    if is_one_of(folder, destination.resolve().parents):
        raise InvalidArgument(f"{destination} must not lie in {folder}, which is read")
    if is_one_of(destination, (like,)):
        raise InvalidArgument(f"{destination} is the file that is read (--like)")


def write_gguf(
    shards: ShardSet,
    units: Sequence[Unit],
    decoded: Sequence[Decoded],
    destination: Path,
    like: Path,
    config: Mapping[str, Any],
    dtype: torch.dtype,
    report: Report,
    progress: Progress | None,
) -> None:
    """Write ``destination``, and into ``report`` what it has become.

    Args:
        config: of the folder.
        dtype: of matrices that are dense, and that ``like`` has quantised.
    Raises:
        Unsupported: a weight that no format holds; a model that transformers does not know in GGUF
            files.
        CheckpointError: ``like`` is damaged, or of another model.
        DestinationError: ``destination`` cannot be written.
    """
    template = read_model(like)
    if is_one_of(destination, template.parts):
        raise InvalidArgument(f"{destination} is a part of the file that is read (--like)")
    found = open_model(template)
    tied = bool(check_alike(found, config).tie_word_embeddings)
    planned = plan_tensors(found, shards, units, decoded, config, dtype, tied=tied)
    roundings: dict[str, Rounding] = {}
    used = Counter(each.form.name for each in planned if isinstance(each, Blocks))
    with scratch(destination) as folder:
        temporary = folder / destination.name
        writer = _writer(template, temporary, used.most_common(1)[0][0])
        for each in planned:
            shape, nbytes = each.bytes_shape, math.prod(each.bytes_shape)
            kind: Any = np.dtype(np.uint8)
            writer.add_tensor_info(each.name, shape, kind, nbytes, _format(each.number))
            report.bytes_after += nbytes
        require_space(folder, report.bytes_after)
        with writing(destination):
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
        done = 0
        for each in planned:
            if isinstance(each, Dense):
                data = each.read(shards, found)
            else:
                data = _read(each, shards, template, roundings)
            with writing(destination):
                writer.write_tensor_data(data.contiguous().view(torch.uint8).numpy())
            done += data.numel() * data.itemsize
            if progress is not None:
                progress(each.name, done, report.bytes_after)
        with writing(destination):
            writer.close()
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.rename(destination)
    report.shards = 1
    report.tensors_carried = sum(isinstance(each, Dense) for each in planned)
    for each in planned:
        if isinstance(each, Blocks):
            nbytes = math.prod(each.bytes_shape) // len(each.units)
            for unit in each.units:
                report.row_of(unit.type).add(unit.n, unit.k, nbytes)
    report.notes.append("formats: " + ", ".join(f"{name} {n}" for name, n in used.most_common()))
    for name, rounding in roundings.items():
        if rounding.most:
            report.notes.append(
                f"{name}: scales and minima rounded to float16 change weights by {rounding}"
            )


def _format(number: int) -> Any:
    import gguf

    return gguf.GGMLQuantizationType(number)


def _read(
    planned: Blocks, shards: ShardSet, template: GgufFile, roundings: dict[str, Rounding]
) -> Tensor:
    """The bytes of a tensor, and how far its weights are from those of the folder."""
    rows: list[Tensor] = []
    read: tuple[str, dict[str, Tensor]] = ("", {})
    rounding = roundings.setdefault(planned.form.name, Rounding())
    for unit in planned.units:
        if read[0] != unit.source:
            read = unit.source, unit.read(shards)
        weight = unit.weight(read[1], single_rows=True)
        step = max(1, _AT_ONCE // unit.k)
        for begin in range(0, unit.n, step):
            part = weight.narrow_rows(begin, min(step, unit.n - begin))
            rows.append(blocks_of(part, planned.form))
            try:
                back = unpack(template, planned.name, BLOCKS[planned.number], rows[-1])
            except CheckpointError:
                most = part.dequantize().abs().max().item()
                raise Unsupported(
                    f"{unit.source}: has values up to {most:.3g}, of which a scale or a minimum is "
                    f"beyond float16 (65504), as {planned.form.name} has them"
                ) from None
            rounding.add(back, part)
    every = torch.cat(rows) if len(rows) > 1 else rows[0]
    if planned.order is not None:
        moved = torch.empty_like(every)
        moved[planned.order] = every
        every = moved
    return every.reshape(planned.bytes_shape)


def _writer(template: GgufFile, path: Path, usual: str) -> Any:
    """A writer that has the fields of ``template``, but for those that are of its tensors."""
    import gguf

    writer = gguf.GGUFWriter(path, template.architecture)
    kinds = gguf.GGUFValueType
    for field in gguf.GGUFReader(template.path).fields.values():
        name, kind = field.name, field.types[0]
        own = name in ("general.architecture", _FILE_TYPE, _VERSION)
        if own or name.startswith((_SPLIT, "GGUF.", "quantize.")):
            continue
        if name == _ALIGNMENT:
            writer.add_custom_alignment(int(field.contents()))
            continue
        of = field.types[-1] if kind == kinds.ARRAY else None
        if of is not None and not field.contents():
            continue  # which gguf cannot write
        writer.add_key_value(name, field.contents(), kind, sub_type=of)
    writer.add_file_type(_FILE_TYPES[usual])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    return writer


def notes(units: Sequence[Unit]) -> list[str]:
    """Sentences about what the file does not say."""
    if any(unit.activation_type is not None for unit in units):
        return ["x comes as llama.cpp has it: a GGUF file has no activation_type"]
    return []


__all__ = ["EMBEDDINGS", "check_file", "notes", "objection", "write_gguf"]
