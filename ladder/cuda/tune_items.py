# SPDX-License-Identifier: Apache-2.0
"""Times the kernels of batches and convolutions, whose items follow from the shape of x."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ladder import _library
from ladder.cuda.experts import Stack
from ladder.cuda.request import Mode
from ladder.cuda.tune_experts import times_of, warm

_ops = torch.ops.ladder
_log = logging.getLogger("ladder")

#: Calls of a graph, on other numbers each.
_CALLS = 4


@dataclass(frozen=True)
class ItemsProblem:
    """Products of ``rows`` rows by each weight of ``stack``. ``items`` is "batch", or the windows
    as ``torch.ops.ladder.convolution`` has them; ``shape`` that of x."""

    stack: Stack
    rows: int
    items: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def key(self) -> tuple[object, ...]:
        """The same for layers whose kernels are the same."""
        stack = self.stack
        device = stack.images.device
        return (stack.number, stack.experts, self.rows, self.items, self.dtype, device)

    def call(self, x: Tensor) -> Tensor:
        stack, n = self.stack, self.stack.shape[0]
        if self.items == "batch":
            made: list[Tensor] = _ops.batched_linear(x, stack.images, None, stack.number, n)
        else:
            made = _ops.convolution(x, stack.images, None, stack.number, n, self.items)
        return made[0]


def tune(problem: ItemsProblem, mode: Mode, deadline: float) -> str:
    """Compile the kernel and keep the fastest of the scheduler's proposals, in this process and a
    store; where a store has a plan, that.

    Args:
        deadline: of ``time.monotonic()``; behind it nothing more is compiled to be timed, or timed.
    Returns:
        The schedule that was timed now; "" where a plan or the first proposal stands, or where
        there are no kernels.
    """
    p = problem
    number, count = p.stack.number, p.stack.experts
    index = p.stack.images.device.index or 0
    of_item = _ops.item_rows(number, count, p.rows, p.dtype, index, p.items)
    _library.log_notices()
    key = (number, count, p.rows, of_item, p.dtype, index)
    if of_item == 0 or _ops.has_expert_plan(*key, max(mode.measured, 1), p.items):
        return ""
    if mode.proposals == 1 or time.monotonic() > deadline:
        return ""
    names = _ops.expert_schedules(*key, mode.proposals, p.items).splitlines()
    source = torch.Generator(p.stack.images.device).manual_seed(0)
    calls: list[Callable[[], Tensor]] = []
    for _ in range(_CALLS):
        x = torch.randn(p.shape, device=p.stack.images.device, generator=source).to(p.dtype)
        calls.append(lambda x=x: p.call(x))  # type: ignore[misc]
    warm(calls)
    times, whole = times_of(key, names, calls, deadline, p.items)
    for name, seconds in times.items():
        _log.debug("%s of %s: %.1f us, %s", p.items, p.shape, 1e6 * seconds, name)
    best = min(times, key=times.__getitem__, default=None)
    if best is None:
        return ""
    _ops.use_expert_schedule(*key, best, len(names) if whole else 0, p.items)
    return best
