# SPDX-License-Identifier: Apache-2.0
"""A weight that is trained while products see its values in a tType: codes and scales follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ladder import ops
from ladder.compensation import levels_of, step_and_shift
from ladder.weight import Weight

#: Formats of scales that are trained. Others have few values, a power of two or two a doubling, and
#: integers are one with a second scale, of which one change moves all scales of a superblock.
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
#: Of the distance of two levels: how far into the range of its code an element begins.
_MARGIN = 0.05


class TrainedWeight:
    """Trains ``elements`` [N, K], whose nearest codes are the weight's, and ``gains``, of each
    scale the logarithm of what it is multiplied by (None where scales stay as they are).

    Zero points stay what they are in units of a step.

    Args:
        source: [N, K], the dense weight.
        packed: the same quantised, whose codes and scales training begins with.
    """

    def __init__(self, source: Tensor, packed: Weight) -> None:
        assert packed.g_idx is None, "the columns of a group follow each other"
        self._packed = packed
        levels, code_of = levels_of(packed.type)
        self._levels, self._code_of = levels.to(source.device), code_of.to(source.device)
        self._middles = (self._levels[1:] + self._levels[:-1]) / 2
        step, shift = step_and_shift(packed, self._levels, self._code_of)
        self._width = packed.type.columns or source.shape[1]
        self._step, self._shift = (each[:, :: self._width].contiguous() for each in (step, shift))
        self.elements = self._start(source.to(torch.float32)).requires_grad_()
        self.gains: Tensor | None = None
        scales = packed.scales
        if scales is not None and scales.dtype in _FLOATS:
            self.gains = torch.zeros_like(scales, dtype=torch.float32).requires_grad_()

    def size_of_step(self) -> float:
        """The mean difference of two values that follow each other."""
        span = self._levels[-1] - self._levels[0]
        return (self._step.abs().mean() * span / max(1, len(self._levels) - 1)).item()

    def _start(self, source: Tensor) -> Tensor:
        """What is nearest to ``source`` of all that have the codes of the packed weight."""
        step, shift = self._of_columns(self._step), self._of_columns(self._shift)
        values = self._packed.type.element.values.to(self._middles).nan_to_num()
        index = torch.bucketize(values, self._middles)[self._packed.codes().long()]
        inner = self._middles.new_tensor([float("inf")])
        least = torch.cat((-inner, self._middles))
        most = torch.cat((self._middles, inner))
        margin = _MARGIN * (self._levels[1:] - self._levels[:-1])
        least[1:] += margin
        most[:-1] -= margin
        ratio = torch.where(step == 0, 0, (source - shift) / step)
        return ratio.clamp(least[index], most[index]) * step + shift

    def values(self) -> Tensor:
        """[N, K] float32, with gradients: straight through the rounding of elements within the
        range of their scale (arXiv 1308.3432), and of scales (learned step sizes, Esser et al.,
        arXiv 1902.08153)."""
        step, shift = self._step, self._shift
        if self.gains is not None:
            of_shift = gain = self._gain(self._packed.scales)
            if self._packed.type.zero == "rescale":
                of_shift = self._gain(self._packed.zeros)
            step, shift = step * self._of_rows(gain), shift * self._of_rows(of_shift)
        step, shift = self._of_columns(step), self._of_columns(shift)
        made: Tensor = _Rounded.apply(self.elements, step, shift, self._levels, self._middles)
        return made

    def packed(self) -> Weight:
        """The weight as it is now."""
        with torch.no_grad():
            made = self._packed
            if self.gains is not None:
                made = replace(made, scales=self._scaled(made.scales))
                if made.type.zero == "rescale":
                    made = replace(made, zeros=self._scaled(made.zeros))
            step, shift = step_and_shift(made, self._levels, self._code_of)
            index = _nearest(self.elements, step, shift, self._middles)[1]
            return replace(made, qweight=ops.pack(self._code_of[index], made.type.bits))

    def _scaled(self, stored: Tensor | None) -> Tensor:
        """Scales, or zero points, times what scales are multiplied by, rounded to their format."""
        assert self.gains is not None and stored is not None
        most = torch.finfo(stored.dtype).max
        exact = stored.to(torch.float32) * self.gains.exp()
        return exact.clamp(-most, most).to(stored.dtype)

    def _gain(self, stored: Tensor | None) -> Tensor:
        """[R, G], what ``stored`` ones are multiplied by once they are rounded, with the gradient
        of what it would be if they were not."""
        assert self.gains is not None and stored is not None
        exact, old = self.gains.exp(), stored.to(torch.float32)
        rounded = torch.where(old == 0, 1, self._scaled(stored).to(torch.float32) / old)
        return exact + (rounded - exact).detach()

    def _of_rows(self, blocks: Tensor) -> Tensor:
        """[N, G] of [R, G]. Its gradient is summed in one order, which that of an index is not."""
        n = self._packed.shape[0]
        rows = self._packed.type.rows or n
        if rows == 1:
            return blocks
        return blocks[:, None].expand(-1, rows, -1).flatten(0, 1)[:n]

    def _of_columns(self, groups: Tensor) -> Tensor:
        """[N, K] of [N, G]."""
        k = self._packed.shape[1]
        return groups[:, :, None].expand(-1, -1, self._width).flatten(1)[:, :k]


def _nearest(
    elements: Tensor, step: Tensor, shift: Tensor, middles: Tensor
) -> tuple[Tensor, Tensor]:
    """Elements in units of their step, and the index of the nearest level of each."""
    ratio = torch.where(step == 0, 0, (elements - shift) / step)
    return ratio, torch.bucketize(ratio, middles)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, elements: Tensor, step: Tensor, shift: Tensor, levels: Tensor, middles: Tensor
    ) -> Tensor:
        ratio, index = _nearest(elements, step, shift, middles)
        level = levels[index]
        inside = (ratio >= levels[0]) & (ratio <= levels[-1])
        ctx.save_for_backward(inside, torch.where(inside, level - ratio, level))
        return level * step + shift

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inside, of_step = ctx.saved_tensors
        return grad * inside, grad * of_step, grad * ~inside, None, None
