# SPDX-License-Identifier: Apache-2.0
"""What the scheduler proposes for a shape and a number of tokens, timed, beside ``F.linear``.

    python benchmarks/proposals.py OUT.csv [--shapes 8192x8192 4096x4096] [--tokens 64 256]
        [--count 10] [--without producers] [--gate silu]

Times are microseconds of ``ladder.Linear``'s op in replayed CUDA graphs over random weights that
together exceed twice the L2. ``--without`` times each proposal once more without that item of its
print (items are separated by ", "), where such a schedule exists; an item that no proposal has is
refused. The lines that are printed have the first proposal, or that it is refused; the fastest with
that item and the fastest without it: how good the cost model's choice is, and what the item is
worth. Kernels are compiled first, by as many processes as there are processors. With ``--gate`` the
rows are those of gate and up, whose product kernels give; ``F.linear`` is without it.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
import torch.nn.functional as F


def schedules(arguments: argparse.Namespace, weight: int, m: int) -> list[str]:
    """Proposals and their counterparts, each once; none where no kernel is for the cell."""
    dtype = getattr(torch, arguments.dtype)
    try:
        text = torch.ops.ladder.schedules(weight, 0, dtype, m, arguments.count)
    except RuntimeError:
        return []
    out = []
    for name in filter(None, text.split("\n")):
        out += [name, without(name, arguments.without)]
    return list(dict.fromkeys(out))


def without(name: str, item: str) -> str:
    """The print of a schedule less one of its items."""
    return ", ".join(each for each in name.split(", ") if each != item)


def refuse_unknown(item: str, names: Iterable[str]) -> None:
    """End the program where no schedule has ``item`` in its print."""
    items = {each for name in names for each in name.split(", ")}
    if item and item not in items:
        sys.exit(f'--without is "{item}", and proposals have: {", ".join(sorted(items))}')


def line_of(proposals: Sequence[str], times: Mapping[str, float], item: str) -> str:
    """What is printed of a cell: microseconds of the first proposal, of the fastest with ``item``
    and without it, and the fastest of all. ``times`` has the schedules that are not refused."""
    if not times:
        return f"none of {len(proposals)} schedules has a kernel"
    first = proposals[0]
    line = f"first {times[first]:.1f}" if first in times else "first refused"
    if item:
        for said, yes in (("with", True), ("without", False)):
            found = [us for name, us in times.items() if (item in name.split(", ")) is yes]
            line += f", {said} {min(found):.1f}" if found else ""
    best = min(times, key=times.__getitem__)
    return f"{line}; {times[best]:.1f}: {best}"


def use(arguments: argparse.Namespace, weight: int, m: int, name: str) -> bool:
    """False where the device or the scheduler has no such kernel."""
    dtype = getattr(torch, arguments.dtype)
    try:
        torch.ops.ladder.use_schedule(weight, 0, dtype, m, name, False)
    except RuntimeError:
        return False
    return True


def cells(arguments: argparse.Namespace):
    from ladder.cuda import image
    from ladder.ops.gating import Gating

    gating = Gating(arguments.gate) if arguments.gate else None
    for shape in arguments.shapes:
        n, k = map(int, shape.split("x"))
        weight = image.open_weight(arguments.type, n, k, gating=gating)
        for m in arguments.tokens:
            yield n, k, m, weight


def compile_part(index: int, count: int, arguments: argparse.Namespace) -> None:
    """Every ``count``-th kernel goes to the store."""
    number = 0
    for _, _, m, weight in cells(arguments):
        for name in schedules(arguments, weight, m):
            number += 1
            if number % count == index:
                use(arguments, weight, m, name)


def run(arguments: argparse.Namespace) -> None:
    from benchmarks import graph
    from benchmarks.machine import describe, require_gpu
    from ladder.cuda import timing
    from ladder.types import parse

    require_gpu()
    print(describe("python benchmarks/proposals.py"))
    every = (name for *_, m, weight in cells(arguments) for name in schedules(arguments, weight, m))
    refuse_unknown(arguments.without, every)
    count = os.cpu_count() or 1
    torch.multiprocessing.spawn(compile_part, args=(count, arguments), nprocs=count)
    dtype, device = getattr(torch, arguments.dtype), torch.device("cuda", 0)
    with open(arguments.csv, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("n", "k", "m", "schedule", "us"))
        for n, k, m, weight in cells(arguments):
            copies = max(2, -(-graph.ROTATION_BYTES // (2 * n * k)))
            dense = [torch.randn(n, k, device=device, dtype=dtype) for _ in range(copies)]
            x = torch.randn(m, k, device=device, dtype=dtype)
            unquantised = graph.us([partial(F.linear, x, w) for w in dense])
            rows.writerow((n, k, m, "F.linear", f"{unquantised:.2f}"))
            columns = n // 2 if arguments.gate else n
            type = parse(arguments.type)
            (calls,) = timing.calls_of(weight, type, (n, k), device, dtype, (m,), columns)
            proposals = schedules(arguments, weight, m)
            times = {name: graph.us(calls) for name in proposals if use(arguments, weight, m, name)}
            for name, us in times.items():
                rows.writerow((n, k, m, name, f"{us:.2f}"))
            line = line_of(proposals, times, arguments.without)
            print(f"{n} x {k}, {m} tokens: F.linear {unquantised:.1f}, {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("csv", type=Path)
    parser.add_argument("--shapes", nargs="*", default=["8192x8192", "4096x4096"])
    parser.add_argument("--tokens", nargs="*", type=int, default=[32, 64, 128, 256, 512, 1024])
    parser.add_argument("--type", default="uint4,group=128,scale=float16")
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    parser.add_argument("--count", type=int, default=10, help="proposals of a cell")
    parser.add_argument("--gate", default="", help="the function of the gate: silu")
    parser.add_argument("--without", default="", help="an item of schedules' prints: producers")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
