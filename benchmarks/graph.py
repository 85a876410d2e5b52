# SPDX-License-Identifier: Apache-2.0
"""How benchmarks time calls on a GPU. Needs torch and nothing of ladder."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch

#: Weights that are gone through between two uses of one: over twice the L2 of any device here.
ROTATION_BYTES = 192 * 2**20
#: Before measuring: what went before may have left the clocks low.
_WARM_MILLISECONDS = 30


def us(calls: Sequence[Callable[[], object]], replays: int = 9) -> float:
    """Microseconds a call: the median of replays of one CUDA graph of all calls, in their order,
    after 30 ms of warming up. Each is first called outside of the graph."""
    return us_in_turns([calls], replays)[0]


def us_in_turns(columns: Sequence[Sequence[Callable[[], object]]], replays: int = 9) -> list[float]:
    """:func:`us` of several sequences of calls, whose replays take turns in a random order, so that
    none of them has a cooler GPU or a higher clock than the others."""
    graphs = [_captured(calls) for calls in columns]
    spent = 0.0
    while spent < _WARM_MILLISECONDS:
        spent += sum(map(_milliseconds, graphs))
    times: list[list[float]] = [[] for _ in graphs]
    for _ in range(replays):
        for i in random.sample(range(len(graphs)), len(graphs)):
            times[i].append(_milliseconds(graphs[i]) * 1e3 / len(columns[i]))
    return [statistics.median(each) for each in times]


def _captured(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())  # what prepared the operands
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def host_us(call: Callable[[], object], bursts: int = 40, calls: int = 200) -> float:
    """Microseconds of a call on the host, which does not wait for the GPU: the least of many
    bursts, when nothing else on the machine held it up."""
    best = float("inf")
    for _ in range(bursts):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls * 1e6)
    return best


def _milliseconds(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
