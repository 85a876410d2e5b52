# SPDX-License-Identifier: Apache-2.0
"""The weight files of a model folder, written shard by shard from tensors that come one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.header import DTYPE_BITS, DTYPE_NAMES, read_header
from ladder.checkpoints.shards import ShardSet
from ladder.checkpoints.writer import (
    ShardWriter,
    carry,
    is_one_of,
    new_folder,
    require_space,
    write_json,
)
from ladder.errors import InvalidArgument
from ladder.nn.report import Progress

#: dtype as safetensors calls it, and shape, of a tensor to come.
Described = tuple[str, tuple[int, ...]]


class Meter:
    """Counts bytes, and reports them."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def add(self, nbytes: int, name: str) -> None:
        """``nbytes`` more of tensor ``name`` are written."""
        self.done += nbytes
        if self.progress is not None:
            self.progress(name, self.done, self.total)


class ShardFiller:
    """One weight file, open for writing.

    Args:
        writer: of the file.
        meter: counts what is written.
    """

    def __init__(self, writer: ShardWriter, meter: Meter) -> None:
        self._writer, self._meter = writer, meter

    def write(self, name: str, tensor: Tensor, offset: int = 0) -> None:
        """Write ``tensor``, or a piece of it, at byte ``offset`` of tensor ``name``."""
        data = tensor_bytes(tensor)
        self._writer.write(name, data, offset)
        self._meter.add(data.nbytes, name)

    def copy(self, shards: ShardSet, name: str, to: str | None = None) -> None:
        """Copy a tensor from another folder, which is called ``to`` in this one."""
        at, called = 0, to or name
        for data in shards.shards[shards.home[name]].chunks(name):
            self._writer.write(called, data, at)
            at += data.nbytes
            self._meter.add(data.nbytes, called)


def write_shards(
    folder: Path,
    described: Sequence[dict[str, Described]],
    fill: Callable[[int, ShardFiller], None],
    *,
    carried: int = 0,
    progress: Progress | None = None,
    stem: str = "model",
) -> tuple[int, int]:
    """Write the weight files of ``folder``, and their index when there are several.

    Args:
        described: the tensors of each file; one without tensors is not written.
        fill: called with the place in ``described``, and writes every tensor of it.
        carried: bytes of other files, for which there must be room as well.
        progress: called with (tensor, bytes written, bytes in all).
        stem: how the files' names begin.
    Returns:
        The number of files, and the bytes of their tensors.
    Raises:
        DestinationError: the disk is full, or the folder cannot be written.
    """
    used = [index for index, tensors in enumerate(described) if tensors]
    total = sum(nbytes(*what) for tensors in described for what in tensors.values())
    require_space(folder, total + carried)
    meter = Meter(total, progress)
    weight_map: dict[str, str] = {}
    for number, index in enumerate(used, start=1):
        name = shard_name(number, len(used), stem)
        with ShardWriter(folder / name, described[index]) as writer:
            fill(index, ShardFiller(writer, meter))
        read_header(folder / name)
        weight_map |= dict.fromkeys(described[index], name)
    if len(used) > 1:
        fields = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(folder / f"{stem}.safetensors.index.json", fields)
    return len(used), total


def write_model(
    source: Path,
    destination: Path,
    described: Sequence[dict[str, Described]],
    fill: Callable[[int, ShardFiller], None],
    *,
    files: list[Path],
    config: Mapping[str, Any],
    force: bool,
    progress: Progress | None = None,
    stem: str = "model",
) -> tuple[int, int]:
    """Write the model folder ``destination``, whole or not at all.

    Args:
        source: the folder of ``files``, which are copied.
        described, fill, progress, stem: see :func:`write_shards`.
        config: config.json.
        force: replace an existing folder.
    Returns:
        As :func:`write_shards`.
    Raises:
        InvalidArgument, DestinationError: as :func:`ladder.checkpoints.writer.new_folder`.
    """
    with new_folder(destination, force=force) as temporary:
        written = write_shards(
            temporary,
            described,
            fill,
            carried=sum((source / file).stat().st_size for file in files),
            progress=progress,
            stem=stem,
        )
        carry(source, temporary, files)
        write_json(temporary / "config.json", config)
    return written


def describe_tensors(tensors: dict[str, Tensor]) -> dict[str, Described]:
    """dtype and shape of each; tensors on the meta device will do."""
    return {name: (DTYPE_NAMES[t.dtype], tuple(t.shape)) for name, t in tensors.items()}


def check_apart(folder: Path, destination: Path) -> None:
    """Raise InvalidArgument when one of the folders lies in the other."""
    inside, outside = folder.resolve(), destination.resolve()
    if is_one_of(inside, (outside, *outside.parents)) or is_one_of(outside, inside.parents):
        raise InvalidArgument(f"{destination} and {folder} must not lie in each other")


def shard_name(number: int, count: int, stem: str = "model") -> str:
    """Name of weight file ``number`` (from 1) of ``count``, as the Hugging Face hub has it."""
    return f"{stem}{'' if count == 1 else f'-{number:05d}-of-{count:05d}'}.safetensors"


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, row-major."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * DTYPE_BITS[dtype] // 8
