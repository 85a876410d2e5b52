# SPDX-License-Identifier: Apache-2.0
"""Dense tensors of a ladder folder as a GGUF file has them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ladder.checkpoints.export.units import Decoded, is_of
from ladder.checkpoints.gguf.blocks import FLOATS
from ladder.checkpoints.gguf.header import GgufFile
from ladder.checkpoints.gguf.model import GgufModel
from ladder.checkpoints.header import DTYPE_NAMES
from ladder.checkpoints.shards import ShardSet
from ladder.errors import CheckpointError, Unsupported

_NUMBERS = {dtype: number for number, dtype in FLOATS.items()}
_CLOSE = 2.0**-20  #: of what is made and made again in float32


@dataclass(frozen=True)
class Dense:
    """A tensor of numbers.

    Attributes:
        number: of its format, one of FLOATS.
        source: the tensor of the folder, or the module that is decoded; None where it is that of
            the template.
    """

    name: str
    shape: tuple[int, ...]
    number: int
    source: str | Decoded | None

    @property
    def bytes_shape(self) -> tuple[int, ...]:
        return *self.shape[:-1], self.shape[-1] * FLOATS[self.number].itemsize

    @classmethod
    def of_template(cls, file: GgufFile, name: str) -> Dense:
        """A tensor that stays what it is in ``file``."""
        entry = file.entries[name]
        return cls(name, entry.shape, entry.format, None)

    @classmethod
    def planned(
        cls, found: GgufModel, name: str, source: str | Decoded, dtype: torch.dtype
    ) -> Dense:
        """A tensor of the folder: in float32 where it is a row, else in the floats of the template,
        or where that is quantised in ``dtype``."""
        entry = found.file.entries[name]
        number = entry.format if entry.format in FLOATS else _NUMBERS[dtype]
        return cls(name, entry.shape, 0 if len(entry.shape) == 1 else number, source)

    @classmethod
    def added(cls, name: str, shards: ShardSet, source: str | Decoded, dtype: torch.dtype) -> Dense:
        """A matrix of the folder that the template has not, in ``dtype``."""
        shape = shards.entry(source).shape if isinstance(source, str) else source.shape
        return cls(name, shape, _NUMBERS[dtype], source)

    def read(self, shards: ShardSet, found: GgufModel) -> Tensor:
        """Raises CheckpointError where the folder has another shape, Unsupported where it is not
        known how llama.cpp has it."""
        if self.source is None:
            return found.file.rows(self.name, 0, math.prod(self.shape[:-1]))
        if isinstance(self.source, str):
            values = shards.read([self.source])[self.source]
        else:
            values = self.source.values(shards)
        return self._in_file(found, values.float()).to(FLOATS[self.number])

    def _in_file(self, found: GgufModel, values: Tensor) -> Tensor:
        """What the converter makes of ``values``: the rows of q and k in another order, 1 more in
        norms of Gemma."""
        of_file = torch.zeros(self.shape)
        plain = self.name not in found.file.entries or found.is_untouched(self.name)
        zero = of_file if plain else found.dense(self.name, of_file)
        if zero.shape != values.shape:
            raise CheckpointError(
                f"{found.file.path}: {self.name} is {list(zero.shape)} of the model, and the "
                f"folder has {list(values.shape)}: it is a file of another model"
            )
        if plain:
            return values
        of_file = values - zero
        if len(self.shape) == 1:
            order = (found.dense(self.name, torch.arange(len(values)).float()) - zero).long()
        else:
            rows = found.row_order(self.name, transposed=False)
            order = torch.arange(len(values)) if rows is None else rows
        moved = torch.empty_like(of_file)
        moved[order] = of_file
        back = found.dense(self.name, moved)
        if not torch.allclose(back, values, rtol=_CLOSE, atol=_CLOSE * values.abs().max().item()):
            raise Unsupported(
                f"{found.file.path}: how llama.cpp has {self.name} is not known: reading it back "
                "gives other numbers"
            )
        return moved


def dense_of(
    shards: ShardSet,
    packed: Collection[str],
    decoded: Sequence[Decoded],
) -> dict[str, str | Decoded]:
    """By their names, dense tensors of the folder and modules that are decoded.

    Args:
        packed: modules whose tensors are no such, but for biases.
    """
    floats = {DTYPE_NAMES[dtype] for dtype in FLOATS.values()}
    names = (name for name in shards.home if not is_of(name, packed))
    found: dict[str, str | Decoded] = {
        name: name for name in names if shards.entry(name).dtype in floats
    }
    return found | {f"{each.source}.weight": each for each in decoded}
