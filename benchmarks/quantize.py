# SPDX-License-Identifier: Apache-2.0
"""Quantising: million weights a second for every type, with the search of scales and without.

python benchmarks/quantize.py                                 # CPU, torch's threads
python benchmarks/quantize.py --device cuda --n 8192 --k 8192
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch

import ladder
from ladder.types import parse, type_names

GROUPS = ("group=128", "channel")
ZEROS = ("midpoint", "integer", "quantized", "original", "rescale")


def spellings() -> list[str]:
    """Every type in groups of 128 and per channel, block types as they are, and every zero."""
    out = []
    for name in type_names():
        ttype = parse(name)
        named = str(ttype) != ttype.element.name
        out += [name] if named else [f"{name},{group},scale=float16" for group in GROUPS]
    return out + [f"uint4,group=128,scale=float16,zero={zero}" for zero in ZEROS]


def seconds(weight: torch.Tensor, type: str, method: str, runs: int) -> float:
    """Least of several runs, what is compiled at first excluded."""
    best = float("inf")
    for run in range(runs + 1):
        start = time.perf_counter()
        ladder.quantize(weight, type, method=method)  # waits for the device
        if run > 0 or not weight.is_cuda:
            best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1024, help="rows")
    parser.add_argument("--k", type=int, default=4096, help="columns")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--types", nargs="*", help="spellings; all where none is given")
    arguments = parser.parse_args()
    weight = torch.randn(arguments.n, arguments.k, device=arguments.device) * 0.05
    print("| type | search, ms | search, M weights/s | nearest, M weights/s |")
    print("|---|---|---|---|")
    for type in arguments.types or spellings():
        search, nearest = (
            seconds(weight, type, method, arguments.runs) for method in ("search", "nearest")
        )
        rates = [weight.numel() / second / 1e6 for second in (search, nearest)]
        print(f"| {type} | {search * 1e3:.2f} | {rates[0]:.1f} | {rates[1]:.1f} |")


if __name__ == "__main__":
    main()
