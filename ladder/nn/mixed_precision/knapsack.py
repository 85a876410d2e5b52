# SPDX-License-Identifier: Apache-2.0
"""The multiple-choice knapsack: one option of each unit, so that costs are least within a budget.

States are sums of sizes and costs over the units so far, and only those are kept that no other
state beats in both and that can still lead to less than the best known choice. What the units that
are left can do at best is bounded by the convex hulls of their options (the linear relaxation), of
which increments are taken in the order of what they gain for their size; the same order, without
the increments that do not fit, gives the choice to begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: Of one unit: (size, cost) of each option.
Options = Sequence[tuple[int, float]]
#: States that are kept at most. Beyond it the choice may miss the least cost, by no more than the
#: first increment of a unit that does not fit any more gains.
_MOST_STATES = 1 << 16


def least_cost(units: Sequence[Options], budget: int) -> list[int]:
    """The option of each unit, by its place, for which the sum of costs is least and the sum of
    sizes no more than ``budget``.

    Args:
        units: options of finite costs; sizes are integers.
        budget: no less than the smallest options take.
    """
    kept = [_undominated(options) for options in units]
    increments = [each for at, options in enumerate(kept) for each in _increments(at, options)]
    increments.sort(key=lambda each: (-each.gain / each.size, each.unit))
    choice = _greedy(kept, increments, budget)
    most = sum(options[place].cost for options, place in zip(kept, choice, strict=True))
    found = _exact(kept, increments, budget, most)
    return [options[place].place for options, place in zip(kept, found or choice, strict=True)]


@dataclass(frozen=True)
class _Option:
    size: int
    cost: float
    place: int  #: among the options that were given


@dataclass(frozen=True)
class _Increment:
    """From one option on the hull of a unit to the next."""

    unit: int
    to: int  #: the option's place among those kept
    size: int
    gain: float  #: of cost


def _undominated(options: Options) -> list[_Option]:
    """By size, each of less cost than those before it."""
    kept: list[_Option] = []
    for size, cost, place in sorted((*each, place) for place, each in enumerate(options)):
        if not kept or cost < kept[-1].cost:
            kept.append(_Option(size, cost, place))
    return kept


def _increments(unit: int, options: Sequence[_Option]) -> list[_Increment]:
    """Along the lower convex hull."""
    hull: list[int] = []
    for at, option in enumerate(options):
        while len(hull) > 1:
            first, last = options[hull[-2]], options[hull[-1]]
            steeper = (first.cost - last.cost) * (option.size - last.size)
            if steeper > (last.cost - option.cost) * (last.size - first.size):
                break
            hull.pop()
        hull.append(at)
    return [
        _Increment(
            unit, to, options[to].size - options[at].size, options[at].cost - options[to].cost
        )
        for at, to in zip(hull, hull[1:], strict=False)
    ]


def _greedy(
    units: Sequence[Sequence[_Option]], increments: Sequence[_Increment], budget: int
) -> list[int]:
    choice = [0] * len(units)
    room = budget - sum(options[0].size for options in units)
    full: set[int] = set()  # units of which an increment did not fit
    for each in increments:
        if each.unit in full or each.size > room:
            full.add(each.unit)
            continue
        room -= each.size
        choice[each.unit] = each.to
    return choice


def _exact(
    units: Sequence[Sequence[_Option]],
    increments: Sequence[_Increment],
    budget: int,
    most: float,
) -> list[int] | None:
    """The choice that costs less than ``most``, least of all; None where there is none."""
    sizes, costs = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.float64)
    made: list[tuple[Tensor, Tensor]] = []  # of each state, that before it and the option
    for unit, options in enumerate(units):
        room = budget - sum(each[0].size for each in units[unit + 1 :])
        own_sizes = torch.tensor([each.size for each in options])
        own_costs = torch.tensor([each.cost for each in options], dtype=torch.float64)
        all_sizes = (sizes[:, None] + own_sizes).flatten()
        all_costs = (costs[:, None] + own_costs).flatten()
        least = all_costs + _rest(units, increments, unit + 1, room - all_sizes)
        candidates = torch.nonzero((all_sizes <= room) & (least < most)).flatten()
        if len(candidates) > _MOST_STATES:
            candidates = candidates[least[candidates].argsort()[:_MOST_STATES]]
        candidates = candidates[all_costs[candidates].argsort(stable=True)]
        candidates = candidates[all_sizes[candidates].argsort(stable=True)]
        before = torch.full((1,), torch.inf, dtype=torch.float64)
        best = torch.cat([before, all_costs[candidates].cummin(0).values[:-1]])[: len(candidates)]
        candidates = candidates[all_costs[candidates] < best]
        if not len(candidates):
            return None
        sizes, costs = all_sizes[candidates], all_costs[candidates]
        made.append((candidates // len(options), candidates % len(options)))
    state, choice = int(costs.argmin()), []
    for before, option in reversed(made):
        choice.append(int(option[state]))
        state = int(before[state])
    return choice[::-1]


def _rest(
    units: Sequence[Sequence[_Option]], increments: Sequence[_Increment], first: int, room: Tensor
) -> Tensor:
    """The least that units from ``first`` on can cost with so much room beside their smallest
    options, where increments can be taken in part."""
    own = [each for each in increments if each.unit >= first]
    ends = torch.tensor([0, *(each.size for each in own)]).cumsum(0)
    gains = torch.tensor([0.0, *(each.gain for each in own)], dtype=torch.float64).cumsum(0)
    at = torch.searchsorted(ends, room.clamp(min=0), right=True) - 1
    after = (at + 1).clamp(max=len(own))
    part = (room.clamp(min=0) - ends[at]) / (ends[after] - ends[at]).clamp(min=1)
    gained = gains[at] + part * (gains[after] - gains[at])
    return sum(options[0].cost for options in units[first:]) - gained
