# SPDX-License-Identifier: Apache-2.0
"""Keys, or values, of one attention layer in a tType: packed block by block, each block once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ladder import ops
from ladder.errors import InvalidArgument, Unsupported
from ladder.quantization import METHODS, quantize
from ladder.types import TType, with_defaults

#: What shares a scale: channels of one token, or tokens of one channel.
DIRECTIONS = ("token", "channel")
#: Numbers that are decoded at a time, so that float32 of them takes little beside the result: what
#: a core's cache holds on a CPU, where four times as many take 2.5 times as long; elsewhere
#: launches cost more than memory.
_DECODED_AT_A_TIME = {"cpu": 1 << 16}
_DECODED_AT_A_TIME_ELSEWHERE = 1 << 24


@dataclass(frozen=True)
class StatesType:
    """How keys or values are stored: ``block`` tokens are quantised together, by ``method``, and
    groups of ``ttype`` lie along what ``per`` says. A ``ttype`` of None keeps what comes."""

    ttype: TType | None
    per: str
    block: int
    method: str

    @property
    def by_channel(self) -> bool:
        return self.ttype is not None and self.per == "channel"

    @property
    def unit(self) -> int:
        """Tokens that are stored, and dropped, together."""
        return self.block if self.by_channel else 1

    def objection(self, width: int) -> str:
        """Why states of so many channels cannot be of the type; "" where they can."""
        if self.ttype is None:
            return ""
        return self.ttype.superblock_objection(self.block if self.by_channel else width)


def states_type(
    what: str, given: str | TType | None, per: str, block: int, method: str
) -> StatesType:
    """Raises InvalidArgument or Unsupported, with ``what`` in front, for a type that a cache cannot
    hold and for words that are not known."""
    if per not in DIRECTIONS:
        raise InvalidArgument(f"{what}_per is {per!r}, not one of {', '.join(DIRECTIONS)}")
    if method not in METHODS:
        raise InvalidArgument(f"method is {method!r}, not one of {', '.join(METHODS)}")
    if given is None:
        return StatesType(None, per, block, method)
    try:
        ttype = with_defaults(given)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from None
    if ttype.bits > 8:
        raise InvalidArgument(
            f'{what} are of type "{ttype}", which has {ttype.bits} bits; a cache packs 1 to 8. '
            f"{what}=None keeps them as the model gives them"
        )
    if ttype.rows != 1:
        raise Unsupported(
            f'{what} are of type "{ttype}", whose scales are of several rows: tokens come one by '
            "one, and need scales of their own, as of group=G or channel"
        )
    made = StatesType(ttype.with_second_scales_of_rows(), per, block, method)
    if made.by_channel and (why := made.objection(0)):
        raise InvalidArgument(f"{what}: {why}, the tokens of a block")
    return made


@dataclass(frozen=True)
class Run:
    """Units that follow each other.

    Attributes:
        parts: those of a :class:`ladder.Weight`, with rows [units, batch, heads] in place of N,
            each a token of a head; by channel [units, batch, heads, width], each a channel of a
            block of tokens. Without a tType "states" [units, batch, heads, width].
        length: tokens, which may end within the last unit.
    """

    parts: dict[str, Tensor]
    length: int

    @property
    def units(self) -> int:
        return next(iter(self.parts.values())).shape[0]

    def part_of(self, first: int, last: int) -> dict[str, Tensor]:
        """Parts of the units [first, last), in the same memory."""
        return {name: part[first:last] for name, part in self.parts.items()}


@dataclass(frozen=True)
class PackedStates:
    """Tokens [batch, heads, length, width] in their tType. Never changed: methods give new ones.

    Runs are more than one where tokens were cropped within a block of channels, whose scales stay.
    """

    type: StatesType
    runs: tuple[Run, ...] = ()

    @property
    def length(self) -> int:
        """Tokens held."""
        return sum(run.length for run in self.runs)

    @property
    def nbytes(self) -> int:
        parts = [part for run in self.runs for part in run.parts.values()]
        return sum(part.numel() * part.itemsize for part in parts)

    def extended(self, states: Tensor) -> PackedStates:
        """With ``states`` [batch, heads, tokens, width] of whole blocks, quantised, at the end.

        Raises:
            InvalidArgument: :func:`ladder.quantize` refuses them.
        """
        new = _stored(states.detach(), self.type)
        last = self.runs[-1] if self.runs else None
        if last is None or last.length != last.units * self.type.unit:
            return replace(self, runs=(*self.runs, new))
        parts = {name: torch.cat([last.parts[name], new.parts[name]]) for name in new.parts}
        return replace(self, runs=(*self.runs[:-1], Run(parts, last.length + new.length)))

    def without_last(self, tokens: int) -> PackedStates:
        """Without the last tokens, at most :attr:`length`. What is left is not quantised anew."""
        runs = list(self.runs)
        while runs and tokens >= runs[-1].length:
            tokens -= runs.pop().length
        if runs and tokens:
            length = runs[-1].length - tokens
            kept = runs[-1].part_of(0, math.ceil(length / self.type.unit))
            runs[-1] = Run({name: part.clone() for name, part in kept.items()}, length)
        return replace(self, runs=tuple(runs))

    def whole_units(self, tokens: int) -> int:
        """How many of the first tokens the units have that lie within these."""
        whole = 0
        for run in self.runs:
            if whole + run.length > tokens:
                return whole + (tokens - whole) // self.type.unit * self.type.unit
            whole += run.length
        return whole

    def without_first(self, tokens: int) -> PackedStates:
        """Without the first tokens, those of whole units."""
        runs = list(self.runs)
        while runs and tokens >= runs[0].length:
            tokens -= runs.pop(0).length
        if runs and tokens:
            kept = runs[0].part_of(tokens // self.type.unit, runs[0].units)
            parts = {name: part.clone() for name, part in kept.items()}
            runs[0] = Run(parts, runs[0].length - tokens)
        return replace(self, runs=tuple(runs))

    def of_batch(self, index: Tensor) -> PackedStates:
        """The sequences ``index`` of the batch, int64 [any number]."""
        return self._each(lambda part: part.index_select(1, index.to(part.device)))

    def to(self, device: torch.device | str) -> PackedStates:
        """The same on another device."""
        return self._each(lambda part: part.to(device, non_blocking=True))

    def _each(self, change: Callable[[Tensor], Tensor]) -> PackedStates:
        runs = [replace(r, parts={n: change(p) for n, p in r.parts.items()}) for r in self.runs]
        return replace(self, runs=tuple(runs))

    def write(self, out: Tensor) -> None:
        """The values into ``out`` [batch, heads, length, width], any strides and float dtype."""
        first = 0
        for run in self.runs:
            _write(run, self.type, out.narrow(2, first, run.length))
            first += run.length


def _stored(states: Tensor, type: StatesType) -> Run:
    if type.by_channel:
        rows = states.unflatten(2, (-1, type.block)).permute(2, 0, 1, 4, 3)
    else:
        rows = states.permute(2, 0, 1, 3)
    if type.ttype is None:
        return Run({"states": rows.clone(memory_format=torch.contiguous_format)}, states.shape[2])
    matrix = rows.to(torch.float32).reshape(-1, rows.shape[-1]).contiguous()
    parts = _parts(matrix, type.ttype, type.method)
    lead = rows.shape[:-1]
    return Run({n: p.view(*lead, *p.shape[1:]) for n, p in parts.items()}, states.shape[2])


def _parts(matrix: Tensor, ttype: TType, method: str) -> dict[str, Tensor]:
    if not torch.compiler.is_compiling():
        return quantize(matrix, ttype, method=method).tensors()
    # What it checks wants numbers, which a trace has not.
    parts = torch.ops.ladder.quantize(matrix, str(ttype), method == "search")
    there = (True, ttype.scale is not None, ttype.zeros_dtype is not None, ttype.scale2 is not None)
    named = zip(("qweight", "scales", "zeros", "scale2"), parts, there, strict=True)
    return {name: part for name, part, is_there in named if is_there}


def _write(run: Run, type: StatesType, out: Tensor) -> None:
    if type.ttype is None:
        out.copy_(run.parts["states"].permute(1, 2, 0, 3))
        return
    lead, columns = (4, type.block) if type.by_channel else (3, out.shape[-1])
    most = _DECODED_AT_A_TIME.get(out.device.type, _DECODED_AT_A_TIME_ELSEWHERE)
    step = max(1, most // (out.shape[0] * out.shape[1] * type.unit * out.shape[-1]))
    if torch.compiler.is_compiling():  # no loop, whose length would be compiled for
        step = run.units
    for first in range(0, run.units, step):
        parts = run.part_of(first, first + step)
        shape = parts["qweight"].shape[:lead]
        flat = {name: part.flatten(0, lead - 1) for name, part in parts.items()}
        values = ops.dequantize(flat.pop("qweight"), type.ttype, columns, **flat)
        values = values.view(*shape, columns)
        place = out[:, :, first * type.unit : (first + step) * type.unit]
        if not type.by_channel:
            place.copy_(values.permute(1, 2, 0, 3))
            continue
        values = values.permute(1, 2, 0, 4, 3)
        if place.shape[2] == shape[0] * type.block:
            place.unflatten(2, (shape[0], type.block)).copy_(values)
        else:  # the last block was cropped
            place.copy_(values.flatten(2, 3)[:, :, : place.shape[2]])
