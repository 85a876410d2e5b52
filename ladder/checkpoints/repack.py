# SPDX-License-Identifier: Apache-2.0
"""``ladder repack``: a GPTQ or AWQ folder becomes a ladder folder with the very same weights."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.header import DTYPE_BITS, TORCH_DTYPES, read_header
from ladder.checkpoints.layer import Layer, Side, ttype_of
from ladder.checkpoints.source import FALLBACKS, Source, open_folder
from ladder.checkpoints.writer import (
    ShardWriter,
    carried_files,
    carry,
    check_destination,
    new_folder,
    require_space,
    write_json,
)  # fmt: skip
from ladder.errors import InvalidArgument

#: progress(bytes written, bytes in all, name of the tensor just written)
Progress = Callable[[int, int, str], None]

_DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass
class TypeRow:
    """What one tType took of a checkpoint."""

    modules: int = 0
    weights: int = 0  #: numbers, N * K summed
    bytes: int = 0  #: codes, scales, zeros and g_idx


@dataclass
class Report:
    """What :func:`repack` did. ``bytes_before`` and ``bytes_after`` count tensors only."""

    source: str
    destination: str
    quant_method: str
    modules: int = 0
    tensors_carried: int = 0  #: copied as they are: embeddings, norms, biases
    files_carried: int = 0
    shards: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    types: dict[str, TypeRow] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Planned:
    """One module, checked: everything of it but the codes has been looked at."""

    layer: Layer
    type: str
    tensors: dict[str, tuple[str, tuple[int, ...]]]  #: part -> dtype, shape

    @property
    def nbytes(self) -> int:
        return sum(_nbytes(*described) for described in self.tensors.values())


def repack(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    force: bool = False,
    progress: Progress | None = None,
    v1_zeros: str = "word",
) -> Report:
    """Write the GPTQ or AWQ model folder ``src`` as the ladder folder ``dst``.

    Codes, scales and zeros stay what they are; only their order changes (docs/format.md). Tensors
    that are not quantised and all other files are copied, sub-folders too, except the old weights,
    their index, quantize_config.json, quant_config.json, .git and .cache. Shards follow the
    source's.

    Tensors are streamed: memory holds the largest quantised tensor and about 100 MiB, and disk
    needs room for the whole result beside ``src``. The result appears under its name when whole.

    Args:
        src: a folder that :func:`open_folder` reads.
        dst: a folder that does not exist or is empty, outside ``src``.
        force: replace an existing ``dst``.
        progress: called after each piece is written.
        v1_zeros: "word" or "field": how GPTQ v1 zeros are read, see ``gptq.Config``.
    Raises:
        InvalidArgument: ``dst`` exists, or one of the folders lies in the other, or as open_folder.
        CheckpointError, Unsupported: as open_folder; a tensor is missing, damaged or not finite.
        DestinationError: ``dst`` cannot be written: read-only, or a full disk.
    """
    start = time.perf_counter()
    folder, destination = Path(src), Path(os.path.abspath(dst))
    check_apart(folder, destination)
    check_destination(destination, force=force)
    source = open_folder(folder, v1_zeros=v1_zeros)
    plans = {module: _plan(source, module) for module in source.modules}
    files = carried_files(folder, source.shards.files | {"config.json", *FALLBACKS})
    report = Report(
        source=str(folder),
        destination=str(dst),
        quant_method=source.method,
        modules=len(plans),
        tensors_carried=len(source.others),
        files_carried=len(files),
        bytes_before=source.shards.nbytes,
    )
    for plan in plans.values():
        row = report.types.setdefault(plan.type, TypeRow())
        row.modules += 1
        row.weights += plan.layer.n * plan.layer.k
        row.bytes += plan.nbytes
    config = source.config | _config(source, plans).entries()
    with new_folder(destination, force=force) as temporary:
        _write_shards(source, plans, files, temporary, report, progress)
        carry(folder, temporary, files)
        write_json(temporary / "config.json", config)
    report.seconds = time.perf_counter() - start
    return report


def check_apart(folder: Path, destination: Path) -> None:
    """Raise InvalidArgument when one of the folders lies in the other."""
    inside, outside = folder.resolve(), destination.resolve()
    if inside == outside or inside in outside.parents or outside in inside.parents:
        raise InvalidArgument(f"{destination} and {folder} must not lie in each other")


def _plan(source: Source, module: str) -> _Planned:
    layer = source.layer(module)
    side = source.side(layer)
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    tensors = {"qweight": ("I32", (layer.n, layer.words))}
    for part, tensor in _side_parts(side).items():
        tensors[part] = (_DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))
    return _Planned(layer, str(ttype_of(layer, side)), tensors)


def _side_parts(side: Side) -> dict[str, Tensor]:
    parts = {"scales": side.scales, "zeros": side.zeros, "g_idx": side.g_idx}
    return {part: tensor for part, tensor in parts.items() if tensor is not None}


def _config(source: Source, plans: dict[str, _Planned]) -> StoredConfig:
    usual = Counter(plan.type for plan in plans.values()).most_common(1)[0][0]
    return StoredConfig(
        weight_type=usual,
        modules={module: plan.type for module, plan in plans.items() if plan.type != usual},
        modules_to_not_convert=tuple(source.unquantised()),
        source={"quant_method": source.method} | source.quantization,
    )


def _write_shards(source: Source, plans: dict[str, _Planned], files: list[Path], temporary: Path,
                  report: Report, progress: Progress | None) -> None:  # fmt: skip
    described: list[dict[str, tuple[str, tuple[int, ...]]]] = [{} for _ in source.shards.shards]
    for module, plan in plans.items():
        home = source.shards.home[f"{module}.qweight"]
        for part, what in plan.tensors.items():
            described[home][f"{module}.{part}"] = what
    for name in source.others:
        entry = source.shards.entry(name)
        described[source.shards.home[name]][name] = (entry.dtype, entry.shape)
    used = [index for index, tensors in enumerate(described) if tensors]
    total = sum(_nbytes(*what) for tensors in described for what in tensors.values())
    carried = sum((source.folder / file).stat().st_size for file in files)
    require_space(temporary, total + carried)
    report.shards, report.bytes_after = len(used), total
    meter = _Meter(total, progress)
    weight_map: dict[str, str] = {}
    for number, index in enumerate(used, start=1):
        name = shard_name(number, len(used))
        with ShardWriter(temporary / name, described[index]) as writer:
            for module, plan in plans.items():
                if source.shards.home[f"{module}.qweight"] == index:
                    _write_module(source, plan, writer, meter)
            for other in (n for n in source.others if source.shards.home[n] == index):
                _write_other(source, other, writer, meter)
        read_header(temporary / name)
        weight_map |= dict.fromkeys(described[index], name)
    if len(used) > 1:
        fields = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(temporary / "model.safetensors.index.json", fields)


def _write_module(source: Source, plan: _Planned, writer: ShardWriter, meter: _Meter) -> None:
    layer = plan.layer
    for rows, words in source.words(layer):
        data = tensor_bytes(words)
        writer.write(f"{layer.name}.qweight", data, rows.start * layer.words * 4)
        meter.add(data.nbytes, f"{layer.name}.qweight")
    for part, tensor in _side_parts(source.side(layer)).items():
        data = tensor_bytes(tensor)
        writer.write(f"{layer.name}.{part}", data)
        meter.add(data.nbytes, f"{layer.name}.{part}")


def _write_other(source: Source, name: str, writer: ShardWriter, meter: _Meter) -> None:
    at = 0
    for data in source.shards.shards[source.shards.home[name]].chunks(name):
        writer.write(name, data, at)
        at += data.nbytes
        meter.add(data.nbytes, name)


class _Meter:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def add(self, nbytes: int, name: str) -> None:
        self.done += nbytes
        if self.progress is not None:
            self.progress(self.done, self.total, name)


def shard_name(number: int, count: int) -> str:
    """Name of weight file ``number`` (from 1) of ``count``, as the Hugging Face hub has it."""
    return "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, row-major."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * DTYPE_BITS[dtype] // 8
