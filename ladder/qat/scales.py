# SPDX-License-Identifier: Apache-2.0
"""Scales and zero points that are trained together with their weights: which types have such, what
their parameters are, and the weight that they make.

Parameters are not the scales themselves but the ends of what they reach, in the unit of weights: an
optimizer that moves each parameter by about its learning rate (Adam) then moves the largest value
of a group as far as a weight, whatever the type; of eight bits it would move it 127 times as far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ladder import ops
from ladder.compensation import levels_of
from ladder.errors import InvalidArgument
from ladder.nn.dense_experts import STACKS
from ladder.nn.learned_steps import (
    Levels,
    level_codes,
    of_rows,
    rounded_to,
    scaled_gradient,
    straight_through,
)
from ladder.types import FLOAT_DTYPES, TType
from ladder.weight import Weight

#: What parameters are called, after the weight that they are of.
RANGE, CENTER = "_range", "_center"


def objection(ttype: TType) -> str:
    """Why scales of ``ttype`` are not trained; "" where they are."""
    if ttype.scale is None:
        return f"{ttype} has no scales"
    if ttype.scale2 is not None:
        return f"{ttype} has two levels of scales"
    if ttype.scale not in FLOAT_DTYPES:
        return f"{ttype} has scales of {ttype.scale}, not of 16 or 32 bits"
    return ""


def is_scale(name: str) -> bool:
    """Whether a tensor of a checkpoint of this name is such a parameter."""
    own = name.rpartition(".")[2]
    return any(
        own.removesuffix(end) in ("weight", *STACKS) for end in (RANGE, CENTER) if end in own
    )


def parameters_of(module: nn.Module, name: str) -> tuple[Tensor, ...]:
    """The range, and the centre where there is one, of weight ``name`` of a prepared layer."""
    every = (module._parameters.get(name + each) for each in (RANGE, CENTER))
    return tuple(each for each in every if each is not None)


@dataclass(frozen=True)
class Scales:
    """Of a weight [N, K] of ``type``, R blocks of rows and G groups along K. Parameters are float32
    [R, G]: the range, half of the distance from the least to the largest value of a group, negative
    where its scale is; and where zero points are stored the centre between these two values."""

    type: TType
    levels: Levels

    @classmethod
    def of(cls, ttype: TType) -> Scales:
        """Of a type without :func:`objection`."""
        return cls(ttype, Levels.of(ttype))

    def start(self, packed: Weight) -> dict[str, Tensor]:
        """The parameters, by the end of their names, with which a weight is ``packed``."""
        step = cast(Tensor, packed.scales).to(torch.float32)
        made = self._start(packed, step)
        asleep = step == 0
        if not bool(asleep.any()):
            return made
        # A group of zeros would stay one: where no value depends on it, it has the usual scale.
        others = step[~asleep].abs()
        usual = step.new_tensor(packed.shape[1] ** -0.5 / self.levels.half())  # of nn.Linear
        if others.numel():
            usual = others.mean()
        woken = self._start(packed, torch.where(asleep, usual, step))
        values = packed.dequantize()
        differs = self._any_of_blocks(self.rounded(values, *woken.values()) != values)
        return {name: torch.where(differs, made[name], woken[name]) for name in made}

    def _start(self, packed: Weight, step: Tensor) -> dict[str, Tensor]:
        made, zeros = {RANGE: step * self.levels.half()}, packed.zeros
        if zeros is None:
            return made
        if self.type.zero == "quantized":
            zeros = ops.unpack(zeros, step.shape[1], self.type.bits)
        middle, zeros = self.levels.middle(), zeros.to(torch.float32)
        made[CENTER] = middle * step - zeros if self.levels.shifts else (middle - zeros) * step
        return made

    def _any_of_blocks(self, which: Tensor) -> Tensor:
        """[R, G]: whether any of [N, K] is True."""
        n, k = which.shape
        rows, width = self.type.rows or n, self.type.columns or k
        padded = functional.pad(which, (0, -k % width, 0, -n % rows))
        return padded.unflatten(1, (-1, width)).unflatten(0, (-1, rows)).any(3).any(1)

    def rounded(self, weight: Tensor, reach: Tensor, center: Tensor | None = None) -> Tensor:
        """[N, K] in the dtype of ``weight``, the values of :meth:`packed`, with gradients
        (:func:`ladder.nn.learned_steps.rounded_to`), those of parameters as large as of a weight.

        Raises:
            InvalidArgument: a weight that is not finite, with its place; not while compiling, when
                values and loss are NaN.
        """
        if not torch.compiler.is_compiling():
            _check_finite(weight)
        n, k = weight.shape
        step, zero = self._stored(*self._damped(n, k, reach, center))
        step, zero = (of_rows(each, self.type.rows, n) for each in (step, zero))
        values = rounded_to(weight, step, zero, self.levels, self.type.columns or k)
        return values.to(weight.dtype)

    def packed(self, weight: Tensor, reach: Tensor, center: Tensor | None = None) -> Weight:
        """The weight as it is now.

        Raises:
            InvalidArgument: a number of a weight or parameter that is not finite, with its place.
        """
        _check_finite(weight)
        _check_finite(reach, "range of a scale at block")
        if center is not None:
            _check_finite(center, "centre of a zero point at block")
        (n, k), ttype = weight.shape, self.type
        with torch.inference_mode(False), torch.no_grad():
            step, zero = self._stored(reach, center)
            code_of = levels_of(ttype)[1]
            own, its_zero = (of_rows(each, ttype.rows, n) for each in (step, zero))
            width = ttype.columns or k
            codes = level_codes(weight, own, its_zero, self.levels, width, code_of)
            zeros = None if center is None else zero.to(ttype.zeros_dtype)
            if ttype.zero == "quantized":
                zeros = ops.pack(zero.to(torch.uint8), ttype.bits)
            return Weight.from_codes(
                codes, ttype, scales=step.to(ttype.scale_dtype).contiguous(), zeros=zeros
            )

    def _damped(
        self, n: int, k: int, reach: Tensor, center: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The parameters with gradients by which a step of SGD changes a scale as that of a learned
        step size does, whose gradient is divided by the root of weights times largest level: that
        of a range, a half as large for the chain rule and for the unit, is multiplied by its
        square. A centre is a sum over the weights of a group as well."""
        count = (self.type.rows or n) * (self.type.columns or k)
        half = self.levels.half()
        reach = scaled_gradient(reach, half * (half / count) ** 0.5)
        return reach, None if center is None else scaled_gradient(center, count**-0.5)

    def _stored(self, reach: Tensor, center: Tensor | None) -> tuple[Tensor, Tensor]:
        """Scales and zeros [R, G] float32, rounded to their formats, with the gradients of what was
        not rounded."""
        kind = cast(torch.dtype, self.type.scale_dtype)
        exact = reach.to(torch.float32) / self.levels.half()
        step = straight_through(exact, _in_format(exact.detach(), kind))
        if center is None:
            fixed = 2.0 ** (self.type.bits - 1) if self.type.zero == "midpoint" else 0.0
            return step, torch.full_like(step, fixed)
        middle, center = self.levels.middle(), center.to(torch.float32)
        if self.levels.shifts:
            exact = middle * step - center
        else:
            exact = middle - center / torch.where(step == 0, 1, step)
        if self.type.zero in ("integer", "quantized"):
            most = 2**self.type.bits - (self.type.zero == "quantized")
            return step, straight_through(exact, exact.detach().round().clamp(0, most))
        return step, straight_through(exact, _in_format(exact.detach(), kind))


def _in_format(values: Tensor, dtype: torch.dtype) -> Tensor:
    most = torch.finfo(dtype).max
    return values.clamp(-most, most).to(dtype).to(torch.float32)


def _check_finite(values: Tensor, what: str = "weight at row") -> None:
    """Raise InvalidArgument that names the first number that is not finite."""
    if not values.numel():
        return
    ends = torch.stack(values.detach().aminmax())
    if bool(ends.isfinite().all()):
        return
    row, column = (~values.isfinite()).nonzero()[0].tolist()
    raise InvalidArgument(
        f"{what} {row}, column {column} is {values[row, column].item():g}, not finite"
    )
