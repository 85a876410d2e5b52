# SPDX-License-Identifier: Apache-2.0
"""Measures what the cost model has to know of a GPU (csrc/device/calibration.h).

Kernels are texts for the compiler that all kernels of ladder go through, small loops of one
instruction each; launches are those of a small layer's own kernel.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

import ladder
from ladder import _library
from ladder.cuda import calibrate_kernels as kernels
from ladder.cuda import image, timing
from ladder.errors import InvalidArgument, Unsupported
from ladder.types import parse

_ops = torch.ops.ladder

#: Of which times are the median, after one that warms up.
_REPEATS = 5
#: Repeats that differ by more are not those of a GPU that does nothing else.
STEADY = 0.1
#: Seconds for which matrix instructions are kept up: clocks fall under them within this time.
_SUSTAINED = 0.1
_SMALL = "uint4,group=64,scale=float16,zero=midpoint"


@dataclass
class Measured:
    """``numbers`` by the names of csrc/device/calibration.cpp, in their units; ``about`` says of
    what machine and by what; ``unsteady`` has the share by which the repeats of a number differ,
    where that is above :data:`STEADY`; ``skipped`` why a number is not there."""

    numbers: dict[str, float] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    unsteady: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def calibrate(device: int = 0, progress: Callable[[str], None] = lambda name: None) -> Measured:
    """Measure GPU ``device``, which should do nothing else meanwhile: 10 to 20 seconds.

    Args:
        progress: called with the name of what is measured next.
    Returns:
        What the device has. A number whose kernel its compiler or driver refuses is left out.
    Raises:
        Unsupported: torch finds no GPU, or an AMD one, which nothing measures yet.
        InvalidArgument: there is no such device.
    """
    if torch.version.hip:
        raise Unsupported(
            "ladder calibrate measures NVIDIA's GPUs; for AMD's nothing measures yet, and their "
            "costs are counts of instructions and published figures"
        )
    if not torch.cuda.is_available():
        raise Unsupported("torch finds no CUDA device to measure")
    if not 0 <= device < torch.cuda.device_count():
        raise InvalidArgument(f"device is {device}, of {torch.cuda.device_count()}")
    _library.find_compiler()
    with torch.cuda.device(device):
        return _Bench(device, progress).run()


def _device(index: int) -> torch.device:
    return torch.device("cuda", index)


class _Bench:
    def __init__(self, device: int, progress: Callable[[str], None]) -> None:
        self.properties = torch.cuda.get_device_properties(device)
        self.capability = 10 * self.properties.major + self.properties.minor
        self.sms = self.properties.multi_processor_count
        self.l2 = self.properties.L2_cache_size
        self.device = _device(device)
        self.found, self.progress = Measured(), progress
        self.out = torch.zeros(8 * self.sms, dtype=torch.int64, device=self.device)
        source = torch.Generator(self.device).manual_seed(0)
        # Of which operands are made: what toggles in the multipliers is what costs power.
        self.random = torch.randn(1 << 17, device=self.device, generator=source)

    def run(self) -> Measured:
        self._about()
        self._try("warm-up", self._warm)
        self._try("read_bytes_per_second", self._read)
        self._try("l2_bytes_per_second", self._read_l2)
        self._try("integer_lanes", self._integers)
        self._try("latency_seconds", self._latency)
        self._try("launch_seconds", lambda: self._launch(False))
        self._try("ticket_seconds", lambda: self._chain(kernels.TICKET, 4096))
        if self.capability >= 90:
            self._try("dependent_seconds", lambda: self._launch(True))
            self._try("cluster_seconds", lambda: self._chain(kernels.CLUSTER, 4096, grid=2))
        for operand in kernels.OPERANDS:
            if text := kernels.warp_text(operand, self.capability):
                self._try(f"mma.{operand}.flops", partial(self._matrix, operand, text, False))
            # wgmma is of capability 9.0 alone.
            if self.capability == 90:
                text = kernels.group_text(operand)
                self._try(f"wgmma.{operand}.flops", partial(self._matrix, operand, text, True))
        return self.found

    def _about(self) -> None:
        about = self.found.about
        about["ladder"] = ladder.__version__
        about["compiler"] = str(torch.version.cuda)
        about["name"] = self.properties.name
        for what in ("driver_version", "power.limit", "clocks.max.sm", "clocks.max.mem"):
            try:
                about[what] = subprocess.run(
                    ["nvidia-smi", f"--id=GPU-{self.properties.uuid}", f"--query-gpu={what}",
                     "--format=csv,noheader"],
                    capture_output=True, text=True, timeout=10, check=True,
                ).stdout.strip()  # fmt: skip
            except (OSError, subprocess.SubprocessError, AttributeError):
                return  # a container may lack it: nothing depends on it

    def _warm(self) -> None:
        """Clocks of an idle device take a while to rise."""
        for _ in range(20):
            self._start(kernels.INTEGERS, self.sms, kernels.INTEGER_THREADS, 1 << 15)

    def _try(self, name: str, measure: Callable[[], list[float] | None]) -> None:
        """Note the median of what ``measure`` gives, a number of each repeat."""
        self.progress(name)
        try:
            values = measure()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            self.found.skipped[name] = " ".join(str(error).split())
            return
        if values:
            self._note(name, values)

    def _note(self, name: str, values: list[float]) -> None:
        self.found.numbers[name] = middle = statistics.median(values)
        spread = (max(values) - min(values)) / middle
        if spread > STEADY:
            self.found.unsteady[name] = spread

    def _start(self, text: str, grid: int, threads: int, count: int, *arguments: Tensor) -> None:
        _ops.run_program(text, "measure", grid, 1, threads, 0, [*arguments, self.out], count)

    def _times(self, run: Callable[[], None], repeats: int = _REPEATS) -> list[float]:
        """Seconds of each of ``repeats`` runs, behind one that is not counted."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        run()
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
        pairs = zip(events, events[1:], strict=False)
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]

    def _bytes(self, wanted: int) -> int:
        """No more than a quarter of what is free, where that is still more than L2 holds twice."""
        free = torch.cuda.mem_get_info()[0]
        return min(wanted, max(3 * self.l2, free // 4)) // 128 * 128

    def _read(self) -> list[float]:
        words = self._bytes(max(8 * self.l2, 1 << 30)) // 4
        data = torch.zeros(words, dtype=torch.int32, device=self.device)
        return self._rates(data, 1)

    def _read_l2(self) -> list[float]:
        # A quarter: each half of an L2 that has two may keep what the other half has, too.
        data = torch.zeros(self.l2 // 4 // 16 * 4, dtype=torch.int32, device=self.device)
        return self._rates(data, 64)

    def _rates(self, data: Tensor, passes: int) -> list[float]:
        threads = 512
        grid = self.properties.max_threads_per_multi_processor // threads * self.sms
        words = data.numel() // 4
        text = kernels.READ.replace("PASSES", str(passes))
        seconds = self._times(lambda: self._start(text, grid, threads, words, data))
        return [data.numel() * 4 * passes / each for each in seconds]

    def _cycles(self) -> float:
        return float(self.out[: self.sms].double().median())

    def _integers(self) -> list[float]:
        threads, trips = kernels.INTEGER_THREADS, 1 << 15
        lanes, clocks = [], []
        for _ in range(_REPEATS + 1):
            self._start(kernels.INTEGERS, self.sms, threads, trips)
            cycles = self._cycles()
            lanes.append(32.0 * threads * trips / cycles)
            clocks.append(1e9 * cycles / float(self.out[self.sms :][: self.sms].double().median()))
        self._note("clock", clocks[1:])
        return lanes[1:]

    def _latency(self) -> list[float]:
        # Lines of 128 bytes in one random cycle, of which L2 has few.
        lines = self._bytes(12 * self.l2) // 128
        order = torch.randperm(lines, device=self.device)
        chain = torch.empty((lines, 32), dtype=torch.int32, device=self.device)
        chain[order, 0] = (32 * order.roll(-1)).int()
        steps = 20000
        self.out.zero_()
        seconds = self._times(lambda: self._start(kernels.LATENCY, 1, 1, steps, chain))
        return [each / steps for each in seconds]

    def _chain(self, text: str, steps: int, grid: int = 1) -> list[float]:
        zero = torch.zeros(4, dtype=torch.int32, device=self.device)
        seconds = self._times(lambda: self._start(text, grid, 32, steps, zero))
        return [each / steps for each in seconds]

    def _launch(self, dependent: bool) -> list[float]:
        n = k = 512
        weight = image.open_weight(_SMALL, n, k, dependent_launch=dependent)
        calls = timing.calls_of(
            weight, parse(_SMALL), (n, k), self.device, torch.float16, [1]
        )[0]  # fmt: skip
        return [timing.seconds(calls) for _ in range(_REPEATS)]

    def _matrix(self, operand: str, text: str, group: bool) -> list[float]:
        """Operations per second, and into the numbers the multiply-adds of a cycle."""
        if group:
            threads, products = kernels.GROUP_THREADS, kernels.group_products(operand)
        else:
            threads = kernels.WARP_THREADS
            products = kernels.warp_products(operand, self.capability)
        of_block = products * threads // 32
        operands = self._operands(operand)

        def seconds(trips: int, repeats: int) -> list[float]:
            return self._times(
                lambda: self._start(text, self.sms, threads, trips, operands), repeats
            )

        trips = 256
        once = statistics.median(seconds(trips, 3))
        # A repeat is a fifth of what clocks need to settle, and there is a first one of all of it.
        trips = max(1, int(trips * _SUSTAINED / _REPEATS / once))
        seconds(trips, _REPEATS)
        times = seconds(trips, _REPEATS)
        kind = "wgmma" if group else "mma"
        self.found.numbers[f"{kind}.{operand}.lanes"] = of_block * trips / self._cycles()
        return [2.0 * of_block * trips * self.sms / each for each in times]

    def _operands(self, operand: str) -> Tensor:
        if operand == "int8":
            return (self.random * 32).clamp(-127, 127).to(torch.int8)
        return self.random.to(getattr(torch, kernels.OPERANDS[operand].dtype)).view(torch.uint8)
