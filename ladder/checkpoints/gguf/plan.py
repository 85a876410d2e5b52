# SPDX-License-Identifier: Apache-2.0
"""What becomes of each tensor of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ladder import ops
from ladder.checkpoints.gguf.blocks import BLOCKS, CODEBOOKS, FLOATS, OTHERS, Block
from ladder.checkpoints.gguf.header import Entry, GgufFile
from ladder.checkpoints.gguf.model import ROPE_FACTORS, GgufModel
from ladder.checkpoints.header import DTYPE_NAMES
from ladder.checkpoints.model_files import Described, nbytes
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.nn.dense_experts import DOWN, GATE_UP, STACKS
from ladder.nn.mixtures import FoundExperts
from ladder.nn.select import dense_weight, is_conv1d, packable, survey
from ladder.types import TType, element
from ladder.weight import Weight

_ROWS_AT_ONCE = 4 << 20  # elements
_GATE, _UP, _DOWN = "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"


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
    """A module that becomes packed: a linear layer, or a stack of ``experts``."""

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
        return found | ({"zeros": sides} if self.ttype.zero == "rescale" else {})

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


@dataclass
class Plan:
    packed: list[Packed] = field(default_factory=list)
    dense: list[Dense] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  #: linear layers and experts that stay dense


def make_plan(found: GgufModel, *, float16: bool) -> Plan:
    """Say what becomes of each tensor.

    Args:
        float16: scales of float32 are rounded to float16.
    Raises:
        Unsupported: the format of a tensor, or an order of columns, cannot be held exactly.
        CheckpointError: gate and up of a layer of experts do not fit together.
    """
    file, layers = found.file, survey(found.model, (), loaded=False)
    linear = {name: layer.module for layer in layers.found for name in layer.names}
    shapes = {name: tuple(tensor.shape) for name, tensor in found.model.state_dict().items()}
    plan, taken = Plan(), set()
    for each in layers.experts:
        experts = _Experts(found, each, float16=float16)
        taken |= set(experts.sources)
        experts.add_to(plan)
    for source, entry in file.entries.items():
        name = found.names.get(source)
        if source in taken or source == ROPE_FACTORS:
            continue
        check_format(file, entry)
        if name is None:  # known, but of experts that are not as ladder.Experts has them
            raise Unsupported(f"{file.path}: {source} is of experts that ladder does not pack")
        block = BLOCKS.get(entry.format)
        module, is_weight = name.removesuffix(".weight"), name.endswith(".weight")
        if block is not None and is_weight and module in linear and len(entry.shape) == 2:
            n, k = entry.shape
            _check_shape(file, entry, name, tuple(dense_weight(linear[module]).shape))
            order = found.row_order(source, transposed=is_conv1d(linear[module]))
            piece = Piece(source, 0, n, 0, order)
            ttype = block.narrow if float16 else block.ttype
            plan.packed.append(Packed(module, block, ttype, n, k, (piece,)))
        else:
            dtype = torch.float32 if block else FLOATS[entry.format]
            if found.is_untouched(source):
                _check_shape(file, entry, name, shapes[name])
            plan.dense.append(Dense(source, name, dtype, shapes[name], block))
    packed = {each.name for each in plan.packed}
    stacks = {name for name in packed for suffix in STACKS.values() if name.endswith(f".{suffix}")}
    packed |= {name.rpartition(".")[0] for name in stacks}
    plan.left = [name for name in packable(found.model) if name not in packed]
    return plan


def _check_shape(file: GgufFile, entry: Entry, name: str, shape: tuple[int, ...]) -> None:
    if entry.shape != shape:
        raise CheckpointError(
            f"{file.path}: {entry.name} has shape {list(entry.shape)}, but {name} {list(shape)}"
        )


def check_format(file: GgufFile, entry: Entry) -> None:
    """Raise Unsupported where no tType and no dtype holds the format of a tensor."""
    if entry.format not in OTHERS:
        return
    why = "has codes that are looked up in tables of several values at once"
    if entry.format not in CODEBOOKS:
        why = "is no format of weights that ladder knows"
    known = ", ".join(block.name for block in BLOCKS.values())
    raise Unsupported(
        f"{file.path}: {entry.name} is {entry.format_name}, which {why}; ladder reads {known}"
    )


class _Experts:
    """The experts of one layer: three tensors [E, N, K] of the file."""

    def __init__(self, found: GgufModel, each: FoundExperts, *, float16: bool) -> None:
        self.file, self.each, self.float16 = found.file, each, float16
        targets = {f"{name}.{p}" for name in each.names for p in (GATE_UP, DOWN)}
        stems = {stem for stem, target in found.names.items() if target in targets}
        self.sources = sorted(f"{stem}.weight" for stem in stems)
        by_role = {source.split(".")[-2]: source for source in self.sources}
        if set(by_role) != {_GATE, _UP, _DOWN} or not set(self.sources) <= set(self.file.entries):
            have = ", ".join(self.sources) or "no tensor"
            raise Unsupported(
                f"{self.file.path}: {each.name} has {have} of {_GATE}, {_UP}, {_DOWN}"
            )
        self.gate, self.up, self.down = (by_role[role] for role in (_GATE, _UP, _DOWN))
        layout = each.layout
        if layout.transposed or layout.interleaved or layout.bias:
            raise Unsupported(
                f"{self.file.path}: {each.name} keeps experts in another order than the file"
            )
        e, h, i = layout.shape
        for source, shape in ((self.gate, (e, i, h)), (self.up, (e, i, h)), (self.down, (e, h, i))):
            entry = self.file.entries[source]
            check_format(self.file, entry)
            if entry.shape != shape:
                self._fail(f"{source} has shape {list(entry.shape)}, not {list(shape)}")

    def add_to(self, plan: Plan) -> None:
        gate, up, down = (self.file.entries[name] for name in (self.gate, self.up, self.down))
        if gate.format != up.format:
            raise Unsupported(
                f"{self.file.path}: {self.gate} is {gate.format_name}, but {self.up} "
                f"{up.format_name}; one stack has one type"
            )
        blocks = [BLOCKS.get(entry.format) for entry in (gate, down)]
        if None in blocks:
            raise Unsupported(
                f"{self.file.path}: {self.gate} is {gate.format_name} and {self.down} "
                f"{down.format_name}; ladder reads experts of which both are quantised"
            )
        e, h, i = self.each.layout.shape
        pieces = {
            GATE_UP: [
                Piece(source, x * i, i, 2 * i * x + at)
                for x in range(e)
                for source, at in ((self.gate, 0), (self.up, i))
            ],
            DOWN: [Piece(self.down, 0, e * h, 0)],
        }
        for (parameter, rows), block in zip(pieces.items(), blocks, strict=True):
            assert block is not None
            n, k = (2 * i, h) if parameter == GATE_UP else (h, i)
            name = f"{self.each.name}.{STACKS[parameter]}"
            ttype = block.narrow if self.float16 else block.ttype
            plan.packed.append(Packed(name, block, ttype, n, k, tuple(rows), e))

    def _fail(self, what: str) -> None:
        raise CheckpointError(f"{self.file.path}: {what}")


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
    codes, scales, zeros = block.parts(rows.reshape(-1, block.nbytes))
    values = scales if scales.is_floating_point() else _scale_values(block.ttype)[scales.long()]
    for what, numbers in (("scale", values), ("minimum", zeros)):
        if numbers is not None and not (finite := torch.isfinite(numbers)).all():
            wrong = numbers[~finite][0].item()
            raise CheckpointError(f"{file.path}: {source} has a {what} of {wrong}")
    codes = codes.reshape(n, k).contiguous()
    if block.ttype.element.name == "ternary" and int(codes.max()) > 2:
        raise CheckpointError(f"{file.path}: {source} has the code {int(codes.max())}, not 0 to 2")
    parts = {"scales": scales.reshape(n, -1).contiguous()}
    if zeros is not None:
        parts["zeros"] = zeros.reshape(n, -1).contiguous()
    return Weight(block.ttype, (n, k), ops.pack(codes, block.ttype.bits), **parts)


def _scale_values(ttype: TType) -> Tensor:
    assert ttype.scale is not None
    return element(ttype.scale).values


def narrowed(file: GgufFile, source: str, exact: Weight, ttype: TType) -> Weight:
    """``exact`` with the scales, and zeros, of ``ttype``."""
    if ttype == exact.type:
        return exact
    dtype, parts = ttype.scale_dtype, exact.tensors()
    for name in parts.keys() & {"scales", "zeros"}:
        before = parts[name]
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
