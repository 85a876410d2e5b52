# SPDX-License-Identifier: Apache-2.0
"""Every number of tokens beside the kernels that users choose today, all in one process.

    python benchmarks/peers.py run OUT.csv [--shapes 4096x4096 8192x8192] [--tokens 1 16 256]
        [--peers cuBLAS Marlin]
    python benchmarks/peers.py show OUT.csv     # no GPU

uint4 with groups of 128 and float16 activations. ``ladder`` is the op of ``ladder.Linear`` after
``ladder.warmup``; Marlin, Machete and Humming run through vLLM's classes (vLLM 0.26 or later, the
package humming-kernels); cuBLAS is ``F.linear`` on float16 weights. A peer that is not installed is
left out, and said to be. Each is first checked, exactly, at several numbers of tokens.

Times are microseconds: medians of replayed CUDA graphs over weights that together exceed twice the
L2, random data; the replays of all kernels take turns in a random order. The floor is the larger of
bytes / 4.53 TB/s and 2 M N K / 761 TFLOP/s.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
from torch import Tensor

#: Seven shapes that were timed before there were tiles, and three of models since.
SHAPES = (
    "4096x4096", "8192x8192", "28672x8192", "8192x28672", "5120x13824", "6144x2048", "18944x3584",
    "6144x4096", "28672x4096", "4096x14336",
)  # fmt: skip
TOKENS = tuple(2**i for i in range(14))
CHECKED = (1, 16, 33, 300)
OURS, DENSE = "ladder", "cuBLAS"
FIELDS = ("n", "k", "m", "kernel", "us")


def ladder_layer(tokens: Sequence[int]):
    """ladder's side of :class:`benchmarks.decode.peers.Peer`."""
    import ladder
    from ladder.cuda.linear import linear_no_grad

    def layer(codes: Tensor, scales: Tensor):
        type = "uint4,group=128,scale=float16,zero=midpoint"
        made = ladder.Linear.from_weight(ladder.Weight.from_codes(codes, type, scales=scales))
        made = made.to(codes.device)
        ladder.warmup(made, m=tuple(tokens), dtype=scales.dtype, budget=120)
        number, n = made._weight_number, len(codes)

        def call(x: Tensor, image: Tensor) -> Tensor:
            return linear_no_grad(x, image, None, number, n)

        return call, (made.image,)

    return layer


def columns(tokens: Sequence[int]):
    from benchmarks.decode import vllm_peers
    from benchmarks.decode.peers import PEERS, Peer

    dense = next(peer for peer in PEERS if peer.name == "cuBLAS fp16")
    what = "uint4, groups of 128"
    return [
        Peer(OURS, what, "f16", ladder_layer(tokens)),
        Peer(DENSE, dense.what, "f16", dense.layer),
        Peer("Marlin", what, "f16", vllm_peers.marlin),
        Peer("Machete", what, "f16", vllm_peers.machete),
        Peer("Humming", what, "f16", vllm_peers.humming),
    ]


def run(arguments: argparse.Namespace) -> None:
    from benchmarks import graph
    from benchmarks.decode import peers, vllm_peers
    from benchmarks.machine import describe, require_gpu

    require_gpu()
    print(describe("python benchmarks/peers.py run"))
    wanted = [peer for peer in columns(arguments.tokens)
              if peer.name == OURS or peer.name in arguments.peers]  # fmt: skip
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(arguments.csv, "w", newline=""))
        rows = csv.writer(file)
        rows.writerow(FIELDS)
        try:
            stack.enter_context(vllm_peers.engine())
        except ImportError as error:
            print(f"without vLLM's kernels: {error}")
        stack.enter_context(torch.inference_mode())
        for shape in arguments.shapes:
            n, k = map(int, shape.split("x"))
            start = time.monotonic()
            there = {}
            for peer in wanted:
                try:
                    for m in CHECKED:
                        peers.check(peer, n, k, m)
                    there[peer] = peers.layers(peer, n, k)
                except (ImportError, NotImplementedError, RuntimeError, AssertionError) as error:
                    why = f"{type(error).__name__}: {error}".splitlines()[0]
                    print(f"{peer.name} at {shape} is absent: {why}", flush=True)
            for m in arguments.tokens:
                calls = [peers.calls_of(peer, layers, k, m) for peer, layers in there.items()]
                for peer, us in zip(there, graph.us_in_turns(calls), strict=True):
                    rows.writerow((n, k, m, peer.name, f"{us:.2f}"))
                file.flush()
            print(f"{shape}: {time.monotonic() - start:.1f} s", flush=True)
            torch.cuda.empty_cache()
    show(arguments)


def floor_us(n: int, k: int, m: int) -> float:
    from benchmarks.decode import bench

    row = {"n": n, "k": k, "bits": 4, "group": 128, "activation": "f16"}
    return bench.floor_us(row, m)


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def show(arguments: argparse.Namespace) -> None:
    """The table of cells; the geometric means over shapes by number of tokens; cells behind."""
    cells: dict[tuple[int, int, int], dict[str, float]] = {}
    with open(arguments.csv, newline="") as file:
        for row in csv.DictReader(file):
            cell = cells.setdefault((int(row["n"]), int(row["k"]), int(row["m"])), {})
            cell[row["kernel"]] = float(row["us"])
    names = list(dict.fromkeys(name for cell in cells.values() for name in cell))
    print(f"| N x K | M | floor | {' | '.join(names)} | ladder / best packed | ladder / best |")
    print("|---" * (len(names) + 5) + "|")
    packed_by: dict[int, list[float]] = {}
    best_by: dict[int, list[float]] = {}
    behind: list[str] = []
    for (n, k, m), cell in cells.items():
        others = {name: us for name, us in cell.items() if name != OURS}
        packed = {name: us for name, us in others.items() if name != DENSE}
        text = ["" if name not in cell else f"{cell[name]:.1f}" for name in names]
        for found, ratios in ((packed, packed_by), (others, best_by)):
            if OURS in cell and found:
                ratio = cell[OURS] / min(found.values())
                ratios.setdefault(m, []).append(ratio)
                text.append(f"{ratio:.2f}")
            else:
                text.append("")
        print(f"| {n} x {k} | {m} | {floor_us(n, k, m):.1f} | {' | '.join(text)} |")
        if OURS in cell:
            behind += [f"{n} x {k} at {m}: {cell[OURS] / us:.2f} of {name}"
                       for name, us in others.items()
                       if us < cell[OURS] * (0.97 if name == DENSE else 1)]  # fmt: skip
    tokens = sorted(best_by)
    print(f"\n| geometric mean | {' | '.join(map(str, tokens))} | all |")
    print("|---" * (len(tokens) + 2) + "|")
    for title, by in (("ladder / best packed peer", packed_by), ("ladder / best", best_by)):
        if by:
            means = [f"{geometric_mean(by[m]):.2f}" if m in by else "" for m in tokens]
            whole = geometric_mean([ratio for ratios in by.values() for ratio in ratios])
            print(f"| {title} | {' | '.join(means)} | {whole:.3f} |")
    print(f"\n{len(cells)} cells; behind a packed peer, or by more than 3 % behind {DENSE}:")
    print("\n".join(f"- {line}" for line in behind) or "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("csv", type=Path)
    one.add_argument("--shapes", nargs="*", default=list(SHAPES))
    one.add_argument("--tokens", nargs="*", type=int, default=list(TOKENS))
    one.add_argument("--peers", nargs="*", default=[DENSE, "Marlin", "Machete", "Humming"])
    commands.add_parser("show").add_argument("csv", type=Path)
    arguments = parser.parse_args()
    run(arguments) if arguments.command == "run" else show(arguments)


if __name__ == "__main__":
    main()
