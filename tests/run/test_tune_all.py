# SPDX-License-Identifier: Apache-2.0
"""Tuning of many shapes at once, with a compiler and a GPU of the test. No GPU."""

import atexit
import contextlib
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch

import ladder
from ladder.cuda import background, kernels, tune
from ladder.cuda.tune import Request, compile_in_background, tune_all

TYPE = ladder.ttype("uint4,group=128,scale=float16")
GPU = torch.device("cuda", 0)


def request(weight, m=(1, 8, 16), dtype=torch.float16):
    return Request(weight, TYPE, (64 * weight, 256), GPU, dtype, m)


class Machine:
    """What tuning asks of the ops. A schedule is "WEIGHT/MOST#PLACE"; the later its place, the
    faster it is, up to ``best``."""

    def __init__(self):
        self.plans, self.proposed, self.timed, self.loaded = {}, [], [], []
        self.best, self.refused, self.takes = 2, (), 0.0
        self.now = ""
        self.stopped = threading.Event()

    def plan(self, weight, device, dtype, most, measured):
        name, of = self.plans.get((weight, device, dtype, most), ("", 0))
        return name if of >= measured else ""

    def schedules(self, weight, device, dtype, most, count, seconds=-1.0):
        self.stopped.wait(min(self.takes, seconds) if seconds >= 0 else self.takes)
        self.proposed.append((weight, most, count))
        return "\n".join(f"{weight}/{most}#{place}" for place in range(count))

    def use_schedule(self, weight, device, dtype, most, name, keep, measured=0):
        if name.partition("#")[2] in self.refused:
            raise RuntimeError(f"{name} spills")
        self.now = name
        if keep:
            self.plans[weight, device, dtype, most] = name, measured

    def warm_up(self, weight, device, dtype, m, residual):
        assert not residual  # tuning times calls without
        most = kernels.interval(m)
        self.loaded.append((weight, m))
        if dtype is torch.float32:
            return ""
        return self.plan(weight, device, dtype, most, 0) or f"{weight}/{most}#0"

    def stop_compiling_ahead(self):
        self.stopped.set()

    def token_interval(self, m, activation_type):
        return torch.ops.ladder.token_interval(m, activation_type)

    # --- timing ---

    def calls_of(self, weight, ttype, shape, device, dtype, m, columns):
        assert (ttype, device) == (TYPE, GPU) and shape == (64 * weight, 256)
        assert columns == shape[0]
        return [m]

    def seconds(self, tokens):
        self.timed.append((self.now, *tokens))
        return 1e-6 * (1 + abs(int(self.now.partition("#")[2]) - self.best))


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    for module in (background, kernels, tune):
        monkeypatch.setattr(module, "_ops", made)
    for name in ("calls_of", "seconds"):
        monkeypatch.setattr(tune, name, getattr(made, name))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return made


def test_each_number_of_tokens_in_passes_loads_the_kernel_of_its_last_pass(machine):
    m = (4000, 8192, 9000, 20000)
    tune_all([Request(1, TYPE, (64, 256), GPU, torch.float16, m, "int8")], mode="off")
    assert [tokens for _, tokens in machine.loaded] == list(m)


def test_the_fastest_of_three_is_kept_as_plan_and_loaded(machine):
    asked = request(1)
    tuned = tune_all([asked])
    assert tuned == {asked: {1: "1/1#2", 8: "1/8#2", 16: "1/16#2"}}
    assert tuned.origin == {asked: dict.fromkeys((1, 8, 16), "measured")} and tuned.late == 0
    assert machine.plans[1, 0, torch.float16, 8] == ("1/8#2", 3)
    assert sorted(machine.proposed) == [(1, 1, 3), (1, 8, 3), (1, 16, 3)]
    machine.best = 0
    assert tune_all([request(2)])[request(2)][1] == "2/1#0"


def test_equal_shapes_are_timed_once_for_the_least_and_the_most_tokens(machine):
    first, second = request(1, (2, 3, 5)), request(1, (4, 6))
    tuned = tune_all([first, second, first])
    assert machine.proposed == [(1, 8, 3)]
    assert machine.timed == [("1/8#0", 2, 6), ("1/8#1", 2, 6), ("1/8#2", 2, 6)]
    assert tuned == {first: dict.fromkeys((2, 3, 5), "1/8#2"),
                     second: dict.fromkeys((4, 6), "1/8#2")}  # fmt: skip


def test_what_differs_in_dtype_or_weight_is_timed_by_itself(machine):
    asked = [request(1, (1,)), request(1, (1,), torch.bfloat16), request(2, (1,))]
    assert len(tune_all(asked)) == 3 and len(machine.timed) == 9


def test_kernels_for_one_token_come_first(machine):
    jobs = background.jobs_of([request(1), request(2)])
    assert [(job.most, job.weight) for job in jobs] == [
        (1, 1), (1, 2), (8, 1), (8, 2), (16, 1), (16, 2),
    ]  # fmt: skip


def test_a_second_tuning_times_nothing(machine):
    first = tune_all([request(1)])
    machine.timed.clear()
    second = tune_all([request(1)])
    assert second == first and machine.timed == []
    assert set(second.origin[request(1)].values()) == {"stored"}


def test_full_times_eight_also_where_a_plan_is_the_best_of_three(machine):
    machine.best = 7
    tune_all([request(1, (1,))])
    assert tune_all([request(1, (1,))], mode="full")[request(1, (1,))] == {1: "1/1#7"}
    assert len(machine.timed) == 3 + 8
    tune_all([request(1, (1,))], mode="full")
    tune_all([request(1, (1,))], mode="fast")
    assert len(machine.timed) == 3 + 8


def test_off_takes_plans_and_first_proposals(machine):
    tune_all([request(1, (1,))])
    machine.timed.clear()
    tuned = tune_all([request(1), request(2)], mode="off")
    assert machine.timed == [] and tuned.late == 0
    assert tuned[request(1)] == {1: "1/1#2", 8: "1/8#0", 16: "1/16#0"}
    assert tuned.origin[request(1)] == {1: "stored", 8: "proposed", 16: "proposed"}
    assert (2, 8, 1) in machine.proposed  # compiled side by side, not when each is loaded
    assert (2, 0, torch.float16, 8) not in machine.plans


def test_what_the_budget_leaves_out_is_a_first_proposal_and_the_next_call_times_it(machine, caplog):
    machine.takes = 0.05
    many = [request(weight, (1,)) for weight in range(1, 41)]
    with caplog.at_level(logging.WARNING, "ladder"):
        tuned = tune_all(many, budget_s=0.2)
    timed = [r for r in many if tuned.origin[r][1] == "measured"]
    assert 0 < len(timed) < 40 and tuned.late == 40 - len(timed)
    for each in many:
        weight = each.weight
        assert tuned[each] == {1: f"{weight}/1#2" if each in timed else f"{weight}/1#0"}
        assert ((weight, 0, torch.float16, 1) in machine.plans) == (each in timed)
    (record,) = caplog.records
    assert f"{tuned.late} of 40 kernels are the scheduler's first proposal" in record.getMessage()
    machine.takes = 0
    again = tune_all(many)
    assert again.late == 0 and set(again.origin[timed[0]].values()) == {"stored"}
    assert sum(origin[1] == "measured" for origin in again.origin.values()) == tuned.late


def test_without_a_budget_nothing_is_timed(machine):
    tuned = tune_all([request(1, (1,))], budget_s=0)
    assert machine.timed == [] and tuned.late == 1 and tuned[request(1, (1,))] == {1: "1/1#0"}


def test_schedules_that_the_device_refuses_are_left_out(machine):
    machine.refused = ("2",)
    tuned = tune_all([request(1, (1,))])
    assert tuned[request(1, (1,))] == {1: "1/1#1"} and len(machine.timed) == 2
    machine.refused = ("0", "1", "2")
    tuned = tune_all([request(2, (1,))])
    assert tuned.origin[request(2, (1,))] == {1: "proposed"} and tuned.late == 0


def test_float32_is_dense_and_compiled_for(machine):
    single = request(2, (1,), torch.float32)
    tuned = tune_all([request(1, (16,)), single])
    assert tuned[single] == {1: ""} and (2, 1) in machine.loaded
    assert machine.proposed == [(1, 16, 3)]


def test_many_tokens_have_kernels_of_their_own(machine):
    tuned = tune_all([request(1, (40, 64))])
    assert tuned[request(1, (40, 64))] == {40: "1/48#2", 64: "1/64#2"}
    assert sorted(machine.proposed) == [(1, 48, 3), (1, 64, 3)]


def test_a_compiler_that_fails_costs_the_kernel_and_not_the_tuning(machine, monkeypatch):
    def fail(*_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(machine, "schedules", fail)
    monkeypatch.setattr(machine, "warm_up", lambda *_: "")
    tuned = tune_all([request(1, (1,))])
    assert tuned == {request(1, (1,)): {1: ""}} and tuned.origin[request(1, (1,))] == {1: ""}


def test_progress_counts_to_the_number_of_kernels(machine):
    said = []
    tune_all([request(1), request(2)], progress=lambda *words: said.append(words))
    assert [(done, total) for _, done, total in said] == [(done, 6) for done in range(7)]
    assert {name for name, *_ in said} >= {"uint4 [64, 256] up to 1", "uint4 [128, 256] up to 16"}


@pytest.mark.parametrize("mode", ["slow", "", None, 3])
def test_another_mode_is_refused(machine, mode):
    for call in (tune_all, compile_in_background):
        with pytest.raises(ladder.InvalidArgument, match="not one of off, fast, full"):
            call([request(1)], mode=mode)
    with pytest.raises(ladder.InvalidArgument, match="not one of off, fast, full"):
        ladder.warmup(torch.nn.Identity(), tune=mode)


@pytest.mark.parametrize("m", [0, -1, 1.5, "8", True])
def test_tokens_that_are_no_positive_integer_are_refused(machine, m):
    with pytest.raises(ladder.InvalidArgument, match="not a positive integer"):
        tune_all([request(1, (m,))])


# --- in the background ----------------------------------------------------------------------------


def test_compiling_in_the_background_returns_at_once_and_is_waited_for(machine):
    machine.takes = 0.2
    start = time.perf_counter()
    under_way = compile_in_background([request(1, (1,))])
    assert time.perf_counter() - start < 0.15 and machine.proposed == []
    under_way.wait()
    assert machine.proposed == [(1, 1, 3)]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_shapes_are_compiled_side_by_side(machine, monkeypatch):
    both = threading.Barrier(2, timeout=20)
    inner = machine.schedules
    monkeypatch.setattr(machine, "schedules", lambda *args: both.wait() and 0 or inner(*args))
    compile_in_background([request(1, (1,)), request(2, (1,))]).wait()
    assert len(machine.proposed) == 2 and not both.broken


def test_a_system_that_does_not_tell_which_processors_are_ours_compiles_too(machine, monkeypatch):
    """macOS."""
    monkeypatch.delattr(os, "sched_getaffinity")
    compile_in_background([request(1, (1,))]).wait()
    assert machine.proposed == [(1, 1, 3)]


def test_what_is_stopped_begins_no_further_shape(machine):
    machine.takes = 0.1
    under_way = compile_in_background([request(weight, (1,)) for weight in range(1, 201)])
    under_way.stop()
    under_way.wait()
    assert len(machine.proposed) <= len(os.sched_getaffinity(0))


def test_a_process_that_exits_does_not_wait_for_all(tmp_path):
    """Ten thousand kernels of 50 ms each."""
    code = """
        import sys; sys.path.insert(0, sys.argv[1])
        from test_tune_all import Machine, background, compile_in_background, request
        machine = Machine(); machine.takes = 0.05
        background._ops = machine
        compile_in_background([request(weight, (1,)) for weight in range(1, 10001)])
        import atexit, time
        start = time.perf_counter()
        atexit._run_exitfuncs()
        print(time.perf_counter() - start, machine.stopped.is_set())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), os.path.dirname(__file__)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seconds, stopped = done.stdout.split()
    assert float(seconds) < 10 and stopped == "True"


# --- warmup ---------------------------------------------------------------------------------------


def test_warming_up_on_a_cpu_does_nothing():
    layer = ladder.Linear(128, 64)
    for tune_ in (True, False, "off", "fast", "full"):
        done = ladder.warmup(layer, tune=tune_)
        assert done == {} and done.tuned == {} and layer.image is None


@pytest.mark.parametrize("processors", [2, 3])
def test_with_a_processor_each_kernels_that_take_longest_begin_first(processors, monkeypatch):
    class NotStarted(threading.Thread):
        def start(self):
            pass

    monkeypatch.setattr(background, "_processors", lambda: processors)
    monkeypatch.setattr(background.threading, "Thread", NotStarted)
    jobs = background.jobs_of([request(1, m=(1, 16, 64))])
    waiting = background.Background(jobs, tune.MODES["fast"])
    atexit.unregister(waiting._exit)
    order = [job.most for job in iter(waiting._next, None)]
    assert order == sorted(order, reverse=processors == 3) and len(order) == 3
