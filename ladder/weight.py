# SPDX-License-Identifier: Apache-2.0
"""A packed weight: codes, scales, zeros, and what they mean (docs/format.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ladder import ops
from ladder.errors import InvalidArgument
from ladder.ops.superblocks import second_scales
from ladder.types import TType, element, parse

#: Names of the tensors of a weight, as ``<module>.<part>`` in a checkpoint.
PARTS = ("qweight", "scales", "zeros", "scale2", "g_idx")
#: Kinds of zero points that are floats.
FLOAT_ZEROS = ("original", "rescale")


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight matrix [N, K] in its canonical stored form. Equal are those of one type and shape
    with equal parts on one device.

    Attributes:
        type: the tType.
        shape: (N, K).
        qweight: [N, ceil(K * bits / 32)] int32, codes as a little-endian bit stream along K.
        scales: [block_rows, groups] float16, bfloat16 or float32, or uint8 codes of a narrower
            scale format, one to a byte (of int6 in two's complement); None without scales.
        zeros: [block_rows, groups] uint8 (zero "integer") or the scale's dtype ("original",
            "rescale", whose codes are the scale format's where scales are codes);
            [block_rows, ceil(groups * bits / 32)] int32 ("quantized"); else None.
        scale2: float32, [1], or [N] where the type has one for each row; where it has superblocks
            [N, superblocks] in the format that the type says, those of zeros "rescale" each behind
            that of scales, [N, superblocks * 2]; None without one.
        g_idx: [K] int32, the group of each column (act-order); None for column // group size.
    """

    type: TType
    shape: tuple[int, int]
    qweight: Tensor
    scales: Tensor | None = None
    zeros: Tensor | None = None
    scale2: Tensor | None = None
    g_idx: Tensor | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Weight):
            return NotImplemented
        if (self.type, self.shape) != (other.type, other.shape):
            return False
        own, others = self.tensors(), other.tensors()
        return own.keys() == others.keys() and all(map(_equal, own.values(), others.values()))

    def __hash__(self) -> int:
        return hash((self.type, self.shape))  # parts can be written

    @classmethod
    def from_codes(cls, codes: Tensor, type: str | TType, **parts: Tensor | None) -> Weight:
        """From [N, K] uint8 codes, one per byte; the other parts as they are stored."""
        ttype = parse(type)
        if codes.dim() != 2:
            raise InvalidArgument(f"codes have shape {list(codes.shape)}, not [N, K]")
        n, k = codes.shape
        weight = cls(ttype, (n, k), ops.pack(codes, ttype.bits), **parts)
        weight.check()
        return weight

    def codes(self) -> Tensor:
        """[N, K] uint8, one code per byte."""
        return ops.unpack(self.qweight, self.shape[1], self.type.bits)

    def tensors(self) -> dict[str, Tensor]:
        """The parts that are present, by name."""
        parts = {name: getattr(self, name) for name in PARTS}
        return {name: part for name, part in parts.items() if part is not None}

    def float_scales(self) -> Tensor | None:
        """[block_rows, groups], what codes are multiplied by but for second scales of tensors and
        rows: float32 where stored ones are codes or have superblocks, else as stored; None without
        scales."""
        return self._as_floats(self.scales, of_zeros=False)

    def float_zeros(self) -> Tensor | None:
        """The same of zeros "original" and "rescale"; None of other types."""
        float_zeros = self.type.zero in FLOAT_ZEROS
        return self._as_floats(self.zeros, of_zeros=True) if float_zeros else None

    def _as_floats(self, stored: Tensor | None, *, of_zeros: bool) -> Tensor | None:
        if stored is None or stored.dtype != torch.uint8 or self.type.scale is None:
            return stored
        values = element(self.type.scale).values.to(stored.device, torch.float32)[stored.int()]
        if not self.type.superblock:
            return values
        groups, scale2 = values.shape[1], cast(Tensor, self.scale2)
        return values * second_scales(scale2, self.type, groups, of_zeros=of_zeros)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.numel() * part.itemsize for part in self.tensors().values())

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values, [N, K]. Raises InvalidArgument for a dtype that is no floating-point one."""
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise InvalidArgument(f"dtype is {dtype!r}, not a floating-point one of torch's")
        values = ops.dequantize(
            self.qweight,
            self.type,
            self.shape[1],
            scales=self.scales,
            zeros=self.zeros,
            scale2=self.scale2,
            g_idx=self.g_idx,
        )
        return values.to(dtype)

    def linear(
        self, x: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """``x @ value(self).T + bias + residual``; see :func:`ladder.ops.linear`."""
        check_columns(x, self.shape[1])
        return ops.linear(
            x,
            self.qweight,
            self.type,
            scales=self.scales,
            zeros=self.zeros,
            scale2=self.scale2,
            g_idx=self.g_idx,
            bias=bias,
            residual=residual,
        )

    def to(self, device: torch.device | str) -> Weight:
        """The same weight on another device."""
        moved = {name: part.to(device) for name, part in self.tensors().items()}
        return Weight(self.type, self.shape, **moved)

    def of_single_rows(self) -> Weight:
        """The same weight with a scale, and a zero point, for each row of a block: its type is
        :meth:`TType.of_single_rows`."""
        n, rows = self.shape[0], self.type.rows or self.shape[0]
        parts = self.tensors()
        for name in ("scales", "zeros"):
            if name in parts:
                parts[name] = parts[name].repeat_interleave(rows, 0)[:n].contiguous()
        return Weight(self.type.of_single_rows(), self.shape, **parts)

    def with_stored_zeros(self) -> Weight:
        """The same weight with its zero points stored: its type is
        :meth:`TType.with_stored_zeros`."""
        ttype = self.type.with_stored_zeros()
        shape = ttype.zeros_shape(*self.shape)
        if ttype == self.type or shape is None:
            return self
        zeros = self.qweight.new_full(shape, 1 << (ttype.bits - 1), dtype=torch.uint8)
        return Weight(ttype, self.shape, **self.tensors(), zeros=zeros)

    def with_second_scales_of_rows(self) -> Weight:
        """The same weight with its second scale repeated for each row: its type is
        :meth:`TType.with_second_scales_of_rows`."""
        ttype = self.type.with_second_scales_of_rows()
        if not self.type.scale2_of_tensor or self.scale2 is None:
            return self
        of_rows = self.scale2.expand(self.shape[0]).contiguous()
        return Weight(ttype, self.shape, **self.tensors() | {"scale2": of_rows})

    def with_float_scales(self) -> Weight:
        """The same values, bit for bit, of :meth:`TType.with_float_scales`."""
        if not self.type.superblock:
            return self
        zeros = self.zeros if self.type.zero != "rescale" else self.float_zeros()
        parts = {"scales": self.float_scales(), "zeros": zeros, "g_idx": self.g_idx}
        return Weight(self.type.with_float_scales(), self.shape, self.qweight, **parts)

    def narrow_rows(self, start: int, length: int) -> Weight:
        """Rows [start, start + length): what one rank of column-parallel tensor parallelism holds.

        Raises InvalidArgument when a block of rows would be cut, and for rows that are not there.
        """
        n, k = self.shape
        _check_span("rows", start, length, n)
        parts = {
            name: rows_of(name, part, self.type, start, length, n)
            for name, part in self.tensors().items()
        }
        return Weight(self.type, (length, k), **parts)

    def narrow_columns(self, start: int, length: int) -> Weight:
        """Columns [start, start + length): one rank of row-parallel tensor parallelism.

        Raises InvalidArgument unless the columns are there, both ends are group boundaries (or the
        end of K), the codes begin at a 32-bit word, and the weight has no g_idx (its groups do not
        lie along K).
        """
        if self.g_idx is not None:
            raise InvalidArgument("a weight with g_idx has no groups along its columns to cut at")
        n, k = self.shape
        _check_span("columns", start, length, k)
        if why := columns_objection(self.type, k, start, length):
            raise InvalidArgument(why)
        parts = {
            name: columns_of(name, part, self.type, k, start, length).contiguous()
            for name, part in self.tensors().items()
        }
        return Weight(self.type, (n, length), **parts)

    def check(self, name: str = "weight") -> None:
        """Raise InvalidArgument that names the tensor at fault and both values unless shapes and
        dtypes fit the type, scales and zeros "rescale" are codes of their format or finite, other
        float zeros and second scales are finite, and g_idx is in range."""
        n, k = self.shape
        groups, rows = self.type.groups(k), self.type.block_rows(n)
        zeros_dtype = self.type.zeros_dtype
        scale_dtype, zeros = self.type.scale_dtype, self.type.zeros_shape(n, k)
        scale2, second_dtype = self.type.scale2_shape(n, k), self.type.scale2_dtype
        wanted: dict[str, tuple[tuple[int, ...], torch.dtype] | None] = {
            "qweight": ((n, self.type.words(k)), torch.int32),
            "scales": None if scale_dtype is None else ((rows, groups), scale_dtype),
            "zeros": None if zeros is None or zeros_dtype is None else (zeros, zeros_dtype),
            "scale2": None if scale2 is None or second_dtype is None else (scale2, second_dtype),
        }
        for part, want in wanted.items():
            _check_part(f"{name}.{part}", getattr(self, part), want, self.type)
        if self.g_idx is not None:
            _check_part(f"{name}.g_idx", self.g_idx, ((k,), torch.int32), self.type)
            if self.g_idx.is_meta or not k:
                return
            low, high = int(self.g_idx.min()), int(self.g_idx.max())
            if low < 0 or high >= groups:
                raise InvalidArgument(
                    f"{name}.g_idx has values from {low} to {high}; there are {groups} groups"
                )


def _equal(one: Tensor, other: Tensor) -> bool:
    if one is other:
        return True
    alike = one.device == other.device and one.dtype == other.dtype
    return alike and not one.is_meta and torch.equal(one, other)


def in_order(g_idx: Tensor, type: TType) -> bool:
    """Whether a g_idx [K] says nothing: each column is in the group of its place."""
    k = g_idx.numel()
    columns = torch.arange(k, dtype=g_idx.dtype, device=g_idx.device)
    return torch.equal(g_idx, columns // (type.columns or k))


def needs_single_rows(type: TType, rows: Sequence[int]) -> bool:
    """Whether weights of ``type``, with so many rows each, need a scale for each row before they
    can be one weight row below row: each has one scale for all, or blocks of rows would be cut."""
    blocks = type.rows
    return len(rows) > 1 and (blocks == 0 or any(count % blocks for count in rows[:-1]))


def parts_of_rows(type: TType) -> tuple[str, ...]:
    """Names of the parts beside the codes that have numbers of each row, or block of rows. Others
    belong to all rows."""
    scales = ("scales", "zeros") if type.rows else ()
    return (*scales, "scale2") if type.scale2_of_rows or type.superblock else scales


def with_alike_second_scales(groups: Sequence[Sequence[Weight]]) -> list[list[Weight]]:
    """``groups`` of weights of one type, each of which is to be one weight row below row: with
    second scales for each row (:meth:`Weight.with_second_scales_of_rows`) where those of whole
    tensors differ within some group."""
    ttype = groups[0][0].type
    of_tensors = ttype.rows == 1 and ttype.scale2_of_tensor
    scales = [[cast(Tensor, each.scale2) for each in group] for group in groups if of_tensors]
    if all(torch.equal(group[0], scale) for group in scales for scale in group):
        return [list(group) for group in groups]
    return [[each.with_second_scales_of_rows() for each in group] for group in groups]


def join_objection(
    type: TType, rows: Sequence[int], parts: Sequence[Mapping[str, Tensor | None]]
) -> str:
    """Why weights of ``type``, with equal columns and so many rows each, cannot be one weight row
    below row; "" when they can. Of their ``parts`` the codes are not asked for."""
    if type.rows > 1 and any(count % type.rows for count in rows[:-1]):
        sizes = ", ".join(map(str, rows))
        return f"blocks of {type.rows} rows would be cut: the layers have {sizes} rows"
    for name in (part for part in PARTS if part not in ("qweight", *parts_of_rows(type))):
        first, *others = (each.get(name) for each in parts)
        if any((part is None) != (first is None) for part in others):
            return f"some layers have {name}, others have not"
        if first is not None and not all(torch.equal(first, cast(Tensor, p)) for p in others):
            return f"{name} differ"
    return ""


def join(weights: Sequence[Weight]) -> Weight:
    """One weight of the rows of all, row below row, of equal types and columns, of which there is
    no :func:`join_objection`."""
    first = weights[0]
    if len(weights) == 1:
        return first
    parts = first.tensors()
    for name in ("qweight", *parts_of_rows(first.type)):
        if name in parts:
            parts[name] = torch.cat([getattr(weight, name) for weight in weights])
    return Weight(first.type, (sum(w.shape[0] for w in weights), first.shape[1]), **parts)


def rows_of(part: str, tensor: Tensor, type: TType, start: int, count: int, whole: int) -> Tensor:
    """Rows [start, start + count) of the ``whole`` ones of a part, which shares the memory of
    ``tensor``; what is none of :func:`parts_of_rows` belongs to every row.

    Raises:
        InvalidArgument: a block of rows that share a scale would be cut.
    """
    if part not in ("qweight", *parts_of_rows(type)):
        return tensor
    block, end = type.rows if part in ("scales", "zeros") else 1, start + count
    if start % block or (end % block and end != whole):
        raise InvalidArgument(f"rows {start} to {end} cut blocks of {block} rows of type {type}")
    return tensor[start // block : -(-end // block)]


def columns_objection(type: TType, k: int, start: int, count: int) -> str:
    """Why the columns [start, start + count) of a weight with k columns cannot be taken; or ""."""
    end, columns = start + count, type.columns
    for what, size in (("superblocks", type.superblock), ("groups", columns)):
        if size and (start % size or (end % size and end != k)):
            return f"columns {start} to {end} cut {what} of {size} columns"
    if start * type.bits % 32 or (end * type.bits % 32 and end != k):
        return f"columns {start} to {end} of {type.bits} bits cut a 32-bit word"
    return ""


def columns_of(part: str, tensor: Tensor, type: TType, k: int, start: int, count: int) -> Tensor:
    """Columns [start, start + count) of a part, to which :func:`columns_objection` has none."""
    end, columns = start + count, type.columns
    if part == "qweight":
        return tensor[:, start * type.bits // 32 : -(-end * type.bits // 32)]
    if part == "scale2" and type.superblock:
        first, last = start // type.superblock, -(-end // type.superblock)
        each = type.scales_of_superblock
        return tensor[:, first * each : last * each]
    if part == "scale2" or not columns:
        return tensor
    if part == "g_idx":  # of columns in the order of their groups, the same wherever they begin
        return tensor[:count]
    first, last = start // columns, -(-end // columns)
    if part == "zeros" and type.zero == "quantized":
        zeros = ops.unpack(tensor, type.groups(k), type.bits)[:, first:last]
        return ops.pack(zeros, type.bits)
    return tensor[:, first:last]


def _check_span(what: str, start: int, length: int, whole: int) -> None:
    if start < 0 or length < 1 or start + length > whole:
        raise InvalidArgument(f"{what} {start} to {start + length} are no part of {whole}")


def check_columns(x: Tensor, k: int) -> None:
    """Raise InvalidArgument unless the last dimension of ``x`` is ``k``. The op cannot see that:
    rows padded to 32 bits look alike for several K."""
    if x.dim() > 0 and x.shape[-1] != k:
        raise InvalidArgument(f"x has {x.shape[-1]} columns; the weight has {k}")


def _check_part(
    name: str,
    tensor: Tensor | None,
    want: tuple[tuple[int, ...], torch.dtype] | None,
    type: TType,
) -> None:
    if want is None:
        if tensor is not None:
            raise InvalidArgument(f'{name} is given, but type "{type}" has none')
        return
    if tensor is None:
        raise InvalidArgument(f'{name} is missing, but type "{type}" needs it')
    shape, dtype = want
    if tensor.dtype != dtype:
        raise InvalidArgument(
            f'{name} has dtype {tensor.dtype}, not {dtype} as type "{type}" needs'
        )
    if tuple(tensor.shape) != tuple(shape):
        raise InvalidArgument(
            f'{name} has shape {list(tensor.shape)}, not {list(shape)} as type "{type}" needs'
        )
    check_finite(name, tensor, type)


def check_finite(name: str, part: Tensor, type: TType) -> None:
    """Raise InvalidArgument, with its place, for a number of a part ``<module>.<part>`` that is not
    finite, and for a scale, or a zero "rescale", that is no code of its format."""
    if part.device.type == "meta":
        return
    values = part
    coded = name.endswith("scales") or (type.zero == "rescale" and name.endswith("zeros"))
    if type.scale is not None and part.dtype == torch.uint8 and coded:
        bits = element(type.scale).bits
        if bits < 8 and bool((beyond := part >> bits).any()):
            where = beyond.nonzero()[0].tolist()
            raise InvalidArgument(
                f"{name}{where} is {part[tuple(where)].item()}, which does not fit {type.scale}"
            )
        values = element(type.scale).values.to(part.device)[part.long()]
    if values.is_floating_point():
        finite = torch.isfinite(values)
        if not bool(finite.all()):
            where = (~finite).nonzero()[0].tolist()
            raise InvalidArgument(f"{name}{where} is {values[tuple(where)].item()}, not finite")
