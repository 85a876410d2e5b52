# SPDX-License-Identifier: Apache-2.0
"""Scales and minima of superblocks, both levels chosen together.

In a superblock the scale of a group is ``integer * d``, and what is subtracted ``integer * e``,
with d and e of a float format. Each group's best scale and minimum are found first, on
no grid. Then integers and (d, e) are chosen in turn: with codes as they are, the squared error of
a group is a quadratic form of its scale and its minimum, so that every choice is a few numbers a
group, and codes are rounded anew after each. Columns count alike: weighted by how large inputs are,
calibrated codes were no better (benchmarks/results/type_quality.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from ladder.two_levels.levels import Levels
from ladder.types import TType

#: Of the range of a group's weights, what the first scales leave at either end; by bits.
_RANGES = {2: (1.0, 0.8, 0.6), 4: (1.0, 0.9), 5: (1.0, 0.95)}
_RANGES_OF_OTHERS = (1.0, 0.9)
#: Of types without minima the code, from the middle one, of the largest magnitude, by bits; of
#: others in units of the middle one.
_ENDS = {3: (4.3, 3.6, 2.9), 6: (32.4, 31.5, 30.5, 29.0)}
_ENDS_OF_OTHERS = (1.05, 0.95, 0.85)
#: Codes rounded and scales found in turn, of each first scale.
_TURNS = 3
#: Turns of both levels, and integers to either side of the nearest that are tried.
_LEVEL_TURNS, _BESIDE = 3, 2
#: Passes in which codes are rounded for each pair of neighbouring integers.
_PASSES = 2


def is_searched(ttype: TType) -> bool:
    """Whether :class:`Search` is for weights of such superblocks."""
    unsigned = ttype.element.encoding == "unsigned_integer"
    return unsigned and ttype.zero in ("midpoint", "rescale")


def _over(one: Tensor, other: Tensor) -> Tensor:
    """``one / other``, 0 where ``other`` is."""
    return torch.where(other == 0, 0, one / other)


@dataclass
class _Fixed:
    """Sums over the codes q of groups and their weights w: the squared error with scale s and
    minimum z is ``s² qq - 2 s qw - 2 s z q + z² count + 2 z w`` and the squares of the weights."""

    qq: Tensor
    qw: Tensor
    q: Tensor
    w: Tensor
    ww: Tensor
    count: int

    def error(self, s: Tensor, z: Tensor) -> Tensor:
        return s * (s * self.qq - 2 * (self.qw + z * self.q)) + z * (
            z * self.count + 2 * self.w
        ) + self.ww  # fmt: skip


class _Best:
    """The least error, and what has it."""

    def __init__(self, like: Tensor, count: int) -> None:
        self.error = torch.full_like(like, torch.inf)
        self.of = [like.new_zeros(())] * count

    def take(self, error: Tensor, *values: Tensor) -> None:
        better = error < self.error
        self.error = torch.where(better, error, self.error)
        self.of = [torch.where(better, *pair) for pair in zip(values, self.of, strict=True)]


class Search:
    """Of superblocks [B, columns]. Tensors of elements are [group, B, G], so that sums over a group
    are of whole rows; of groups [B, G], of superblocks [B, 1]."""

    def __init__(self, blocks: Tensor, ttype: TType) -> None:
        assert ttype.grid is not None and ttype.scale2_dtype is not None
        self._w = blocks.unflatten(1, (-1, ttype.columns)).permute(2, 0, 1).contiguous()
        self._sum, self._squares = self._w.sum(0), self._w.square().sum(0)
        self._grid, self._bits, self._dtype = ttype.grid, ttype.bits, ttype.scale2_dtype
        self._middle = 0 if self._grid.minima else 1 << ttype.bits - 1

    def levels(self) -> Levels:
        d, e, many, less = self._levels(*self._free())
        for _ in range(_PASSES):
            many, less = self._neighbours(d, e, many, less)
        codes = (self._rounded(d * many, e * less) + self._middle).to(torch.uint8)
        has_minima = self._grid.minima > 0
        seconds = torch.cat((d, e), 1) if has_minima else d
        return Levels(
            codes.permute(1, 2, 0).flatten(1),
            many,
            less if has_minima else None,
            seconds.to(self._dtype),
        )

    def _second(self, values: Tensor) -> Tensor:
        """In the format of second scales."""
        return values.to(self._dtype).float()

    def _rounded(self, s: Tensor, z: Tensor) -> Tensor:
        """The nearest codes, the middle one counted as 0."""
        codes = ((self._w + z) * _over(torch.ones_like(s), s)).round_()
        return codes.clamp_(-self._middle, (1 << self._bits) - 1 - self._middle)

    def _fixed(self, s: Tensor, z: Tensor) -> _Fixed:
        q = self._rounded(s, z)
        sums = (q * q).sum(0), (q * self._w).sum(0), q.sum(0)
        return _Fixed(*sums, self._sum, self._squares, len(q))

    def _first(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Scales and minima to begin with."""
        low, high = self._w.amin(0).clamp_(max=0), self._w.amax(0).clamp_(min=0)
        if self._grid.minima:
            ranges = _RANGES.get(self._bits, _RANGES_OF_OTHERS)
            for below, above in product(ranges, repeat=2):
                yield (above * high - below * low) / ((1 << self._bits) - 1), -below * low
            return
        largest = torch.where(-low > high, low, high)
        others = [end * self._middle for end in _ENDS_OF_OTHERS]
        for end in _ENDS.get(self._bits, others):
            for sign in (-1, 1):
                yield largest / (sign * end), torch.zeros_like(low)

    def _free(self) -> tuple[Tensor, Tensor]:
        """The best scale and minimum of each group, on no grid."""
        best = _Best(self._sum, 2)
        for s, z in self._first():
            for _ in range(_TURNS):
                fixed = self._fixed(s, z)
                alone = _over(fixed.qw, fixed.qq)  # the best scale without a minimum
                if self._grid.minima:
                    both = fixed.qq * fixed.count - fixed.q.square()
                    s = _over(fixed.qw * fixed.count - fixed.q * self._sum, both)
                    z = (s * fixed.q - self._sum) / fixed.count
                    none = (z <= 0) | (s < 0)
                    s, z = torch.where(none, alone, s), torch.where(none, 0, z)
                else:
                    s = alone
                best.take(fixed.error(s, z), s, z)
        s, z = best.of
        return s, z

    def _levels(self, s: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """d, e and the integers of the scales and the minima, from those on no grid."""
        grid = self._grid
        best = _Best(self._sum[:, :1], 4)
        # The side with one integer more is that of the largest scale.
        most = grid.least if -grid.least > grid.most else grid.most
        d = self._second(s.gather(1, s.abs().argmax(1, keepdim=True)) / most)
        e = self._second(z.amax(1, keepdim=True) / max(grid.minima, 1))
        fixed = self._fixed(s, z)
        for _ in range(_LEVEL_TURNS):
            many, less = self._integers(fixed, d, e, s)
            d, e = self._both(fixed, d, many, less)
            s, z = d * many, e * less
            fixed = self._fixed(s, z)
            best.take(fixed.error(s, z).sum(1, keepdim=True), d, e, many, less)
        d, e, many, less = best.of
        return d, e, many, less

    def _integers(self, fixed: _Fixed, d: Tensor, e: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Those of each group with the least error, near the scale ``s``."""
        grid, best = self._grid, _Best(s, 2)
        near, less = _over(s, d).round_(), torch.zeros_like(s)
        for beside in range(-_BESIDE, _BESIDE + 1):
            many = (near + beside).clamp_(grid.least, grid.most)
            if grid.minima:
                z = (d * many * fixed.q - fixed.w) / fixed.count
                less = _over(z, e).round_().clamp_(0, grid.minima)
            best.take(fixed.error(d * many, e * less), many, less)
        many, less = best.of
        return many, less

    def _neighbours(
        self, d: Tensor, e: Tensor, many: Tensor, less: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The best of the integers one off, each with codes of its own."""
        grid, best = self._grid, _Best(many, 2)
        for own, other in product((0, -1, 1), (0, -1, 1) if grid.minima else (0,)):
            scales = (many + own).clamp_(grid.least, grid.most)
            minima = (less + other).clamp_(0, grid.minima)
            s, z = d * scales, e * minima
            off = (self._rounded(s, z) * s).sub_(z).sub_(self._w)
            best.take(off.square_().sum(0), scales, minima)
        many, less = best.of
        return many, less

    def _both(self, fixed: _Fixed, d: Tensor, many: Tensor, less: Tensor) -> tuple[Tensor, Tensor]:
        """d and e with the least error, of the integers as they are; without minima e is 0."""

        def of(values: Tensor) -> Tensor:
            return values.sum(1, keepdim=True)

        aa, aw = of(many * many * fixed.qq), of(many * fixed.qw)
        ab, bb = of(many * less * fixed.q), of(less * less) * fixed.count
        bw = of(less * fixed.w)
        found = _over(aw * bb - ab * bw, aa * bb - ab * ab)
        alone = _over(aw, aa)
        found = self._second(torch.where((bb > 0) & (found > 0), found, alone))
        found = torch.where(found == 0, d, found)
        return found, self._second(_over(found * ab - bw, bb).clamp_(min=0))
