# SPDX-License-Identifier: Apache-2.0
"""Every number of tokens: packed layers beside the layer that was never quantised, microseconds.

    python benchmarks/sweep.py run OUT.csv [--shapes 4096x4096 8192x8192] [--types TYPE ...]
    python benchmarks/sweep.py show OUT.csv [--plot OUT.png]    # no GPU; the plot: matplotlib

Times are of ``ladder.Linear``'s op and of ``F.linear`` on weights of the dtype of x, in replayed
CUDA graphs over random weights that together exceed twice the L2, after tuning. ``show`` prints
the largest ratios of the two, and where a number of tokens takes longer than a larger number.
"""

from __future__ import annotations

import argparse
import csv
import sys
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
import torch.nn.functional as F

#: Each up to 64, then in steps that make the same share of M or less.
TOKENS = (*range(1, 65), *range(72, 257, 8), *range(288, 1025, 32), 1280, 1536, 2048, 3072, 4096,
          8192)  # fmt: skip
TYPES = ("uint4,group=128,scale=float16", "uint4,group=32,scale=float16")
UNQUANTISED = "F.linear"
FIELDS = ("shape", "type", "dtype", "m", "us", "schedule")


def unquantised(n: int, k: int, dtype: torch.dtype) -> list[float]:
    from benchmarks import graph

    count = max(2, -(-graph.ROTATION_BYTES // (2 * n * k)))
    weights = [torch.randn(n, k, device="cuda", dtype=dtype) for _ in range(count)]
    out = []
    for m in TOKENS:
        x = torch.randn(m, k, device="cuda", dtype=dtype)
        out.append(graph.us([partial(F.linear, x, w) for w in weights]))
    return out


def packed(type: str, n: int, k: int, dtype: torch.dtype) -> list[tuple[float, str]]:
    from benchmarks import graph
    from ladder.cuda import image, kernels, timing
    from ladder.cuda.tune import Request, tune_all
    from ladder.types import parse

    ttype, device = parse(type), torch.device("cuda", torch.cuda.current_device())
    weight = image.open_weight(type, n, k)
    tune_all([Request(weight, ttype, (n, k), device, dtype, TOKENS)], mode="full", budget_s=120)
    out = []
    all_calls = timing.calls_of(weight, ttype, (n, k), device, dtype, TOKENS)
    for m, calls in zip(TOKENS, all_calls, strict=True):
        schedule = kernels.compile_for(weight, device, dtype, m)
        out.append((graph.us(calls), schedule or "dense"))
    return out


def run(arguments: argparse.Namespace) -> None:
    from benchmarks.machine import describe, require_gpu

    require_gpu()
    print(describe("python benchmarks/sweep.py run"))
    dtype = getattr(torch, arguments.dtype)
    with open(arguments.csv, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(FIELDS)
        for shape in arguments.shapes:
            n, k = map(int, shape.split("x"))
            for m, us in zip(TOKENS, unquantised(n, k, dtype), strict=True):
                rows.writerow((shape, UNQUANTISED, arguments.dtype, m, f"{us:.2f}", ""))
            for type in arguments.types:
                for m, (us, schedule) in zip(TOKENS, packed(type, n, k, dtype), strict=True):
                    rows.writerow((shape, type, arguments.dtype, m, f"{us:.2f}", schedule))
    show(arguments)


def curves(path: Path) -> dict[tuple[str, str], dict[int, float]]:
    """(shape, type and dtype) -> M -> microseconds."""
    out: dict[tuple[str, str], dict[int, float]] = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            out.setdefault((row["shape"], row["type"]), {})[int(row["m"])] = float(row["us"])
    return out


def show(arguments: argparse.Namespace) -> None:
    found = curves(arguments.csv)
    marks = (1, 16, 17, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
    print("| N x K | weight | " + " | ".join(f"M={m}" for m in marks) + " |")
    print("|---" * (len(marks) + 2) + "|")
    for (shape, type), curve in found.items():
        cells = " | ".join(f"{curve[m]:.1f}" for m in marks)
        print(f"| {shape.replace('x', ' x ')} | {type} | {cells} |")
    for (shape, type), curve in found.items():
        if type == UNQUANTISED:
            continue
        base = found[shape, UNQUANTISED]
        ratios = sorted(((curve[m] / base[m], m) for m in curve), reverse=True)
        slower = [m for m in curve if curve[m] > 1.03 * base[m]]
        falls = [(m, later) for m, later in zip(TOKENS, TOKENS[1:], strict=False)
                 if curve[later] < curve[m] / 1.03]  # fmt: skip
        print(f"{shape} {type}: most of F.linear's time "
              + ", ".join(f"{ratio:.2f} at {m}" for ratio, m in ratios[:3])
              + f"; more than 3 % slower at {len(slower)} of {len(curve)}"
              + (f", {slower[0]} to {slower[-1]}" if slower else "")
              + f"; more than 3 % slower than a larger M: {falls}")  # fmt: skip
    if arguments.plot:
        plot(found, arguments.plot)


def plot(found: dict[tuple[str, str], dict[int, float]], path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    # Equal input, equal bytes: no date, no random names.
    matplotlib.rcParams |= {"svg.hashsalt": "ladder", "svg.fonttype": "none"}
    shapes = list(dict.fromkeys(shape for shape, _ in found))
    figure = Figure(figsize=(6 * len(shapes), 4), layout="constrained")
    axes = figure.subplots(1, len(shapes), squeeze=False)
    for axis, shape in zip(axes[0], shapes, strict=True):
        for (of, type), curve in found.items():
            if of == shape:
                style = {"color": "black", "linestyle": "--"} if type == UNQUANTISED else {}
                axis.plot(list(curve), list(curve.values()), label=type, **style)
        axis.set(xscale="log", yscale="log", xlabel="tokens", ylabel="us",
                 title=shape.replace("x", " x "))  # fmt: skip
        axis.legend()
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("csv", type=Path)
    one.add_argument("--shapes", nargs="*", default=["4096x4096", "8192x8192"])
    one.add_argument("--types", nargs="*", default=list(TYPES))
    one.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    one.set_defaults(plot=None)
    two = commands.add_parser("show")
    two.add_argument("csv", type=Path)
    two.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    run(arguments) if arguments.command == "run" else show(arguments)


if __name__ == "__main__":
    main()
