# SPDX-License-Identifier: Apache-2.0
"""How far the outputs of a model move from those of the dense one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ladder.errors import InvalidArgument
from ladder.nn.calibration.calls import Call

#: Of distributions that are compared at once.
_MOST_NUMBERS = 1 << 24


class Outputs:
    """What ``model`` gives for ``calls`` as it is now.

    Attributes:
        what: is measured by :meth:`moved`.

    Raises:
        InvalidArgument: outputs without a tensor of floats, or of numbers that are not finite
            (logits may be minus infinity).
    """

    def __init__(self, model: nn.Module, calls: Sequence[Call]) -> None:
        self._model, self._calls = model, calls
        self._before: list[Tensor] = []
        distributions = set()
        for number, call in enumerate(calls):
            found, of_logits = _main(call(model))
            if found is None:
                raise InvalidArgument(
                    f"the model gives no tensor of floats for batch {number} of calibration"
                )
            bad = found.isnan() | (found == torch.inf)
            if bool((bad if of_logits else ~found.isfinite()).any()):
                raise InvalidArgument(
                    f"the model's outputs for batch {number} of calibration are not finite"
                )
            distributions.add(of_logits)
            self._before.append(found.detach().clone())
        self._of_logits = distributions == {True}
        if self._of_logits:  # log p has the size of logits of float32; of halves these are kept
            self._before = [
                each.log_softmax(-1) if each.dtype == torch.float32 else each
                for each in self._before
            ]
        self.what = (
            "KL divergence from the dense model's predictions, nats a token"
            if self._of_logits
            else "squared difference of outputs, relative to their squares"
        )

    def moved(self) -> float:
        """How far outputs of the model, as it is now, are from what they were: the mean KL
        divergence of its distributions where it gives ``logits``, else the sum of the squared
        differences over that of the squares. Infinite where an output is not finite."""
        total, size = 0.0, 0.0
        for number, (call, before) in enumerate(zip(self._calls, self._before, strict=True)):
            found, _ = _main(call(self._model))
            if found is None or found.shape != before.shape:
                raise InvalidArgument(
                    f"the model's outputs for batch {number} of calibration are "
                    f"{list(before.shape)}, and {None if found is None else list(found.shape)} "
                    "with a quantised layer: they cannot be compared"
                )
            if self._of_logits:
                total += _divergence(before, found)
                size += before.shape[:-1].numel()
            else:
                dense = before.to(torch.float32)
                total += (found.to(torch.float32) - dense).square().sum().item()
                size += dense.square().sum().item()
        each = total / size if size else total
        return each if math.isfinite(each) else math.inf


def _main(output: Any) -> tuple[Tensor | None, bool]:
    """The tensor of what a model gives that is compared, and whether it has distributions: the
    ``logits``, or the first tensor of floats."""
    logits = output.get("logits") if isinstance(output, Mapping) else None
    logits = getattr(output, "logits", None) if logits is None else logits
    if isinstance(logits, Tensor) and logits.is_floating_point():
        return logits, logits.shape[-1:].numel() > 1
    return _first(output), False


def _first(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value if value.is_floating_point() and value.numel() else None
    within: Any = ()
    if isinstance(value, Mapping):
        within = value.values()
    elif isinstance(value, (tuple, list)):
        within = value
    return next((found for each in within if (found := _first(each)) is not None), None)


def _divergence(dense: Tensor, moved: Tensor) -> float:
    """The sum over all distributions of KL(dense || moved). ``dense`` are log p in float32, or
    logits of other dtypes.

    With d = log q - log p it is that of p (e^d - 1 - d), as p e^d adds up to 1: terms that are not
    negative, of which float32 loses none where d is small."""
    rows = max(1, _MOST_NUMBERS // dense.shape[-1])
    total = 0.0
    pairs = (each.flatten(0, -2).split(rows) for each in (dense, moved))
    for one, other in zip(*pairs, strict=True):
        log_p = one if one.dtype == torch.float32 else one.to(torch.float32).log_softmax(-1)
        difference = other.to(torch.float32).log_softmax(-1).sub_(log_p)
        terms = difference.expm1().sub_(difference).mul_(log_p.exp())
        total += terms.masked_fill_(log_p == -torch.inf, 0.0).sum().item()
    return total
