# SPDX-License-Identifier: Apache-2.0
"""The choice of one option for each unit within a budget, beside all choices that there are."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder.nn.mixed_precision import knapsack
from ladder.nn.mixed_precision.knapsack import least_cost

#: Costs in eighths, whose sums are exact; small numbers, so that many choices are alike.
COSTS = st.integers(0, 40).map(lambda eighths: eighths / 8)
UNITS = st.lists(
    st.lists(st.tuples(st.integers(0, 20), COSTS), min_size=1, max_size=4), min_size=1, max_size=6
)


def sums(units, places):
    sizes, costs = zip(*(options[p] for options, p in zip(units, places, strict=True)), strict=True)
    return sum(sizes), sum(costs)


def least(units):
    return sum(min(size for size, _ in options) for options in units)


def best(units, budget):
    every = (sums(units, places) for places in itertools.product(*(range(len(u)) for u in units)))
    return min(cost for size, cost in every if size <= budget)


@settings(max_examples=300, deadline=None)
@given(UNITS, st.integers(0, 130))
def test_no_other_choice_within_the_budget_costs_less(units, more):
    budget = least(units) + more
    size, cost = sums(units, least_cost(units, budget))
    assert size <= budget and cost == best(units, budget)


@settings(max_examples=100, deadline=None)
@given(UNITS, st.integers(0, 130))
def test_where_states_are_left_out_an_increment_is_lost_at_most(units, more):
    budget = least(units) + more
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knapsack, "_MOST_STATES", 1)
        size, cost = sums(units, least_cost(units, budget))
    step = max(max(c for _, c in options) - min(c for _, c in options) for options in units)
    assert size <= budget and best(units, budget) <= cost <= best(units, budget) + step


def test_a_model_of_many_layers_takes_all_of_its_budget():
    """Shapes of 32 blocks, costs that quarter with each bit: less than a layer's step is left."""
    torch.manual_seed(0)
    weights = [1 << 24, 3 << 23, 7 << 23, 5 << 22] * 32
    share = torch.rand(len(weights)).pow(3).tolist()
    units = [
        [(w * bits + w // 8, s * 4.0**-bits) for bits in range(1, 9)]
        for w, s in zip(weights, share, strict=True)
    ]
    budget = math.floor(3.3 * sum(weights))
    size, cost = sums(units, least_cost(units, budget))
    assert 0 <= budget - size < max(weights)
    # Increments in part: what no choice can be below.
    steps = sorted(
        ((s * 4.0**-b - s * 4.0 ** -(b + 1)) / w, w)
        for w, s in zip(weights, share, strict=True)
        for b in range(1, 8)
    )
    room, bound = budget - least(units), sum(options[0][1] for options in units)
    for gain, w in reversed(steps):
        part = min(w, room)
        bound -= gain * part
        room -= part
    assert bound <= cost * (1 + 1e-12) and cost - bound < steps[-1][0] * max(weights)
