# SPDX-License-Identifier: Apache-2.0
"""``ladder calibrate``, on a GPU that is a clock: what is measured, and how often what is run."""

import contextlib
import re
import types

import pytest
import torch

from ladder.cuda import calibrate as module
from ladder.cuda.calibrate import calibrate
from ladder.errors import InvalidArgument, Unsupported


class Clock:
    """A GPU of 4 multiprocessors at 1 GHz: 1 TB/s of memory and 4 of L2 of 1 MiB, a trip of every
    loop a thousand cycles."""

    L2, SMS, HERTZ = 1 << 20, 4, 1e9
    TRIP = 1000

    def __init__(self, capability):
        self.now, self.kernels, self.layers = 0.0, [], []
        major, minor = divmod(capability, 10)
        self.properties = types.SimpleNamespace(
            major=major, minor=minor, multi_processor_count=self.SMS, L2_cache_size=self.L2,
            max_threads_per_multi_processor=2048, name="clock", uuid="0",
        )  # fmt: skip

    def run_program(self, text, name, x, y, threads, shared, arguments, count):
        assert (name, y, shared) == ("measure", 1, 0) and "measure(" in text
        *given, out = arguments
        assert out.dtype == torch.int64 and out.numel() >= 2 * self.SMS
        self.kernels.append(text)
        if "int pass" in text:
            passes = int(re.search(r"pass < (\d+)", text)[1])
            rate = 4e12 if given[0].numel() * 4 <= self.L2 else 1e12
            assert count * 16 == given[0].numel() * 4
            self.now += count * 16 * passes / rate
            return
        cycles = self.TRIP * count
        assert x in (1, 2, self.SMS)  # what is counted is of one block on each
        out[:x], out[self.SMS : self.SMS + x] = cycles, int(cycles / self.HERTZ * 1e9)
        self.now += cycles / self.HERTZ

    def seconds(self, calls):
        return {False: 3e-6, True: 2e-6}[self.layers[-1]]

    def open_weight(self, type, n, k, dependent_launch):
        self.layers.append(dependent_launch)
        return 7


@pytest.fixture
def clock(request, monkeypatch):
    clock = Clock(request.param)

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock.now

        def elapsed_time(self, end):
            return 1e3 * (end.at - self.at)

    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "device": lambda index: contextlib.nullcontext(),
        "get_device_properties": lambda index: clock.properties,
        "mem_get_info": lambda: (1 << 25, 1 << 26),
        "synchronize": lambda: None,
        "Event": Event,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(module, "_device", lambda index: torch.device("cpu"))
    monkeypatch.setattr(module, "_ops", types.SimpleNamespace(run_program=clock.run_program))
    monkeypatch.setattr(module.image, "open_weight", clock.open_weight)
    monkeypatch.setattr(module.timing, "calls_of", lambda *arguments: [[]])
    monkeypatch.setattr(module.timing, "seconds", clock.seconds)
    return clock


@pytest.mark.parametrize("clock", [90], indirect=True)
def test_every_number_of_a_hopper_gpu_is_that_of_the_clock(clock):
    made = calibrate(0)
    assert not made.skipped and not made.unsteady
    expected = {
        "read_bytes_per_second": 1e12,
        "l2_bytes_per_second": 4e12,
        "clock": 1e9,
        # 1024 threads of 32 operations a trip.
        "integer_lanes": 1024 * 32 / Clock.TRIP,
        "latency_seconds": 1e-6,
        "ticket_seconds": 1e-6,
        "cluster_seconds": 1e-6,
        "launch_seconds": 3e-6,
        "dependent_seconds": 2e-6,
    }
    for operand, k in (("float16", 16), ("bfloat16", 16), ("int8", 32), ("float8_e4m3", 32)):
        # 16 warps of 8 products of 16 x 8, and 2 warpgroups of 4 products of 64 x 256.
        for kind, products in (("mma", 16 * 8 * 16 * 8 * k), ("wgmma", 2 * 4 * 64 * 256 * k)):
            lanes = products / Clock.TRIP
            expected[f"{kind}.{operand}.lanes"] = lanes
            expected[f"{kind}.{operand}.flops"] = 2 * lanes * Clock.SMS * Clock.HERTZ
    assert made.numbers == pytest.approx(expected)
    assert made.about["name"] == "clock"


@pytest.mark.parametrize("clock", [75, 80, 89, 120], indirect=True)
def test_what_a_gpu_has_no_instruction_for_is_not_measured(clock):
    capability = 10 * clock.properties.major + clock.properties.minor
    names = set(calibrate(0).numbers)
    assert not any(name.startswith("wgmma") for name in names)
    assert ("mma.float8_e4m3.flops" in names) == (capability >= 89)
    assert ("mma.bfloat16.flops" in names) == (capability >= 80)
    assert {"mma.float16.flops", "mma.int8.flops"} <= names
    assert ("dependent_seconds" in names) == ("cluster_seconds" in names) == (capability >= 90)


@pytest.mark.parametrize("clock", [90], indirect=True)
def test_reads_are_of_more_than_l2_holds_twice_and_of_what_it_holds(clock, monkeypatch):
    read = []
    run = module._ops.run_program

    def run_program(text, *arguments):
        if "int pass" in text:
            read.append(arguments[5][0].numel() * 4)
        run(text, *arguments)

    monkeypatch.setattr(module._ops, "run_program", run_program)
    calibrate(0)
    assert min(read) <= Clock.L2 // 2 and max(read) > 2 * Clock.L2
    assert all(each <= Clock.L2 // 2 or each > 2 * Clock.L2 for each in read)


@pytest.mark.parametrize("clock", [90], indirect=True)
def test_what_differs_from_repeat_to_repeat_is_said(clock, monkeypatch):
    times = iter([3e-6, 3e-6, 3e-6, 3e-6, 4e-6, *[2e-6] * 5])
    monkeypatch.setattr(module.timing, "seconds", lambda calls: next(times))
    made = calibrate(0)
    assert made.unsteady == {"launch_seconds": pytest.approx(1 / 3)}
    assert made.numbers["launch_seconds"] == 3e-6


@pytest.mark.parametrize("clock", [90], indirect=True)
def test_a_kernel_that_is_refused_leaves_its_number_out(clock, monkeypatch):
    run = module._ops.run_program

    def run_program(text, *arguments):
        if "cluster" in text:
            raise RuntimeError("the driver has\nno clusters")
        run(text, *arguments)

    monkeypatch.setattr(module._ops, "run_program", run_program)
    made = calibrate(0)
    assert made.skipped == {"cluster_seconds": "the driver has no clusters"}
    assert "cluster_seconds" not in made.numbers and "ticket_seconds" in made.numbers


@pytest.mark.parametrize("clock", [90], indirect=True)
def test_a_device_that_is_not_there_is_refused_with_how_many_there_are(clock):
    with pytest.raises(InvalidArgument, match="device is 1, of 1"):
        calibrate(1)


def test_without_a_gpu_and_on_amds_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unsupported, match="no CUDA device"):
        calibrate(0)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(Unsupported, match="AMD's nothing measures yet"):
        calibrate(0)
