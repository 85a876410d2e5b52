# SPDX-License-Identifier: Apache-2.0
"""How fast weights are packed, unpacked, quantised and dequantised, in GB/s of float16 weights.

python benchmarks/packing.py > benchmarks/results/packing.md
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch

import ladder
from benchmarks.machine import describe

REPEATS = 7


def seconds(function, *arguments) -> float:
    """Median seconds of a call after one that warms up."""
    function(*arguments)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the weight")
    n = k = parser.parse_args().size
    torch.manual_seed(0)
    weight = torch.randn(n, k)
    print("# Packing speed\n")
    print(describe("python benchmarks/packing.py"))
    print(f"[{n}, {k}] weights, groups of 128, GB/s of float16 weights, medians of {REPEATS}.\n")
    print("| type | pack | unpack | dequantise | quantise, nearest | quantise, search |")
    print("|---|---|---|---|---|---|")
    gigabytes = n * k * 2 / 1e9
    for name in ("uint4", "uint3", "uint8", "int4", "nf4", "float6_e3m2", "mxfp4", "nvfp4"):
        group = None if "fp4" in name else 128
        packed = ladder.quantize(weight, name, group_size=group, method="nearest")
        codes = packed.codes()
        rates = [
            gigabytes / seconds(ladder.ops.pack, codes, packed.type.bits),
            gigabytes / seconds(packed.codes),
            gigabytes / seconds(packed.dequantize),
        ]
        for method in ("nearest", "search"):
            start = time.perf_counter()
            ladder.quantize(weight, packed.type, method=method)
            rates.append(gigabytes / (time.perf_counter() - start))
        print(f"| {name} | " + " | ".join(f"{rate:.2f}" for rate in rates) + " |", flush=True)


if __name__ == "__main__":
    main()
