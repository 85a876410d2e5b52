# SPDX-License-Identifier: Apache-2.0
"""Timing that is fair to both sides: rotated weights, interleaved runs, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ladder.cuda.tune import ROTATION_BYTES
from ladder.errors import InvalidArgument
from ladder.nn.linear import Linear
from ladder.types import with_defaults
from ladder.weight import Weight

_MOST_COPIES = 256  # of layers so small that a rotation would be all overhead
_SECONDS = 0.6  # spent on each side of each shape
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def device_of(name: str) -> str:
    """``name`` itself where torch has such a device; for "auto" a GPU where there is one, else the
    CPU.

    Raises:
        InvalidArgument: torch knows no such device, or has none.
    """
    found = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if found else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidArgument(f'device is "{name}", not auto, cpu or cuda') from None
    if device.type == "cuda" and not (found and (device.index or 0) < torch.cuda.device_count()):
        raise InvalidArgument(
            f'device is "{name}"; torch finds {torch.cuda.device_count()} of that kind'
        )
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise InvalidArgument(f'device is "{name}", which this torch has not: {reason}') from None
    if device.type == "meta":
        raise InvalidArgument('device is "meta", which computes nothing')
    return name


def time_linear(
    weight_type: str,
    *,
    group_size: int | None,
    n: int,
    k: int,
    tokens: Sequence[int],
    dtype: str = "float32",
    device: str = "auto",
) -> list[dict[str, Any]]:
    """Time ``ladder.Linear`` and ``F.linear`` on random weights [n, k].

    Returns a row per entry of ``tokens``: m, ladder_us, dense_us (medians, microseconds a call),
    weight_gb_per_s (bytes of the packed weight over ladder's time), type, device.
    """
    if dtype not in _DTYPES:
        raise InvalidArgument(f'dtype is "{dtype}", not one of {", ".join(_DTYPES)}')
    for name, value in (("n", n), ("k", k), *(("m", m) for m in tokens)):
        if value < 1:
            raise InvalidArgument(f"{name} is {value}, not positive")
    device = device_of(device)
    if group_size is None and with_defaults(weight_type).columns == 0 and k % 128 == 0:
        group_size = 128
    ttype = with_defaults(weight_type, group_size=group_size)
    generator = torch.Generator().manual_seed(0)
    dense = torch.nn.Linear(k, n, bias=False, dtype=torch.float32)
    with torch.no_grad():
        dense.weight.normal_(generator=generator)
    packed = Linear.from_linear(dense, ttype, method="nearest").to(device)
    copies = _copies(packed.packed_weight.nbytes)
    layers = [packed] + [Linear.from_weight(_copy(packed.packed_weight)) for _ in range(copies - 1)]
    weight = dense.weight.detach().to(_DTYPES[dtype]).to(device)
    dense_bytes = weight.numel() * weight.itemsize
    weights = [weight.clone() for _ in range(_copies(dense_bytes))]
    rows = []
    for m in tokens:
        x = torch.randn(m, k, generator=generator).to(_DTYPES[dtype]).to(device)
        calls = (
            [partial(layer, x) for layer in layers],
            [partial(torch.nn.functional.linear, x, w) for w in weights],
        )
        with torch.inference_mode():
            ladder_s, dense_s = interleaved_medians(calls, device)
        rows.append(
            {
                "type": str(ttype),
                "device": device,
                "dtype": dtype,
                "n": n,
                "k": k,
                "m": m,
                "ladder_us": ladder_s * 1e6,
                "dense_us": dense_s * 1e6,
                "weight_gb_per_s": packed.packed_weight.nbytes / ladder_s / 1e9,
            }
        )
    return rows


def _copies(nbytes: int) -> int:
    return min(_MOST_COPIES, max(1, -(-ROTATION_BYTES // nbytes)))


def _copy(weight: Weight) -> Weight:
    from dataclasses import replace

    parts: dict[str, Any] = {name: part.clone() for name, part in weight.tensors().items()}
    return replace(weight, **parts)


def interleaved_medians(
    rotations: Sequence[Sequence[Callable[[], object]]],
    device: str = "cpu",
    seconds: float = _SECONDS,
) -> list[float]:
    """Median seconds a call of each rotation of equivalent calls.

    The rotations take turns, so that what disturbs the machine disturbs all of them."""
    synchronize = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    for rotation in rotations:
        for call in rotation[:2]:
            call()
    synchronize()
    times: list[list[float]] = [[] for _ in rotations]
    spent, turn = [0.0] * len(rotations), 0
    while min(spent) < seconds or turn < 5:
        for index, rotation in enumerate(rotations):
            if spent[index] >= seconds and turn >= 5:
                continue
            call = rotation[turn % len(rotation)]
            start = time.perf_counter()
            call()
            synchronize()
            elapsed = time.perf_counter() - start
            times[index].append(elapsed)
            spent[index] += elapsed
        turn += 1
    return [statistics.median(values) for values in times]
