# SPDX-License-Identifier: Apache-2.0
"""Every stored type through its tuned kernel, on this GPU.

    python benchmarks/stored_types.py [--out RESULTS.md] [--n 28672] [--k 8192] [--tokens 1 16]

Times are of ``ladder.Linear``'s op in a replayed CUDA graph over random weights that together
exceed twice the L2 (``ladder.cuda.timing``); floor = bytes of the image, activations and outputs at
the measured read rate, or the products at that of the tensor cores where these take longer. Types
without blocks of their own have groups of 128. Of more than 16 tokens, the first row is
``torch.nn.functional.linear`` with weights of the activations' type.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
import torch.nn.functional as F

from benchmarks import graph
from benchmarks.machine import describe, require_gpu
from ladder.cuda import image, timing
from ladder.cuda.tune import Request, tune_all
from ladder.types import parse, type_names

READ_BYTES_PER_SECOND = 4.53e12
FLOPS = {torch.float16: 761e12, torch.bfloat16: 787e12}


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


def cell(seconds: float, size: int, m: int, n: int, k: int, dtype: torch.dtype) -> str:
    """Microseconds, and the share of them that the floor is, of weights of ``size`` bytes."""
    read = (size + 2 * m * (n + k)) / READ_BYTES_PER_SECOND
    return f"{seconds * 1e6:.1f} | {max(read, 2 * m * n * k / FLOPS[dtype]) / seconds:.0%}"


def row(name: str, n: int, k: int, dtype: torch.dtype, tokens: list[int]) -> str:
    ttype, device = parse(name), torch.device("cuda", torch.cuda.current_device())
    weight = image.open_weight(str(ttype), n, k)
    words = image.parts(weight).words
    cells, seconds = [], {}
    start = time.perf_counter()
    request = Request(weight, ttype, (n, k), device, dtype, tuple(tokens))
    tuned = tune_all([request], mode="full", budget_s=60)[request]
    if not all(tuned.values()):
        return f"| {name} | {ttype.bits} | no kernel for {dtype} |" + " |" * (2 * len(tokens) + 1)
    took = time.perf_counter() - start
    for m in tokens:
        calls = timing.calls_of(weight, ttype, (n, k), device, dtype, [m])[0]
        seconds[m] = timing.seconds(calls)
        cells.append(cell(seconds[m], 4 * words, m, n, k, dtype))
    ratio = seconds[tokens[-1]] / seconds[tokens[0]]
    return f"| {name} | {ttype.bits} | {' | '.join(cells)} | {ratio:.2f} | {took:.1f} |"


def dense_row(n: int, k: int, dtype: torch.dtype, tokens: list[int]) -> str:
    weights = torch.randn(4, n, k, dtype=dtype, device="cuda")
    cells, seconds = [], {}
    for m in tokens:
        x = torch.randn(m, k, dtype=dtype, device="cuda")
        seconds[m] = 1e-6 * graph.us([partial(F.linear, x, weight) for weight in weights])
        cells.append(cell(seconds[m], 2 * n * k, m, n, k, dtype))
    ratio = seconds[tokens[-1]] / seconds[tokens[0]]
    name = str(dtype).removeprefix("torch.")
    return f"| {name}, F.linear | 16 | {' | '.join(cells)} | {ratio:.2f} | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--n", type=int, default=28672)
    parser.add_argument("--k", type=int, default=8192)
    parser.add_argument("--types", nargs="*", help="names, or whole types; all")
    parser.add_argument("--tokens", nargs="*", type=int, default=[1, 16])
    arguments = parser.parse_args()
    require_gpu()
    n, k, tokens, types = arguments.n, arguments.k, arguments.tokens, arguments.types or []
    names = [name for name in problems() if not types or name.split(",")[0] in types]
    names += [name for name in types if "," in name]
    lines = [describe("python benchmarks/stored_types.py")]
    times = "".join(f" M={m} us | of the floor |" for m in tokens)
    for dtype in (torch.float16, torch.bfloat16):
        lines += [
            "",
            f"## {n} x {k}, activations {str(dtype).removeprefix('torch.')}",
            "",
            f"| type | bits |{times} M={tokens[-1]} / M={tokens[0]} | tuning all, s |",
            "|---" * (2 * len(tokens) + 4) + "|",
        ]
        if max(tokens) > 16:
            lines.append(dense_row(n, k, dtype, tokens))
            print(lines[-1], flush=True)
        for name in names:
            try:
                lines.append(row(name, n, k, dtype, tokens))
            except (RuntimeError, ValueError) as error:
                why = str(error).splitlines()[0]
                lines.append(f"| {name} | | {why} |" + " |" * (2 * len(tokens) + 1))
            print(lines[-1], flush=True)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
