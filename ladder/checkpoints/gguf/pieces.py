# SPDX-License-Identifier: Apache-2.0
"""What can become of the tensors of a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ladder.checkpoints.gguf.block import Block
from ladder.checkpoints.gguf.blocks import BLOCKS, OTHERS
from ladder.checkpoints.gguf.header import Entry, GgufFile
from ladder.checkpoints.header import DTYPE_NAMES
from ladder.checkpoints.model_files import Described, nbytes
from ladder.errors import Unsupported
from ladder.types import TType


@dataclass(frozen=True)
class Piece:
    """Rows of a packed module that follow each other: rows of a tensor of the file."""

    source: str
    begin: int  #: the first row, of all rows of the tensor
    rows: int
    place: int  #: of the first row in the module
    order: Tensor | None = None  #: [rows]: the row of the tensor that each row is


@dataclass(frozen=True)
class Packed:
    """A module that becomes packed: a linear layer, an embedding, or a stack of ``experts``."""

    name: str
    block: Block
    ttype: TType
    n: int
    k: int
    pieces: tuple[Piece, ...]
    experts: int = 0

    @property
    def tensors(self) -> dict[str, Described]:
        stack = (self.experts,) if self.experts else ()
        scale = self.ttype.scale_dtype
        assert scale is not None
        sides = (DTYPE_NAMES[scale], (*stack, self.n, self.ttype.groups(self.k)))
        found: dict[str, Described]
        found = {"qweight": ("I32", (*stack, self.n, self.ttype.words(self.k))), "scales": sides}
        if self.ttype.zero == "rescale":
            found["zeros"] = sides
        second = self.ttype.scale2_shape(self.n, self.k)
        if self.ttype.scale2_dtype is not None and second is not None:
            found["scale2"] = (DTYPE_NAMES[self.ttype.scale2_dtype], (*stack, *second))
        return found

    @property
    def nbytes(self) -> int:
        return sum(nbytes(*what) for what in self.tensors.values())


@dataclass(frozen=True)
class Dense:
    """A tensor that stays dense; ``block``: the format that it is dequantised from, to float32."""

    source: str
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    block: Block | None = None


@dataclass(frozen=True)
class Joined:
    """The bias of a stack of experts: tensors [E, N_i] of the file side by side."""

    sources: tuple[str, ...]
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass
class Plan:
    packed: list[Packed] = field(default_factory=list)
    dense: list[Dense] = field(default_factory=list)
    joined: list[Joined] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  #: linear layers and experts that stay dense
    embeddings: tuple[str, ...] = ()  #: of ``packed``, those that are such
    untied: bool = False  #: whether an output embedding was tied, and has a weight of its own
    notes: list[str] = field(default_factory=list)  #: sentences for the report


def check_format(file: GgufFile, entry: Entry) -> None:
    """Raise Unsupported where no tType and no dtype holds the format of a tensor."""
    if entry.format not in OTHERS:
        return
    known = ", ".join(block.name for block in BLOCKS.values())
    raise Unsupported(
        f"{file.path}: {entry.name} is {entry.format_name}, which is no format of weights that "
        f"ladder knows; it reads {known}"
    )
