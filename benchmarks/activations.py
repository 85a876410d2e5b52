# SPDX-License-Identifier: Apache-2.0
"""Activations of 8 bits on a GPU beside those of 16 and torch's own products, microseconds.

    python benchmarks/activations.py [--out RESULTS.md] [--shapes 8192x8192 4096x4096]

Times are of ``ladder.Linear``'s op in a replayed CUDA graph over random weights that together
exceed twice the L2, after tuning; the rounding of x is in them. x is of float16, beside scales of
bfloat16 and powers of two of bfloat16. ``torch._int_mm`` and ``torch._scaled_mm``, with and without
``use_fast_accum``, are given x rounded already, and give sums of int32, or bfloat16 scaled by token
and row. ``F.linear`` has weights of float16. Up to 48 tokens ladder does not round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import graph
from benchmarks.machine import describe, require_gpu
from ladder.cuda import image, timing
from ladder.cuda.tune import Request, tune_all
from ladder.errors import Unsupported
from ladder.types import parse

TOKENS = (1, 16, 32, 64, 128, 256, 512, 1024, 4096)
#: Of two levels: integers as scales of groups.
_WHOLE = "uint4,group=128,scale=uint4,zero=midpoint,scale2=float32:channel"
#: Type and activations of a row.
ROWS = (
    ("uint4,group=128,scale=float16,zero=midpoint", ""),
    ("uint4,group=128,scale=float16,zero=midpoint", "int8"),
    ("uint4,group=128,scale=float16,zero=integer", "int8"),
    (_WHOLE, ""),
    (_WHOLE, "int8"),
    ("int4,channel,scale=float16", "int8"),
    ("uint3,group=128,scale=float16,zero=midpoint", "int8"),
    ("uint2,group=128,scale=float16,zero=midpoint", "int8"),
    ("ternary,channel,scale=float16", "int8"),
    ("uint1,group=128,scale=float16", "int8"),
    ("int8,channel,scale=float16", "int8"),
    ("float8_e4m3,channel,scale=float16", "float8_e4m3"),
    ("float8_e4m3,channel,scale=float16", "float8_e4m3,fast_accum"),
    ("float8_e4m3,channel,scale=float16", ""),
    ("float8_e4m3,channel,scale=bfloat16", "float8_e4m3"),
    ("float8_e4m3,channel,scale=bfloat16", "float8_e4m3,fast_accum"),
    ("float8_e4m3,channel,scale=bfloat16", ""),
    ("float6_e3m2,group=128,scale=float16", "float8_e4m3"),
    ("mxfp4", "float8_e4m3"),
    ("mxfp4", ""),
    ("uint4,group=128,scale=float16,zero=midpoint", "float8_e4m3"),
    ("uint4,group=128,scale=float16,zero=integer", "float8_e4m3"),
    ("int4,channel,scale=float16", "float8_e4m3"),
    ("int4,channel,scale=float16", "float8_e4m3,fast_accum"),
)


def dtype_of(type: str) -> torch.dtype:
    return torch.bfloat16 if parse(type).scale in ("e8m0", "bfloat16") else torch.float16


def of_ladder(
    type: str, activation: str, n: int, k: int, tokens: tuple[int, ...]
) -> list[float | None]:
    ttype, device = parse(type), torch.device("cuda", torch.cuda.current_device())
    weight = image.open_weight(type, n, k, activation_type=activation)
    dtype = dtype_of(type)
    request = Request(weight, ttype, (n, k), device, dtype, tokens, activation)
    tune_all([request], mode="full", budget_s=120)
    out: list[float | None] = []
    for m in tokens:
        calls = timing.calls_of(weight, ttype, (n, k), device, dtype, [m])[0]
        out.append(1e6 * timing.seconds(calls))
    return out


def _f16(m: int, n: int, k: int) -> tuple[Callable[[Tensor], object], Callable[[], Tensor], int]:
    x = torch.randn(m, k, device="cuda", dtype=torch.float16)
    make = partial(torch.randn, n, k, device="cuda", dtype=torch.float16)
    return lambda w: F.linear(x, w), make, 2 * n * k


def _int8(m: int, n: int, k: int) -> tuple[Callable[[Tensor], object], Callable[[], Tensor], int]:
    x = torch.randint(-127, 128, (m, k), device="cuda", dtype=torch.int8)
    make = partial(torch.randint, -127, 128, (n, k), device="cuda", dtype=torch.int8)
    return lambda w: torch._int_mm(x, w.t()), make, n * k


def _float8(
    fast: bool, m: int, n: int, k: int
) -> tuple[Callable[[Tensor], object], Callable[[], Tensor], int]:
    x = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
    of_x, of_w = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")

    def call(w: Tensor) -> Tensor:
        return torch._scaled_mm(x, w.t(), of_x, of_w, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return call, lambda: torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn), n * k


PEERS = {
    "F.linear, float16": _f16,
    "torch._int_mm": _int8,
    "torch._scaled_mm": partial(_float8, False),
    "torch._scaled_mm, fast sums": partial(_float8, True),
}


def of_peer(name: str, n: int, k: int, tokens: tuple[int, ...]) -> list[float | None]:
    out: list[float | None] = []
    for m in tokens:
        call, make, size = PEERS[name](m, n, k)
        weights = [make() for _ in range(max(2, min(32, -(-graph.ROTATION_BYTES // size))))]
        try:
            out.append(graph.us([partial(call, w) for w in weights]))
        except RuntimeError:  # torch._int_mm of up to 16 tokens
            out.append(None)
    return out


def line(name: str, x: str, times: list[float | None]) -> str:
    cells = " | ".join("-" if us is None else f"{us:.1f}" for us in times)
    return f"| {name} | {x} | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shapes", nargs="*", default=["8192x8192", "4096x4096"])
    parser.add_argument("--types", nargs="*", help="whole types of the table; all")
    parser.add_argument("--tokens", nargs="*", type=int, default=TOKENS)
    arguments = parser.parse_args()
    tokens = tuple(arguments.tokens)
    require_gpu()
    lines = [describe("python benchmarks/activations.py")]
    for shape in arguments.shapes:
        n, k = map(int, shape.split("x"))
        lines += [f"\n## {n} x {k}\n", f"| weight | x | {' | '.join(f'M={m}' for m in tokens)} |"]
        lines.append("|---" * (len(tokens) + 2) + "|")
        for name in PEERS:
            lines.append(line(name, "", of_peer(name, n, k, tokens)))
            print(lines[-1], flush=True)
        for type, activation in ROWS:
            if arguments.types and type not in arguments.types:
                continue
            x = activation or str(dtype_of(type)).removeprefix("torch.")
            try:
                lines.append(line(type, x, of_ladder(type, activation, n, k, tokens)))
            except Unsupported as error:
                lines.append(f"| {type} | {x} | {error} |")
            print(lines[-1], flush=True)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
