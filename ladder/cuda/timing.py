# SPDX-License-Identifier: Apache-2.0
"""Times kernels on random data that no cache holds."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ladder.cuda.image import parts
from ladder.types import TType

_ops = torch.ops.ladder

#: Bytes of weights through which a measurement goes: more than any L2 holds.
ROTATION_BYTES = 192 * 2**20
#: Of one graph of :func:`calls_of`. Weights below 3 MiB therefore go through less than
#: ROTATION_BYTES and may be read from L2.
_MOST_LAUNCHES = 64
#: Tokens of all calls of such a graph: 64 of 256.
_MOST_ROWS = _MOST_LAUNCHES * 256
#: First and last + 1 of codes of scales: of e4m3 between 1/2 and 2; of e8m0 far below 2, as weights
#: have them, since larger ones take more operations.
_SCALES = {"e8m0": (118, 122), "e4m3": (0x30, 0x41)}


def calls_of(
    weight: int,
    ttype: TType,
    shape: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
    m: Sequence[int],
    columns: int | None = None,
) -> list[list[Callable[[], Tensor]]]:
    """For each number of tokens, calls that go through :data:`ROTATION_BYTES` of weights, or
    through 64 weights where those are less. torch's random numbers of the caller stay as they are.

    Args:
        columns: of products; None: as many as the weight has rows.
    """
    n, k = shape
    columns = n if columns is None else columns
    count = max(2, min(_MOST_LAUNCHES, -(-ROTATION_BYTES // (4 * parts(weight).words))))
    source = torch.Generator(device).manual_seed(0)
    images = random_images(count, weight, ttype.bits, source)
    # Kernels with dependent launch read them, orders of columns too, without waiting for others.
    torch.cuda.synchronize(device)
    calls: list[list[Callable[[], Tensor]]] = []
    for tokens in m:
        x = torch.randn((tokens, k), device=device, generator=source).to(dtype)

        def call(i: int, x: Tensor = x) -> Tensor:
            return _ops.linear_image_no_grad(x, images[i], None, weight, columns)

        # Of many tokens few calls take as long as 64 of few, and read more than an L2 holds.
        calls.append(
            [functools.partial(call, i) for i in range(min(count, max(2, _MOST_ROWS // tokens)))]
        )
    return calls


def random_images(count: int, number: int, bits: int, source: torch.Generator) -> Tensor:
    """[count, words] images to measure with, on the device of ``source``: random codes, scales as
    weights have them, zeros and integer scales within the codes, random orders of columns."""
    layout = parts(number)
    images = torch.empty((count, layout.words), dtype=torch.int32, device=source.device)
    images.random_(-(2**31), 2**31 - 1, generator=source)
    for image in images:
        for name, part in layout.parts.items():
            to = part.of(image)
            if name == "gather":
                order = torch.randperm(part.elements, device=source.device, generator=source)
                to.copy_(order)
            elif part.scalar in _SCALES:
                to.random_(*_SCALES[part.scalar], generator=source)
            elif part.scalar == "u8":
                to.random_(0, 1 << bits, generator=source)
            elif part.scalar == "s8":
                to.random_(-(1 << (bits - 1)), 1 << (bits - 1), generator=source)
            else:
                to.uniform_(0.5, 1.5, generator=source)
    return images


def seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Seconds a call, all of them in one CUDA graph: the median of four replays after a first,
    which brings clocks and caches to where they stay. A replay has no host between its calls, and
    the host starts the next while one runs, so that a busy host does not count either."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other threads may allocate meanwhile: a loader that copies weights, say.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for call in calls:
            call()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    events[-1].synchronize()
    times = [start.elapsed_time(end) for start, end in zip(events[1:], events[2:], strict=False)]
    return statistics.median(times) / 1e3 / len(calls)
