# SPDX-License-Identifier: Apache-2.0
"""A ladder folder becomes a GGUF file, by one that llama.cpp's converter has made of the model:
that says what a file of this model has to say, and what its tensors are called."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ladder.checkpoints.disk_room import scratch
from ladder.checkpoints.export.alike import check_alike, is_apart, text_name
from ladder.checkpoints.export.dense import Dense, dense_of
from ladder.checkpoints.export.units import Decoded, Unit
from ladder.checkpoints.gguf.blocks import BLOCKS
from ladder.checkpoints.gguf.encode import Form, blocks_of, form_of
from ladder.checkpoints.gguf.header import SPLIT_COUNT, GgufFile
from ladder.checkpoints.gguf.model import EXPERT_TENSORS, GgufModel, open_model
from ladder.checkpoints.gguf.parts import read_model
from ladder.checkpoints.gguf.read import unpack
from ladder.checkpoints.gguf.repack import Rounding
from ladder.checkpoints.gguf.rope import FACTOR_TENSORS
from ladder.checkpoints.model import renamer
from ladder.checkpoints.report import Report
from ladder.checkpoints.shards import ShardSet
from ladder.checkpoints.writer import is_one_of, require_space, writing
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.nn.dense_experts import STACKS
from ladder.nn.report import Progress

#: Numbers of `general.file_type` (llama.cpp's LlamaFileType) of files that are mostly a format.
_FILE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10,
    "q3_k": 11, "q4_k": 14, "q5_k": 16, "q6_k": 18, "iq4_nl": 25, "bf16": 32, "tq2_0": 37,
    "mxfp4": 38, "nvfp4": 39,
}  # fmt: skip
_FILE_TYPE, _VERSION = "general.file_type", "general.quantization_version"
_SPLIT = SPLIT_COUNT.partition(".")[0] + "."
_ALIGNMENT = "general.alignment"
_HEAD = "output.weight"
#: What old files of models have beside parameters.
_BUFFERS = "rotary_emb.inv_freq"
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


@dataclass(frozen=True)
class _Blocks:
    """A tensor of blocks: the units whose rows it has, one after the other."""

    name: str
    units: tuple[Unit, ...]
    form: Form
    bytes_shape: tuple[int, ...]
    order: Tensor | None = None  #: [N]: the row of the file that each row of the unit is

    @property
    def number(self) -> int:
        return self.form.number


_Planned = _Blocks | Dense


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
    check_alike(found, config)
    planned = _plan(found, shards, units, decoded, config, dtype)
    roundings: dict[str, Rounding] = {}
    used = Counter(each.form.name for each in planned if isinstance(each, _Blocks))
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
        if isinstance(each, _Blocks):
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


def _plan(
    found: GgufModel,
    shards: ShardSet,
    units: Sequence[Unit],
    decoded: Sequence[Decoded],
    config: Mapping[str, Any],
    dtype: torch.dtype,
) -> list[_Planned]:
    """The tensors of the file, in the order of the template."""
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
    planned: list[_Planned] = []
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
    head, is_tied = _head_of(found), config.get("tie_word_embeddings", True)
    if _HEAD not in found.file.entries and head in left:
        (unit,) = of_module[head]
        planned.append(_blocks(found, _HEAD, [unit], (unit.n, unit.k)))
        left.discard(head)
    elif _HEAD not in found.file.entries and f"{head}.weight" in unused and not is_tied:
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


def _blocks(found: GgufModel, name: str, units: Sequence[Unit], shape: tuple[int, ...]) -> _Blocks:
    first = units[0]
    form = form_of(first.type, first.k)
    rows, k = sum(unit.n for unit in units), first.k
    if (math.prod(shape[:-1]), shape[-1]) != (rows, k):
        raise CheckpointError(
            f"{found.file.path}: {name} has shape {list(shape)}, but {first.source} {[rows, k]}: "
            "it is a file of another model"
        )
    order = None
    if name in found.file.entries and len(shape) == 2:
        order = found.row_order(name, transposed=False)
    return _Blocks(name, tuple(units), form, (*shape[:-1], form.shape(1, k)[1]), order)


def _read(
    planned: _Blocks, shards: ShardSet, template: GgufFile, roundings: dict[str, Rounding]
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
    writer.add_file_type(_FILE_TYPES.get(usual, 1024))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    return writer


def notes(units: Sequence[Unit]) -> list[str]:
    """Sentences about what the file does not say."""
    if any(unit.activation_type is not None for unit in units):
        return ["x comes as llama.cpp has it: a GGUF file has no activation_type"]
    return []


__all__ = ["EMBEDDINGS", "check_file", "notes", "objection", "write_gguf"]
