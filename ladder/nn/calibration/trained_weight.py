# SPDX-License-Identifier: Apache-2.0
"""A weight that is trained while products see its values in a tType: codes and scales follow."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ladder import ops
from ladder.compensation import levels_of, step_and_shift
from ladder.nn.learned_steps import Levels, level_codes, of_rows, rounded_to
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
        levels, code_of = (each.to(source.device) for each in levels_of(packed.type))
        self._code_of, self._levels = code_of, Levels.of(packed.type)
        self._width = packed.type.columns or source.shape[1]
        self._step, shift = self._grid(packed)
        self.elements = self._start(source.to(torch.float32), levels, shift).requires_grad_()
        self._zero = self._zero_of(self._step, shift)
        self.gains: Tensor | None = None
        scales = packed.scales
        if scales is not None and scales.dtype in _FLOATS:
            self.gains = torch.zeros_like(scales, dtype=torch.float32).requires_grad_()

    def size_of_step(self) -> float:
        """The mean difference of two values that follow each other."""
        span = 2 * self._levels.half()
        return self._step.abs().mean().item() * span / max(1, len(self._code_of) - 1)

    def _grid(self, packed: Weight) -> tuple[Tensor, Tensor]:
        """[N, G] each: a value is ``level * step + shift``."""
        levels = torch.tensor(self._levels.values, device=self._code_of.device)
        step, shift = step_and_shift(packed, levels, self._code_of)
        return step[:, :: self._width].contiguous(), shift[:, :: self._width].contiguous()

    def _zero_of(self, step: Tensor, shift: Tensor) -> Tensor:
        """What zero points do: in units of a step, but for those that have a scale of their own."""
        if self._levels.shifts:
            return -shift
        return torch.where(step == 0, 0, -shift / step)

    def _start(self, source: Tensor, levels: Tensor, shift: Tensor) -> Tensor:
        """What is nearest to ``source`` of all that have the codes of the packed weight."""
        step, shift = self._of_columns(self._step), self._of_columns(shift)
        middles = (levels[1:] + levels[:-1]) / 2
        values = self._packed.type.element.values.to(middles).nan_to_num()
        index = torch.bucketize(values, middles)[self._packed.codes().long()]
        inner = middles.new_tensor([float("inf")])
        least = torch.cat((-inner, middles))
        most = torch.cat((middles, inner))
        margin = _MARGIN * (levels[1:] - levels[:-1])
        least[1:] += margin
        most[:-1] -= margin
        ratio = torch.where(step == 0, 0, (source - shift) / step)
        return ratio.clamp(least[index], most[index]) * step + shift

    def values(self) -> Tensor:
        """[N, K] float32, with gradients: straight through the rounding of elements within the
        range of their scale (arXiv 1308.3432), and of scales (learned step sizes, Esser et al.,
        arXiv 1902.08153)."""
        step, zero = self._step, self._zero
        if self.gains is not None:
            step = step * self._of_rows(self._gain(self._packed.scales))
            if self._levels.shifts:
                zero = zero * self._of_rows(self._gain(self._packed.zeros))
        return rounded_to(self.elements, step, zero, self._levels, self._width)

    def packed(self) -> Weight:
        """The weight as it is now."""
        with torch.no_grad():
            made = self._packed
            if self.gains is not None:
                made = replace(made, scales=self._scaled(made.scales))
                if self._levels.shifts:
                    made = replace(made, zeros=self._scaled(made.zeros))
            step, shift = self._grid(made)
            zero = self._zero_of(step, shift)
            codes = level_codes(self.elements, step, zero, self._levels, self._width, self._code_of)
            return replace(made, qweight=ops.pack(codes, made.type.bits))

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
        """[N, G] of [R, G]."""
        return of_rows(blocks, self._packed.type.rows, self._packed.shape[0])

    def _of_columns(self, groups: Tensor) -> Tensor:
        """[N, K] of [N, G]."""
        k = self._packed.shape[1]
        return groups[:, :, None].expand(-1, -1, self._width).flatten(1)[:, :k]
