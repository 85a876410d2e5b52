# SPDX-License-Identifier: Apache-2.0
"""Times the kernels of layers of experts, on choices that a router makes at random."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ladder.cuda import experts, timing
from ladder.cuda.experts import Stack
from ladder.cuda.request import Mode, Origin, check_mode
from ladder.ops.activations import MOST_EXPERT_TOKENS_AS_THEY_COME
from ladder.types import TType

_ops = torch.ops.ladder

#: Calls of a graph, each with choices of its own.
_CALLS = 8
#: Each schedule is timed so often, in turn with the others, and the least counts.
_ROUNDS = 2
_WARM_SECONDS = 0.05
#: kFavour of csrc/runtime/expert_products.cpp.
_FAVOUR = 0.5
_log = logging.getLogger("ladder")


@dataclass(frozen=True)
class Problem:
    """A layer's products for ``tokens`` tokens, each of ``of_token`` experts, and rounded to
    ``activation_type``, "" for as they come, where there are so many that layers round them."""

    gate_up: Stack
    down: Stack
    tokens: int
    of_token: int
    dtype: torch.dtype
    activation_type: str = ""

    @property
    def rounds(self) -> bool:
        return bool(self.activation_type) and self.tokens > MOST_EXPERT_TOKENS_AS_THEY_COME

    @property
    def stacks(self) -> tuple[Stack, Stack]:
        """As products of such rows have them."""
        if not self.rounds:
            return self.gate_up, self.down
        rounding = experts.rounding
        first = rounding(self.gate_up, self.activation_type)
        return first, rounding(self.down, self.activation_type)

    @property
    def key(self) -> tuple[object, ...]:
        """The same for layers whose kernels are the same."""
        gate_up, down = self.stacks
        stacks = (gate_up.number, down.number, gate_up.experts)
        return (*stacks, self.gate_up.images.device, self.tokens * self.of_token, self.dtype)


@dataclass(frozen=True)
class Chosen:
    """The kernels of a layer of experts for one number of tokens: of items of at most ``of_item``
    rows, 0 where there are none. ``gate_up`` and ``down`` are the schedules of the products that
    were timed now, "" of others. ``origin`` is as :data:`ladder.cuda.request.Origin`: "proposed"
    where not all proposals for either product were timed, "stored" where both have plans of before.
    ``late`` says that the deadline left proposals untimed."""

    of_item: int
    origin: Origin = ""
    gate_up: str = ""
    down: str = ""
    late: bool = False


class Product(NamedTuple):
    """One product of a layer of experts: the number of its weights' images
    (:func:`ladder.cuda.image.open_weight`), their type and shape [N, K], and whether they were
    opened with a gating."""

    number: int
    ttype: TType
    shape: tuple[int, int]
    gated: bool = False

    def random_stack(self, experts: int, device: torch.device) -> Stack:
        source = torch.Generator(device).manual_seed(0)
        images = timing.random_images(experts, self.number, self.ttype.bits, source)
        return Stack(images, self.number, self.shape, str(self.ttype), self.gated)


@dataclass(frozen=True)
class ExpertsRequest:
    """Kernels of layers of ``experts`` experts, of which each token has ``of_token``, for ``m``
    tokens of ``dtype``, rounded to ``activation_type`` as :class:`Problem` has it."""

    gate_up: Product
    down: Product
    experts: int
    of_token: int
    device: torch.device
    dtype: torch.dtype
    m: tuple[int, ...]
    activation_type: str = ""


class TunedExperts(dict[ExpertsRequest, dict[int, Chosen]]):
    """For each request and number of tokens the kernels. ``late`` counts those that the budget left
    untimed."""

    late = 0


def tune_layers(
    requests: Iterable[ExpertsRequest],
    *,
    mode: str = "fast",
    budget_s: float = 20.0,
    progress: Callable[[str, int, int], None] | None = None,
) -> TunedExperts:
    """Choose, compile and keep the kernels of layers of experts, which are timed on random weights:
    GPU memory holds those of one layer.

    Args:
        mode, budget_s, progress: as :func:`ladder.cuda.tune.tune_all`.
    """
    tuned, kind, deadline = TunedExperts(), check_mode(mode), time.monotonic() + budget_s
    asked = list(dict.fromkeys(requests))
    done, total = 0, sum(len(request.m) for request in asked)
    for r in asked:
        tuned[r] = {}
        for tokens, chosen in _tune_layer(r, kind, deadline):
            tuned[r][tokens] = chosen
            tuned.late += chosen.late
            done += 1
            if progress is not None:
                text = f"{r.experts} experts of {r.gate_up.ttype.element.name}, {tokens} tokens"
                progress(text, done, total)
    if tuned.late:
        _log.warning(
            "%d of %d kernels of experts are not timed: %g seconds were too few to time them all; "
            "the next tuning goes on there", tuned.late, total, budget_s,
        )  # fmt: skip
    return tuned


def _tune_layer(
    request: ExpertsRequest, mode: Mode, deadline: float
) -> Iterator[tuple[int, Chosen]]:
    """What is chosen for each number of tokens. The random weights are freed at the end."""
    r = request
    with torch.cuda.device(r.device):
        gate_up, down = (each.random_stack(r.experts, r.device) for each in (r.gate_up, r.down))
        problems = {
            tokens: Problem(gate_up, down, tokens, r.of_token, r.dtype, r.activation_type)
            for tokens in r.m
        }
        for rounds in (False, True):
            alike = [p for p in problems.values() if p.rounds == rounds]
            if alike:
                rows = [p.tokens * p.of_token for p in alike]
                first, second = alike[0].stacks
                numbers, index = (first.number, second.number), first.images.device.index
                experts.compile_ahead(numbers, first.experts, rows, r.dtype, index)
        for tokens, problem in problems.items():
            yield tokens, tune(problem, mode, deadline)


def tune(problem: Problem, mode: Mode, deadline: float) -> Chosen:
    """Compile the kernels of a layer and keep the fastest of the scheduler's proposals, in this
    process and a store; where a store has a plan, that.

    Args:
        deadline: of ``time.monotonic()``; behind it nothing more is compiled to be timed, or timed.
            A product of which it leaves proposals untimed takes the fastest of the others, which is
            no plan, or the first.
    """
    p, rows = problem, problem.tokens * problem.of_token
    of_item = experts.rows_of_item(*p.stacks, rows, p.dtype)
    if of_item == 0:
        return Chosen(0)
    routed = None
    origins: list[Origin] = []
    timed, late = [], False
    for stack in p.stacks:
        key = (stack.number, stack.experts, rows, of_item, p.dtype, stack.images.device.index)
        timed.append("")
        if _ops.has_expert_plan(*key, max(mode.measured, 1)):
            origins.append("stored")
            continue
        origins.append("proposed")
        if mode.proposals == 1:
            continue
        if time.monotonic() > deadline:
            late = True
            continue
        names = _ops.expert_schedules(*key, mode.proposals).splitlines()
        routed = routed or [_random_items(p, of_item, i) for i in range(_CALLS)]
        x = torch.randn(rows, stack.shape[1], device=stack.images.device).to(p.dtype)
        calls = [_product(p, x, stack, items, of_item) for items in routed]
        warm(calls)
        times, whole = times_of(key, names, calls, deadline)
        late = late or not whole
        best = min(times, key=times.__getitem__, default=None)
        if best is not None and whole:
            _ops.use_expert_schedule(*key, best, len(names))
            origins[-1], timed[-1] = "measured", best
        elif best is not None:
            _ops.use_expert_schedule(*key, best)
        for name, seconds in times.items():
            _log.debug("%d rows of %s: %.1f us, %s", rows, stack.shape, 1e6 * seconds, name)
    by_rank: tuple[Origin, ...] = ("proposed", "measured", "stored")
    origin = next(each for each in by_rank if each in origins)
    return Chosen(of_item, origin, timed[0], timed[1], late)


def times_of(
    key: tuple[object, ...], names: Sequence[str], calls: Sequence[Callable[[], Tensor]],
    deadline: float, items: str = "experts",
) -> tuple[dict[str, float], bool]:  # fmt: skip
    """Seconds of each schedule that the device takes; and whether each of ``names`` had its turn
    before the deadline. ``items`` as ``torch.ops.ladder.use_expert_schedule`` has them."""
    times: dict[str, float] = {}
    for turn, name in enumerate([*names] * _ROUNDS):
        if time.monotonic() > deadline:
            return times, turn >= len(names)
        try:
            _ops.use_expert_schedule(*key, name, items=items)
        except RuntimeError as error:  # it spills, say
            _log.debug("%s: %s", name, error)
            continue
        times[name] = min(timing.seconds(calls), times.get(name, math.inf))
    return times, True


def warm(calls: Sequence[Callable[[], Tensor]]) -> None:
    """Compiling may have left the clocks low."""
    end = time.monotonic() + _WARM_SECONDS
    while time.monotonic() < end:
        for call in calls:
            call()
        torch.cuda.synchronize()


def _product(
    problem: Problem, x: Tensor, stack: Stack, items: Tensor, of_item: int
) -> Callable[[], Tensor]:
    """The product by itself: what rounds x is the same whatever the schedule."""
    if not problem.rounds:
        return functools.partial(experts.expert_linear, x, stack, None, items, of_item)
    codes, scales = experts.rounded(x, problem.activation_type)
    return functools.partial(
        experts.expert_linear_rounded, codes, scales, stack, None, items, of_item, x.dtype
    )


def _random_items(problem: Problem, of_item: int, seed: int) -> Tensor:
    """The table of a router that favours experts at random, as csrc/runtime/expert_products.cpp
    expects it. torch's random numbers of the caller stay as they are."""
    stack, tokens = problem.gate_up, problem.tokens
    source = torch.Generator().manual_seed(seed)
    favour = torch._standard_gamma(torch.full((stack.experts,), 1 / _FAVOUR**2), generator=source)
    # The k largest of log(favour) and a Gumbel number are k choices without replacement.
    gumbel = -torch.rand(tokens, stack.experts, generator=source).log().neg().log()
    ids = (favour.log() + gumbel).topk(problem.of_token, dim=1).indices.to(stack.images.device)
    x = torch.zeros(tokens, 8, dtype=problem.dtype, device=ids.device)
    return experts.route(x, ids, stack.experts, of_item)[1]
