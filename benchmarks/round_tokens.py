# SPDX-License-Identifier: Apache-2.0
"""Rounding activations to 8 bits on a GPU: microseconds, and bytes a second beside torch's copy.

python benchmarks/round_tokens.py
python benchmarks/round_tokens.py --shapes 17x8192 4096x8192 --dtype bfloat16
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
from machine import describe, require_gpu
from torch import Tensor

import ladder  # noqa: F401  (registers torch.ops.ladder)

SHAPES = ("17x4096", "17x8192", "64x8192", "256x8192", "1024x4096", "4096x4096", "4096x8192",
          "8192x8192", "4096x28672", "512x131072")  # fmt: skip
#: Tensors through which a graph goes: more bytes than an L2 holds.
ROTATION_BYTES = 256 * 2**20


def microseconds(call: Callable[[Tensor], object], inputs: list[Tensor]) -> float:
    """Median of five replays of one graph of a call for each input."""
    for x in inputs:
        call(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x in inputs:
            call(x)
    times = []
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(inputs))
    return statistics.median(times[1:])


def row(shape: str, dtype: torch.dtype, activation_type: str) -> str:
    """Of one shape. The copy reads and writes two bytes a number, the rounding two and one."""
    m, k = map(int, shape.split("x"))
    count = max(2, min(64, ROTATION_BYTES // (2 * m * k)))
    inputs = [torch.randn(m, k, device="cuda").to(dtype) for _ in range(count)]
    rounded = microseconds(lambda x: torch.ops.ladder.rounded_codes(x, activation_type), inputs)
    copied = microseconds(torch.clone, inputs)
    rates = [3 * m * k / rounded / 1e6, 4 * m * k / copied / 1e6]
    return (
        f"| {m} x {k} | {activation_type} | {rounded:.2f} | {copied:.2f} | {rates[0]:.2f} | "
        f"{rates[1]:.2f} | {rates[0] / rates[1]:.0%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=SHAPES)
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    arguments = parser.parse_args()
    require_gpu()
    print(describe("python benchmarks/round_tokens.py"))
    print("\n| tokens x columns | to | us | torch's copy, us | TB/s | of the copy | share |")
    print("|---" * 7 + "|")
    types = ["int8"]
    if torch.cuda.get_device_capability() >= (8, 9):
        types.append("float8_e4m3")
    for shape in arguments.shapes:
        for activation_type in types:
            print(row(shape, getattr(torch, arguments.dtype), activation_type), flush=True)


if __name__ == "__main__":
    main()
