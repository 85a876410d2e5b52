# SPDX-License-Identifier: Apache-2.0
"""Tuning of layers of experts, with a compiler and a GPU of the test. No GPU."""

import contextlib
import dataclasses
import weakref

import pytest
import torch

import ladder
from ladder.cuda import timing, tune_experts
from ladder.cuda.experts import Stack
from ladder.cuda.tune_experts import Chosen, ExpertsRequest, Product, tune_layers

TYPE = ladder.ttype("uint4,group=32,scale=float16")
GPU = torch.device("cuda", 0)
GATE_UP, DOWN = Product(1, TYPE, (192, 64)), Product(2, TYPE, (64, 96))


class Machine:
    """What tuning asks of the ops. A schedule is "WEIGHT/ROWS#PLACE"; the later its place, the
    faster it is, up to ``best``."""

    def __init__(self):
        self.plans, self.timed, self.best, self.refused, self.of_item = {}, [], 1, (), 16
        self.now, self.clock, self.takes = "", 0.0, 0.0
        self.ahead = []

    def expert_rows(self, gate_up, down, experts, rows, dtype, device):
        return self.of_item

    def compile_experts(self, gate_up, down, experts, rows, dtype, device):
        self.ahead.append((gate_up, down, rows))

    def weight_for(self, weight, activation_type):
        assert activation_type == "int8"
        return 10 + weight

    def rounded_codes(self, x, activation_type, x_scale=None):
        return x, x[:, 0]

    def has_expert_plan(self, *key_and_measured):
        *key, measured = key_and_measured
        return self.plans.get(tuple(key), ("", 0))[1] >= measured

    def expert_schedules(self, weight, experts, rows, of_item, dtype, device, count):
        return "\n".join(f"{weight}/{rows}#{place}" for place in range(count))

    def use_expert_schedule(self, *key_and_name, items="experts"):
        key, (name, *measured) = key_and_name[:6], key_and_name[6:]
        if name.partition("#")[2] in self.refused:
            raise RuntimeError(f"{name} spills")
        self.now = name
        if measured:
            self.plans[key] = name, measured[0]

    def seconds(self, calls):
        self.timed.append(self.now)
        self.clock += self.takes
        place = int(self.now.partition("#")[2])
        return 1.0 + abs(place - self.best)


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    monkeypatch.setattr(tune_experts, "_ops", made)
    monkeypatch.setattr(tune_experts.experts, "_ops", made)
    monkeypatch.setattr(timing, "seconds", made.seconds)
    monkeypatch.setattr(tune_experts, "warm", lambda calls: None)
    monkeypatch.setattr(tune_experts, "_random_items", lambda *_: None)
    monkeypatch.setattr(tune_experts.time, "monotonic", lambda: made.clock)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    tune_experts.experts.number_for.cache_clear()
    images = torch.zeros(4, 1, dtype=torch.int32)
    monkeypatch.setattr(
        Product, "random_stack", lambda p, *_: Stack(images, p.number, p.shape, str(p.ttype))
    )
    return made


def request(*m):
    return ExpertsRequest(GATE_UP, DOWN, 4, 2, GPU, torch.float16, m)


def test_the_fastest_of_each_product_is_kept_as_its_plan(machine):
    said = []
    tuned = tune_layers([request(1, 8)], progress=lambda *what: said.append(what))
    assert tuned[request(1, 8)] == {
        1: Chosen(16, "measured", "1/2#1", "2/2#1"),
        8: Chosen(16, "measured", "1/16#1", "2/16#1"),
    }
    assert set(machine.plans.values()) == {(f"{w}/{rows}#1", 3) for w in (1, 2) for rows in (2, 16)}
    assert tuned.late == 0 and [(done, total) for _, done, total in said] == [(1, 2), (2, 2)]


def test_a_plan_of_a_store_is_not_timed_again_until_more_are_to_be(machine):
    tune_layers([request(4)])
    machine.timed.clear()
    assert tune_layers([request(4)])[request(4)] == {4: Chosen(16, "stored")}
    assert machine.timed == []
    machine.best = 7
    (chosen,) = tune_layers([request(4)], mode="full")[request(4)].values()
    assert chosen == Chosen(16, "measured", "1/8#7", "2/8#7")


def test_what_the_budget_leaves_out_is_a_first_proposal_and_counted(machine, caplog):
    machine.takes = 1.0
    tuned = tune_layers([request(1, 2)], budget_s=5.0)
    first, second = tuned[request(1, 2)].values()  # three schedules, each timed twice
    assert first == Chosen(16, "proposed", "1/2#1", "", late=True)
    assert second == Chosen(16, "proposed", late=True)
    assert tuned.late == 2
    assert "2 of 2 kernels of experts are not timed: 5 seconds were too few" in caplog.text
    machine.takes = 0.0
    caplog.clear()
    assert tune_layers([request(1, 2)]).late == 0
    assert len(machine.plans) == 4 and caplog.text == ""


@pytest.mark.parametrize(
    ("budget", "timed", "origin"), [(1.5, 2, "proposed"), (2.5, 3, "measured")]
)
def test_the_budget_ends_among_the_schedules_of_a_product(machine, budget, timed, origin):
    """A product whose proposals were all timed once has a plan."""
    machine.takes = 1.0
    tuned = tune_layers([request(1)], budget_s=budget)
    assert len(machine.timed) == timed and machine.now == "1/2#1", "the fastest of those is in use"
    assert list(machine.plans.values()) == [("1/2#1", 3)] * (origin == "measured")
    assert tuned.late == 1
    machine.takes = 0.0
    tuned = tune_layers([request(1)])
    assert [chosen.origin for chosen in tuned[request(1)].values()] == ["measured"]


def test_the_weights_of_a_layer_are_freed_before_those_of_the_next(machine, monkeypatch):
    seen, alive, drawn = [], [], Product.random_stack

    def watched(product, *arguments):
        stack = drawn(product, *arguments)
        alive.append(sum(each() is not None for each in seen))
        seen.append(weakref.ref(stack))
        return stack

    monkeypatch.setattr(Product, "random_stack", watched)
    tune_layers([request(1), request(2, 4)])
    assert alive == [0, 1, 0, 1]


def test_without_timing_there_are_no_plans_and_nothing_is_late(machine):
    tuned = tune_layers([request(4)], mode="off")
    assert tuned[request(4)] == {4: Chosen(16, "proposed")}
    assert (machine.plans, machine.timed, tuned.late) == ({}, [], 0)


def test_a_schedule_that_spills_is_passed_over(machine):
    machine.refused = ("1",)
    (chosen,) = tune_layers([request(4)])[request(4)].values()
    assert chosen.origin == "measured" and chosen.gate_up in ("1/8#0", "1/8#2")
    machine.refused, machine.plans = ("0", "1", "2"), {}
    tuned = tune_layers([request(4)])
    assert tuned[request(4)] == {4: Chosen(16, "proposed")} and tuned.late == 0


def test_experts_without_kernels_are_said_to_have_none(machine):
    machine.of_item = 0
    assert tune_layers([request(1)])[request(1)] == {1: Chosen(0)}


def test_products_of_rounded_rows_have_plans_of_their_own(machine):
    of = dataclasses.replace(request(16, 65), activation_type="int8")
    tuned = tune_layers([of])
    assert tuned[of] == {
        16: Chosen(16, "measured", "1/32#1", "2/32#1"),
        65: Chosen(16, "measured", "11/130#1", "12/130#1"),
    }


def test_layers_that_are_alike_are_tuned_once(machine):
    tune_layers([request(1), request(1)])
    assert len(machine.timed) == 2 * 3 * tune_experts._ROUNDS
    with pytest.raises(ladder.InvalidArgument, match="tune is 'slow'"):
        tune_layers([], mode="slow")


def test_first_choices_of_all_numbers_of_tokens_are_compiled_together(machine):
    tune_layers([request(1, 8, 64)])
    assert machine.ahead == [(1, 2, [2, 16, 128])]
    machine.ahead.clear()
    tune_layers([dataclasses.replace(request(8, 65, 80), activation_type="int8")])
    assert machine.ahead == [(1, 2, [16]), (11, 12, [130, 160])], "what is rounded has its own"
