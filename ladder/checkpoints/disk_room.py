# SPDX-License-Identifier: Apache-2.0
"""Room on the disk of a folder that is to be written, until it is."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from ladder.checkpoints.leftovers import new_partial, remove_leftovers
from ladder.checkpoints.writer import reserve, writing
from ladder.weight import Weight

#: Bytes of a file, at least: of the first, and of those that follow many.
_LEAST, _MOST = 1 << 20, 1 << 28
_ALIGNED = 64


@contextmanager
def scratch(destination: Path) -> Iterator[Path]:
    """A folder beside ``destination`` that is removed afterwards, with the folders above it that
    were made for it and are empty then. Raises DestinationError."""
    parent = destination.parent
    with ExitStack() as held:
        with writing(destination):
            made = [each for each in (parent, *parent.parents) if not each.exists()]
            held.callback(_remove_empty, made)
            parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(destination)
            folder = held.enter_context(new_partial(destination))
            held.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _existing(folder: Path) -> Path:
    """The folder, or the first of its parents that is there."""
    return next(each for each in (folder, *folder.parents) if each.exists())


class DiskRoom:
    """Keeps weights in files beside ``destination``, from which the system reads them when they are
    used. The files have no name, and are gone with the last of their weights, or with the process.
    """

    def __init__(self, destination: Path) -> None:
        self._destination = destination
        self._free = torch.empty(0, dtype=torch.uint8)
        self._taken = 0

    def keep(self, weight: Weight) -> Weight:
        """An equal weight in the CPU's memory, backed by a file. Raises DestinationError where the
        disk is full."""
        kept = {name: self._copy(part) for name, part in weight.tensors().items()}
        return Weight(weight.type, weight.shape, **kept)

    def _copy(self, tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.itemsize
        taken = -(-size // _ALIGNED) * _ALIGNED
        if self._free.numel() < taken:
            size_of_file = max(taken, min(max(_LEAST, self._taken), _MOST))
            self._free, self._taken = self._file(size_of_file), self._taken + size_of_file
        room, self._free = self._free[:size], self._free[taken:]
        return room.view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def _file(self, size: int) -> Tensor:
        folder = _existing(self._destination.parent)
        with writing(self._destination), tempfile.NamedTemporaryFile(dir=folder) as file:
            reserve(file.fileno(), size)  # else a full disk is a signal when it is written
            return torch.from_file(file.name, shared=True, size=size, dtype=torch.uint8)
