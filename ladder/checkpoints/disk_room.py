# SPDX-License-Identifier: Apache-2.0
"""Room on the disk of a folder that is to be written, until it is."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from ladder.checkpoints.leftovers import new_partial
from ladder.checkpoints.writer import writing
from ladder.weight import Weight

_FILE = 1 << 28  #: bytes of a file, at least
_ALIGNED = 64


@contextmanager
def scratch(destination: Path) -> Iterator[Path]:
    """A folder beside ``destination`` that is removed afterwards. Raises DestinationError."""
    with ExitStack() as held:
        with writing(destination):
            place = _existing(destination.parent) / destination.name
            folder = held.enter_context(new_partial(place))
            held.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


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

    def keep(self, weight: Weight) -> Weight:
        """An equal weight in the CPU's memory, backed by a file. Raises DestinationError where the
        disk is full."""
        kept = {name: self._copy(part) for name, part in weight.tensors().items()}
        return Weight(weight.type, weight.shape, **kept)

    def _copy(self, tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.itemsize
        taken = -(-size // _ALIGNED) * _ALIGNED
        if self._free.numel() < taken:
            self._free = self._file(max(taken, _FILE))
        room, self._free = self._free[:size], self._free[taken:]
        return room.view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def _file(self, size: int) -> Tensor:
        folder = _existing(self._destination.parent)
        with writing(self._destination), tempfile.NamedTemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk is a signal when it is written
                os.posix_fallocate(file.fileno(), 0, size)
            return torch.from_file(file.name, shared=True, size=size, dtype=torch.uint8)
