# SPDX-License-Identifier: Apache-2.0
"""Reading the tensors of a GGUF file as its plan has them, piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ladder import ops
from ladder.checkpoints.gguf.block import Block
from ladder.checkpoints.gguf.header import GgufFile
from ladder.checkpoints.gguf.model import GgufModel
from ladder.checkpoints.gguf.pieces import Dense, Joined, Packed, Piece
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.types import TType
from ladder.weight import Weight

_ROWS_AT_ONCE = 4 << 20  # elements


def weights(file: GgufFile, packed: Packed) -> Iterator[tuple[int, Weight, Weight]]:
    """Read a module piece by piece: the place of its first row, its rows as they are stored, and as
    the file has them, which is the same but where scales are rounded.

    Raises CheckpointError where a scale or a code means no number, InvalidArgument where rounding
    to float16 would make an infinite one.
    """
    for piece in packed.pieces:
        for begin, blocks in _read(file, packed, piece):
            exact = unpack(file, piece.source, packed.block, blocks)
            place = piece.place + begin
            yield place, narrowed(file, piece.source, exact, packed.ttype), exact


def _read(file: GgufFile, packed: Packed, piece: Piece) -> Iterator[tuple[int, Tensor]]:
    step = max(1, _ROWS_AT_ONCE // packed.k)
    if piece.order is not None:
        every = file.rows(piece.source, piece.begin, piece.begin + piece.rows)[piece.order]
    for begin in range(0, piece.rows, step):
        end = min(begin + step, piece.rows)
        if piece.order is None:
            yield begin, file.rows(piece.source, piece.begin + begin, piece.begin + end)
        else:
            yield begin, every[begin:end]


def unpack(file: GgufFile, source: str, block: Block, rows: Tensor) -> Weight:
    """The weight of some rows of blocks, [N, bytes of a row]."""
    n, k = len(rows), rows.shape[1] // block.nbytes * block.elements
    codes, scales, zeros, scale2 = block.parts(rows.reshape(-1, block.nbytes))
    codes = codes.reshape(n, k).contiguous()
    if block.ttype.element.name == "ternary" and int(codes.max()) > 2:
        raise CheckpointError(f"{file.path}: {source} has the code {int(codes.max())}, not 0 to 2")
    parts = {"scales": scales, "zeros": zeros, "scale2": scale2}
    rows_of = {name: p.reshape(n, -1).contiguous() for name, p in parts.items() if p is not None}
    weight = Weight(block.ttype, (n, k), ops.pack(codes, block.ttype.bits), **rows_of)
    for what, numbers in (("scale", weight.float_scales()), ("minimum", weight.float_zeros())):
        if numbers is not None and not (finite := torch.isfinite(numbers)).all():
            wrong = numbers[~finite][0].item()
            raise CheckpointError(f"{file.path}: {source} has a {what} of {wrong}")
    return weight


def narrowed(file: GgufFile, source: str, exact: Weight, ttype: TType) -> Weight:
    """``exact`` with the scales, and zeros, of ``ttype``."""
    if ttype == exact.type:
        return exact
    dtype, parts = ttype.scale_dtype, {"qweight": exact.qweight}
    floats = {"scales": exact.float_scales(), "zeros": exact.float_zeros()}
    for name, before in floats.items():
        if before is None:
            continue
        parts[name] = before.to(dtype)
        if not torch.isfinite(parts[name]).all():
            raise InvalidArgument(
                f"{file.path}: {source} has a {name.removesuffix('s')} of "
                f"{before.abs().max().item()}, beyond float16: leave out float16_scales"
            )
    return Weight(ttype, exact.shape, **parts)


def dense_rows(file: GgufFile, found: GgufModel, dense: Dense) -> Iterator[tuple[int, Tensor]]:
    """A dense tensor in pieces: the byte at which each begins, and its numbers."""
    entry = file.entries[dense.source]
    rows = math.prod(entry.shape[:-1])
    whole = not found.is_untouched(dense.source)
    step = rows if whole else max(1, _ROWS_AT_ONCE // entry.shape[-1])
    for begin in range(0, rows, step):
        data = file.rows(dense.source, begin, min(begin + step, rows))
        if dense.block is not None:
            values = unpack(file, dense.source, dense.block, data).dequantize()
        else:
            values = data.view(dense.dtype)
        if whole:
            values = found.dense(dense.source, values.reshape(entry.shape))
            if tuple(values.shape) != dense.shape:
                raise CheckpointError(
                    f"{file.path}: {dense.source} {list(entry.shape)} makes {list(values.shape)}, "
                    f"but {dense.name} is {list(dense.shape)}"
                )
            if values.dtype != dense.dtype:
                raise Unsupported(
                    f"{file.path}: {dense.source} is {entry.format_name}, which does not hold what "
                    f"{dense.name} is made of it"
                )
        yield begin * entry.shape[-1] * dense.dtype.itemsize, values


def joined(file: GgufFile, each: Joined) -> Tensor:
    """The bias of a stack, [E, N]."""
    parts = [file.rows(source, 0, each.shape[0]).view(each.dtype) for source in each.sources]
    return torch.cat(parts, 1)
