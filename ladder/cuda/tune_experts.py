# SPDX-License-Identifier: Apache-2.0
"""Times the kernels of layers of experts, on choices that a router makes at random."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ladder.cuda import experts, timing
from ladder.cuda.experts import Stack
from ladder.cuda.request import Mode

_ops = torch.ops.ladder

#: Calls of a graph, each with choices of its own.
_CALLS = 8
#: Each schedule is timed so often, in turn with the others, and the least counts.
_ROUNDS = 2
_WARM_SECONDS = 0.05
_log = logging.getLogger("ladder")


@dataclass(frozen=True)
class Problem:
    """A layer's products for ``tokens`` tokens, each of ``of_token`` experts."""

    gate_up: Stack
    down: Stack
    tokens: int
    of_token: int
    dtype: torch.dtype

    @property
    def key(self) -> tuple[object, ...]:
        """The same for layers whose kernels are the same."""
        stacks = (self.gate_up.number, self.down.number, self.gate_up.experts)
        return (*stacks, self.gate_up.images.device, self.tokens * self.of_token, self.dtype)


def tune(problem: Problem, mode: Mode, deadline: float) -> int:
    """Compile the kernels of a layer and keep the fastest of the scheduler's proposals, in this
    process and a store; where a store has a plan, that.

    Args:
        deadline: of ``time.monotonic()``; behind it nothing more is timed.
    Returns:
        The most rows of an item; 0 where there are no kernels.
    """
    p, rows = problem, problem.tokens * problem.of_token
    of_item = experts.rows_of_item(p.gate_up, p.down, rows, p.dtype)
    if of_item == 0 or mode.proposals == 1:
        return of_item
    routed = None
    for stack in (p.gate_up, p.down):
        key = (stack.number, stack.experts, rows, of_item, p.dtype, stack.images.device.index)
        if time.monotonic() > deadline or _ops.has_expert_plan(*key, max(mode.measured, 1)):
            continue
        names = _ops.expert_schedules(*key, mode.proposals).splitlines()
        routed = routed or [_random_items(p, of_item, i) for i in range(_CALLS)]
        x = torch.randn(rows, stack.shape[1], device=stack.images.device).to(p.dtype)
        calls = [functools.partial(_product, x, stack, items, of_item) for items in routed]
        _warm(calls)
        times: dict[str, float] = {}
        for name in names * _ROUNDS:
            try:
                _ops.use_expert_schedule(*key, name)
            except RuntimeError:  # it spills, say
                continue
            times[name] = min(timing.seconds(calls), times.get(name, math.inf))
        if times:
            best = min(times, key=times.__getitem__)
            _ops.use_expert_schedule(*key, best, len(names))
        for name, seconds in times.items():
            _log.debug("%d rows of %s: %.1f us, %s", rows, stack.shape, 1e6 * seconds, name)
    return of_item


def _warm(calls: Sequence[Callable[[], Tensor]]) -> None:
    """Compiling may have left the clocks low."""
    end = time.monotonic() + _WARM_SECONDS
    while time.monotonic() < end:
        for call in calls:
            call()
        torch.cuda.synchronize()


def _product(x: Tensor, stack: Stack, items: Tensor, of_item: int) -> Tensor:
    return experts.expert_linear(x, stack, None, items, of_item)


def _random_items(problem: Problem, of_item: int, seed: int) -> Tensor:
    """The table of a router that chooses at random. torch's random numbers of the caller stay as
    they are."""
    stack, tokens = problem.gate_up, problem.tokens
    source = torch.Generator(stack.images.device).manual_seed(seed)
    odds = torch.rand(tokens, stack.experts, device=stack.images.device, generator=source)
    ids = odds.topk(problem.of_token, dim=1).indices
    x = torch.zeros(tokens, 8, dtype=problem.dtype, device=ids.device)
    return experts.route(x, ids, stack.experts, of_item)[1]
