# SPDX-License-Identifier: Apache-2.0
"""Every stored type through its tuned kernel, on this GPU.

    python benchmarks/stored_types.py [--out RESULTS.md] [--n 28672] [--k 8192]

Times are of ``ladder.Linear``'s op in a replayed CUDA graph over random weights that together
exceed twice the L2 (``ladder.cuda.timing``); floor = bytes of the image, activations and outputs at
the measured read rate. Types without blocks of their own have groups of 128.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch

from benchmarks.machine import describe, require_gpu
from ladder.cuda import image, timing
from ladder.cuda.tune import Request, tune_all
from ladder.types import parse, type_names

READ_BYTES_PER_SECOND = 4.53e12
TOKENS = (1, 16)


def problems() -> list[str]:
    """One spelling per element type of at most 8 bits; MX and NVFP4 as they are."""
    spelled = []
    for name in type_names():
        ttype = parse(name)
        if ttype.bits > 8:
            continue
        if ttype.scale is None:
            zero = ",zero=midpoint" if ttype.element.encoding == "unsigned_integer" else ""
            name += f",group=128,scale=float16{zero}"
        spelled.append(name)
    return spelled


def row(name: str, n: int, k: int, dtype: torch.dtype) -> str:
    ttype, device = parse(name), torch.device("cuda", torch.cuda.current_device())
    weight = image.open_weight(str(ttype), n, k)
    words = image.parts(weight).words
    cells, seconds = [], {}
    start = time.perf_counter()
    request = Request(weight, ttype, (n, k), device, dtype, TOKENS)
    tuned = tune_all([request], mode="full", budget_s=60)[request]
    if not all(tuned.values()):
        return f"| {name} | {ttype.bits} | no kernel for {dtype} | | | | |"
    took = time.perf_counter() - start
    for m in TOKENS:
        calls = timing.calls_of(weight, ttype, (n, k), device, dtype, [m])[0]
        seconds[m] = timing.seconds(calls)
    for m in TOKENS:
        floor = (4 * words + 2 * m * (n + k)) / READ_BYTES_PER_SECOND
        cells.append(f"{seconds[m] * 1e6:.1f} | {floor / seconds[m]:.0%}")
    ratio = seconds[TOKENS[-1]] / seconds[TOKENS[0]]
    return f"| {name} | {ttype.bits} | {' | '.join(cells)} | {ratio:.2f} | {took:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--n", type=int, default=28672)
    parser.add_argument("--k", type=int, default=8192)
    parser.add_argument("--types", nargs="*", help="names; all")
    arguments = parser.parse_args()
    require_gpu()
    lines = [describe("python benchmarks/stored_types.py")]
    for dtype in (torch.float16, torch.bfloat16):
        lines += [
            "",
            f"## {arguments.n} x {arguments.k}, activations {str(dtype).removeprefix('torch.')}",
            "",
            "| type | bits | M=1 us | of the read rate | M=16 us | of the read rate | M=16 / M=1 "
            "| tuning both, s |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name in problems():
            if arguments.types and name.split(",")[0] not in arguments.types:
                continue
            try:
                lines.append(row(name, arguments.n, arguments.k, dtype))
            except (RuntimeError, ValueError) as error:
                lines.append(f"| {name} | | {str(error).splitlines()[0]} | | | | | |")
            print(lines[-1], flush=True)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
