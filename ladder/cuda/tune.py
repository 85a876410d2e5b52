# SPDX-License-Identifier: Apache-2.0
"""Measures the schedules that the compiler proposes, on the GPU, and keeps the fastest."""

from __future__ import annotations

import functools
import logging
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ladder.cuda import kernels
from ladder.cuda.image import parts
from ladder.types import TType

_ops = torch.ops.ladder
_log = logging.getLogger("ladder")

#: Bytes of weights through which a measurement goes: more than any L2 holds.
ROTATION_BYTES = 192 * 2**20
#: Of one graph of :func:`tune`. Weights below 3 MiB therefore go through less than ROTATION_BYTES
#: and may be read from L2.
_MOST_LAUNCHES = 64
#: Of measuring one interval of M, after compiling.
SECONDS = 0.6
CANDIDATES = 8
#: First and last + 1 of the codes of scales between 1/2 and 2.
_NEAR_ONE = {"e8m0": (126, 129), "e4m3": (0x30, 0x41)}


def tune(
    weight: int,
    ttype: TType,
    shape: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
    m: Sequence[int],
) -> str:
    """Choose the kernel that serves ``m`` tokens, all of one interval, by its time on random data.

    Returns the schedule. A plan that a store already has is taken without measuring.
    """
    index, most = device.index or 0, max(m)
    names = _ops.schedules(weight, index, dtype, most, CANDIDATES).splitlines()
    if len(names) < 2:
        return kernels.compile_for(weight, device, dtype, most)
    calls = calls_of(weight, ttype, shape, device, dtype, m)
    start = time.perf_counter()
    times: dict[str, float] = {}
    for name in names:
        if times and time.perf_counter() - start > SECONDS:
            break
        try:
            _ops.use_schedule(weight, index, dtype, most, name, False)
        except RuntimeError as error:  # spills, say: the next one
            _log.debug("%s: %s", name, error)
            continue
        times[name] = sum(seconds(group) for group in calls)
    if not times:
        return kernels.compile_for(weight, device, dtype, most)
    best = min(times, key=times.__getitem__)
    _ops.use_schedule(weight, index, dtype, most, best, True)
    _log.info("%s %s m=%s: %s, best of %d", ttype, list(shape), list(m), best, len(times))
    return best


def calls_of(
    weight: int,
    ttype: TType,
    shape: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
    m: Sequence[int],
) -> list[list[Callable[[], Tensor]]]:
    """For each number of tokens, calls that go through :data:`ROTATION_BYTES` of weights, or
    through 64 weights where those are less."""
    n, k = shape
    count = max(2, min(_MOST_LAUNCHES, -(-ROTATION_BYTES // (4 * parts(weight).words))))
    images = random_images(count, weight, ttype.bits, device)
    # Kernels with dependent launch read them, orders of columns too, without waiting for others.
    torch.cuda.synchronize(device)
    calls: list[list[Callable[[], Tensor]]] = []
    for tokens in m:
        x = torch.randn((tokens, k), device=device).to(dtype)

        def call(i: int, x: Tensor = x) -> Tensor:
            return _ops.linear_image_no_grad(x, images[i], None, weight, n)

        calls.append([functools.partial(call, i) for i in range(count)])
    return calls


def random_images(count: int, number: int, bits: int, device: torch.device) -> Tensor:
    """[count, words] images to measure with: random codes, scales near 1, zeros within the codes,
    random orders of columns."""
    layout = parts(number)
    images = torch.empty((count, layout.words), dtype=torch.int32, device=device)
    images.random_(-(2**31), 2**31 - 1)
    for image in images:
        for name, part in layout.parts.items():
            to = part.of(image)
            if name == "gather":
                to.copy_(torch.randperm(part.elements, device=device))
            elif part.scalar in _NEAR_ONE:
                to.random_(*_NEAR_ONE[part.scalar])
            elif part.scalar == "u8":
                to.random_(0, 1 << bits)
            else:
                to.uniform_(0.5, 1.5)
    return images


def seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Seconds a call, all of them in one CUDA graph: the median of four replays after a first,
    which brings clocks and caches to where they stay. A replay has no host between its calls."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / len(calls))
    return statistics.median(times[1:])
