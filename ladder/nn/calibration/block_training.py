# SPDX-License-Identifier: Apache-2.0
"""Training the weights of a block, while products see them quantised, for it to give what it gives
in the dense model. Nothing is known of what comes after it (as BRECQ, Li et al., arXiv 2102.05426,
and the first stage of EfficientQAT, Chen et al., arXiv 2407.11062)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from ladder.nn.calibration.hessians import Kept, Part
from ladder.nn.calibration.passing import first_of
from ladder.nn.calibration.trained_weight import TrainedWeight
from ladder.nn.conv_products import filters
from ladder.nn.mixtures import FoundExperts
from ladder.nn.report import BlockError
from ladder.nn.select import is_conv1d
from ladder.nn.select_conv import matrix_of
from ladder.weight import Weight

#: Of the distance of two values: how far Adam moves an element in a step, at first; it falls to 0
#: as a cosine. Both rates were chosen on one small model (benchmarks/results/type_quality.md).
_RATE = 1 / 150
#: The same of the logarithm of a scale.
_RATE_OF_GAINS = 1e-3
#: So many rows of hidden states, or a little more, are in a step, if there are.
_ROWS = 2048
#: Keeps gradients of float16 within its range: a row of outputs that is off by a tenth has some of
#: a hundredth.
_LOSS_SCALE = 1 / 16
#: Of the mean square of outputs: rows below it, of padding, count as if they had it.
_LEAST = 1e-4


class Run(Protocol):
    """One call of a block: as the model is now, and as it was."""

    def now(self) -> object: ...

    def before(self) -> object: ...


def values_of(part: Part, weights: Sequence[Weight], dtype: torch.dtype) -> Tensor:
    """The parameter of ``part`` with the values of ``weights``."""
    return _as_parameter(part, [each.dequantize(dtype) for each in weights])


def _as_parameter(part: Part, values: Sequence[Tensor]) -> Tensor:
    layer = part.layer
    if isinstance(layer, FoundExperts):
        return layer.layout.as_dense(part.stack, torch.stack(tuple(values)))
    module: Any = layer.module
    if isinstance(module, nn.Conv2d):
        return filters(module, values[0].contiguous())
    return values[0].T if is_conv1d(module) else values[0]


class _Trained:
    """A parameter of a block that is trained.

    Args:
        dense: the parameter of the dense model.
    """

    def __init__(self, part: Part, dense: Tensor, packed: Sequence[Weight]) -> None:
        self.part, self._name = part, part.stack or "weight"
        layer = part.layer
        if isinstance(layer, FoundExperts):
            matrices = [layer.layout.rows(part.stack, each) for each in dense]
        else:
            matrices = [matrix_of(layer.module, dense)]
        self.weights = [
            TrainedWeight(matrix.detach(), weight)
            for matrix, weight in zip(matrices, packed, strict=True)
        ]
        self._dtype = dense.dtype
        self._made, self._leaf = dense, dense

    def groups(self) -> Iterator[dict[str, Any]]:
        """What an optimizer moves, and how fast."""
        for weight in self.weights:
            yield {"params": [weight.elements], "lr": _RATE * weight.size_of_step()}
            if weight.gains is not None:
                yield {"params": [weight.gains], "lr": _RATE_OF_GAINS}

    def show(self) -> None:
        """The module computes with the values as they are, until :meth:`hide`."""
        self._made = _as_parameter(self.part, [weight.values() for weight in self.weights])
        self._leaf = self._made.detach().to(self._dtype).requires_grad_()
        self.part.layer.module.__dict__[self._name] = self._leaf  # found before the parameter

    def learn(self) -> bool:
        """Take the gradients of what was computed; whether they are finite."""
        grad = self._leaf.grad
        if grad is None:  # experts that no token went to
            return True
        if not bool(grad.isfinite().all()):
            return False
        self._made.backward(grad.to(torch.float32))
        return True

    def hide(self) -> None:
        self.part.layer.module.__dict__.pop(self._name, None)


def train_block(
    block: nn.Module,
    runs: Sequence[Run],
    weights: Mapping[Part, Sequence[Weight]],
    kept: Kept,
    steps: int,
) -> tuple[BlockError, dict[Part, list[Weight]]] | None:
    """Train the ``weights`` of ``block``, which it has.

    Args:
        runs: calls, whose outputs in the dense model are what the block is to give for what it is
            given now.
        kept: the weights of the dense model.
        steps: of Adam.
    Returns:
        The errors, and the trained weights, which the block does not have yet; no weights where
        those that it has are better. None where it cannot be trained: the dense model gives
        something else, or what it gives has no gradients.
    """
    with kept.back():
        wanted = [first_of(run.before()) for run in runs]
        dense = {part: part.layer.module._parameters[part.stack or "weight"] for part in weights}
    pairs = [
        (run, want) for run, want in zip(runs, wanted, strict=True)
        if isinstance(want, Tensor) and want.is_floating_point() and want.numel()
    ]  # fmt: skip
    if not pairs:
        return None
    run, want = pairs[0]
    if cast(Tensor, first_of(run.now())).shape != want.shape:
        return None
    before = _error(pairs)
    trained = [_Trained(part, cast(Tensor, dense[part]), own) for part, own in weights.items()]
    with _frozen(block):
        if not _train(trained, pairs, steps):
            return None
    made = {each.part: [weight.packed() for weight in each.weights] for each in trained}
    with _shown(made):
        after = _error(pairs)
    if not after < before:
        return BlockError(before, before), {}
    return BlockError(before, after), made


def _train(trained: Sequence[_Trained], pairs: Sequence[tuple[Run, Tensor]], steps: int) -> bool:
    """Whether what is given follows from weights that are trained: not if it is detached."""
    groups = [group for each in trained for group in each.groups()]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rows = sum(want.numel() // want.shape[-1] for _, want in pairs) / len(pairs)
    count = min(max(1, math.ceil(_ROWS / rows)), len(pairs))
    draw, order = torch.Generator().manual_seed(0), list[int]()
    follows = False
    try:
        for _ in range(steps):
            while len(order) < count:
                order += torch.randperm(len(pairs), generator=draw).tolist()
            chosen, order = order[:count], order[count:]
            with torch.enable_grad():
                for each in trained:
                    each.show()
                for run, want in (pairs[number] for number in chosen):
                    loss = _loss(first_of(run.now()), want).mul(_LOSS_SCALE)
                    if loss.requires_grad:
                        loss.backward()
                        follows = True
                finite = [each.learn() for each in trained]
            if all(finite):
                optimizer.step()
                schedule.step()
            optimizer.zero_grad()
    finally:
        for each in trained:
            each.hide()
    return follows


def _loss(given: Any, wanted: Tensor) -> Tensor:
    """The sum over rows of squared errors, each by the mean square of what is wanted of it: what
    comes next most often normalises rows."""
    size = wanted.to(torch.float32).square()
    mean = size.mean()
    if wanted.dim() in (2, 3):  # of images all rows together
        mean = size.mean(-1, keepdim=True).clamp(min=mean * _LEAST)
    return ((given.to(torch.float32) - wanted).square() / mean.clamp(min=1e-30)).sum()


def _error(pairs: Sequence[tuple[Run, Tensor]]) -> float:
    loss = sum(_loss(first_of(run.now()), want).item() for run, want in pairs)
    return float(loss / sum(want.numel() for _, want in pairs)) ** 0.5


@contextmanager
def _frozen(block: nn.Module) -> Iterator[None]:
    """Gradients of no parameter of ``block`` are computed inside."""
    free = [parameter for parameter in block.parameters() if parameter.requires_grad]
    for parameter in free:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in free:
            parameter.requires_grad_()


@contextmanager
def _shown(weights: dict[Part, list[Weight]]) -> Iterator[None]:
    """Modules compute with the values of ``weights`` inside."""
    try:
        for part, every in weights.items():
            name = part.stack or "weight"
            dtype = cast(Tensor, part.layer.module._parameters[name]).dtype
            part.layer.module.__dict__[name] = values_of(part, every, dtype)
        yield
    finally:
        for part in weights:
            part.layer.module.__dict__.pop(part.stack or "weight", None)
