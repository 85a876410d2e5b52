# SPDX-License-Identifier: Apache-2.0
"""Timing that is fair to both sides: rotated weights, interleaved runs, medians.

On a GPU both sides are tuned or warmed up first, and what is timed is the replay of a CUDA graph:
the kernels, without the host that launches them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ladder.cuda import kernels
from ladder.cuda.timing import ROTATION_BYTES, seconds
from ladder.errors import InvalidArgument
from ladder.nn.linear import Linear
from ladder.nn.warmup import warmup
from ladder.types import float_dtype, with_defaults
from ladder.weight import Weight

_MOST_COPIES = 256  # of layers so small that a rotation would be all overhead
_SECONDS = 0.6  # spent on each side of each shape
_GRAPHS = 3  # captured of each side in turn, on a GPU
_AWAKE_SECONDS = 0.3  # of work that brings a GPU's clocks up


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
    dtype: str | None = None,
    device: str = "auto",
) -> list[dict[str, Any]]:
    """Time ``ladder.Linear`` and ``F.linear`` on random weights [n, k].

    On a GPU kernels are compiled and tuned before, as :func:`ladder.warmup` does, and a time is
    that of the device alone, from CUDA graphs. Elsewhere, and of a weight that each call decodes,
    which no graph can hold, it is that of the call.

    Args:
        dtype: of the activations and of the dense weight; float16 on a GPU, float32 elsewhere.
    Returns:
        A row per entry of ``tokens``: m, ladder_us, dense_us (medians, microseconds a call),
        weight_gb_per_s (bytes of the packed weight over ladder's time), type, device, dtype, n, k;
        on a GPU ``kernel``, the schedule of ladder's kernel or "torch" where there is none;
        ``reason``, why there is none; and ``decoded``, whether each call decodes the weight.
    """
    device = device_of(device)
    on_gpu = is_gpu(device)
    dtype = dtype or ("float16" if on_gpu else "float32")
    activations = float_dtype(dtype)
    for name, value in (("n", n), ("k", k), *(("m", m) for m in tokens)):
        if value < 1:
            raise InvalidArgument(f"{name} is {value}, not positive")
    ttype = with_defaults(weight_type, group_size=group_size)
    generator = torch.Generator().manual_seed(0)
    dense = torch.nn.Linear(k, n, bias=False, dtype=torch.float32)
    with torch.no_grad():
        dense.weight.normal_(generator=generator)
    packed = Linear.from_linear(dense, ttype, method="nearest").to(device)
    nbytes = packed.packed_weight.nbytes
    copies = [_copy(packed.packed_weight) for _ in range(_copies(nbytes) - 1)]
    layers = [packed, *map(Linear.from_weight, copies)]
    weight = dense.weight.detach().to(activations).to(device)
    dense_bytes = weight.numel() * weight.itemsize
    weights = [weight.clone() for _ in range(_copies(dense_bytes))]
    chosen = _kernels_of(layers, tokens, activations, device) if on_gpu else {}
    replayed = on_gpu and not any(row["decoded"] for row in chosen.values())
    rows = []
    for m in tokens:
        x = torch.randn(m, k, generator=generator).to(activations).to(device)
        calls = (
            [partial(layer, x) for layer in layers],
            [partial(torch.nn.functional.linear, x, w) for w in weights],
        )
        with torch.inference_mode():
            medians = graph_medians if replayed else interleaved_medians
            ladder_s, dense_s = medians(calls, device)
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
                "weight_gb_per_s": nbytes / ladder_s / 1e9,
                **chosen.get(m, {}),
            }
        )
    return rows


def is_gpu(device: str) -> bool:
    """Whether kernels are compiled, and graphs captured, for tensors on ``device``."""
    return torch.device(device).type == "cuda"


def _kernels_of(
    layers: Sequence[Linear], tokens: Sequence[int], dtype: torch.dtype, device: str
) -> dict[int, dict[str, Any]]:
    """Compile and tune what ``tokens`` need, the same for all ``layers``. Gives ``kernel``,
    ``reason`` and ``decoded`` of the rows of :func:`time_linear`."""
    halves = dtype in (torch.float16, torch.bfloat16)
    found = warmup(layers[0], tokens, dtype=dtype, tune="full" if halves else "off").get("")
    for layer in layers[1:]:
        layer.prepare()
    if found is None:
        ordinal = torch.device(device).index
        ordinal = torch.cuda.current_device() if ordinal is None else ordinal
        type_, n, k = str(layers[0].weight_type), layers[0].out_features, layers[0].in_features
        why = kernels.objection(type_, n, k, False, ordinal)
        why = why or kernels.failure(torch.device(device)) or "the weight has no image"
        row = {"kernel": "torch", "reason": f"decoded by each call: {why}", "decoded": True}
        return dict.fromkeys(tokens, row)
    rows = {}
    for m in tokens:
        reason = ""
        if not found[m] and not halves:
            reason = "dequantised: kernels read float16 and bfloat16"
        elif not found[m]:
            reason = "dequantised: more tokens than kernels serve"
        rows[m] = {"kernel": found[m] or "torch", "reason": reason, "decoded": False}
    return rows


def graph_medians(rotations: Sequence[Sequence[Callable[[], object]]], device: str) -> list[float]:
    """Median seconds a call of each rotation of equivalent calls, replayed as CUDA graphs in turns
    after enough work for the clocks to be up."""
    times: list[list[float]] = [[] for _ in rotations]
    with torch.cuda.device(device):
        end = time.perf_counter() + _AWAKE_SECONDS
        while time.perf_counter() < end:
            for rotation in rotations:
                for call in rotation:
                    call()
            torch.cuda.synchronize()
        for _ in range(_GRAPHS):
            for index, rotation in enumerate(rotations):
                times[index].append(seconds(rotation))
    return [statistics.median(values) for values in times]


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
