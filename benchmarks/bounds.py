# SPDX-License-Identifier: Apache-2.0
"""How long the bounds take: they must be cheap enough for a scheduler to ask in passing.

python benchmarks/bounds.py > benchmarks/results/bounds.md
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

from benchmarks.machine import describe
from ladder import bounds

# Distinct convolutions of ResNet-50 (v1.5), batch 1: in and out channels, output, kernel, stride.
RESNET50 = [
    (3, 64, 112, 7, 2),
    *[(64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (256, 64, 56, 1, 1)],
    *[(256, 128, 56, 1, 1), (128, 128, 28, 3, 2), (128, 512, 28, 1, 1), (256, 512, 28, 1, 2)],
    *[(512, 128, 28, 1, 1), (128, 128, 28, 3, 1), (512, 256, 28, 1, 1), (256, 256, 14, 3, 2)],
    *[(256, 1024, 14, 1, 1), (512, 1024, 14, 1, 2), (1024, 256, 14, 1, 1), (256, 256, 14, 3, 1)],
    *[(1024, 512, 14, 1, 1), (512, 512, 7, 3, 2), (512, 2048, 7, 1, 1), (1024, 2048, 7, 1, 2)],
    *[(2048, 512, 7, 1, 1), (512, 512, 7, 3, 1)],
]


def milliseconds(function, repeats: int = 15) -> float:
    """Least milliseconds of a call: the machine may be shared."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def convolutions() -> list[bounds.Einsum]:
    return [
        bounds.conv2d(in_channels=c, out_channels=k, height=p, width=p, kernel_height=r,
                      kernel_width=r, stride=stride)
        for c, k, p, r, stride in RESNET50
    ]  # fmt: skip


def rows():
    """(question, milliseconds, milliseconds wanted)."""
    cube = bounds.matmul(4096, 4096, 4096)
    head = bounds.matmul(16, 128256, 4096)
    chain, side = bounds.gpt3_6_7b()
    mlp = chain[4:]
    paper = {"factors": "divisors", "space": "uniform"}
    yield "matmul 4096^3, divisors", milliseconds(lambda: bounds.ski_slope(cube, **paper)), 1
    yield "matmul 4096^3, integers", milliseconds(lambda: bounds.ski_slope(cube)), 50
    yield "matmul 16 x 128256 x 4096, integers", milliseconds(lambda: bounds.ski_slope(head)), 50
    yield "lower bound of one buffer", milliseconds(lambda: bounds.lower_bound(cube, 1e6)), None
    yield (
        "grouped matmul, 32 heads of 8 groups, divisors",
        milliseconds(
            lambda: bounds.ski_slope(
                bounds.grouped_matmul(32, 8, 2048, 2048, 128), factors="divisors"
            )
        ),
        None,
    )
    yield "two-layer chain, fused", milliseconds(lambda: bounds.fused(mlp)), 10
    yield (
        "two-layer chain, best of all orders and cuts",
        milliseconds(lambda: bounds.segmented(mlp)),
        10,
    )
    for accounting in ("sound", "paper"):
        yield (
            f"GPT-3 6.7B block, best segments, {accounting}",
            milliseconds(
                lambda accounting=accounting: bounds.sum(
                    [bounds.segmented(chain, accounting=accounting), bounds.unfused(side)]
                ),
                3,
            ),
            1000,
        )
    for factors in ("divisors", "integers"):
        times = [
            milliseconds(lambda conv=conv, f=factors: bounds.ski_slope(conv, factors=f), 2)
            for conv in convolutions()
        ]
        count = len(times)
        yield f"ResNet-50, slowest of {count} convolutions, {factors}", max(times), 1000
        yield f"ResNet-50, mean of {count} convolutions, {factors}", sum(times) / count, None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help="the first N of the table only")
    first = parser.parse_args().rows
    print("# Speed of the bounds\n")
    print(describe("python benchmarks/bounds.py"))
    print("One thread, least of several calls, in milliseconds, from Python.\n")
    print("| question | ms | wanted below |")
    print("|---|---|---|")
    for question, took, wanted in itertools.islice(rows(), first):
        print(f"| {question} | {took:.3g} | {wanted or ''} |", flush=True)


if __name__ == "__main__":
    main()
