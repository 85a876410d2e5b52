# SPDX-License-Identifier: Apache-2.0
"""Check and time the kernels of the linear layer on a GPU.

Compiling needs no GPU and measuring needs no compiler, so the two may be different machines. What
compiles is `ladder-kernels`: `cmake -S . -B build -DLADDER_BENCHMARKS=ON && ninja -C build`.
DIRECTORY has libnvrtc; that of pip is site-packages/nvidia/cu13/lib.

    python benchmarks/linear.py prepare OUT --device h200 --nvrtc DIRECTORY --preset decode
    python benchmarks/linear.py run OUT --csv OUT/linear.csv
    python benchmarks/linear.py run OUT --peers OUT/peers.md    # of --preset few, say

Every kernel is first checked: exactly, on integers, and by the derived bound on random numbers, at
one token and at the most it serves. Times are microseconds per call: the median of graph replays of
launches over weights that together exceed twice the L2, random data. The floor is the larger of
bytes / 4.53 TB/s and 2 M N K / 761 TFLOP/s, bytes = codes + scales + activations + outputs.

Presets, all with groups of 128 and, but for tiles, kernels for up to 8 and up to 16 tokens:

    decode  uint4 at five shapes, float16 and bfloat16; f16: the first half of it
    few     schedules of decode to set beside peers
    widths  1 to 8 bits at 28672 x 8192, kernels for one token too
    chain   uint4 at 4096 x 4096, float16, with programmatic dependent launch
    tiles   uint4 at seven shapes, 32 to 256 tokens; small-tiles: at 512 x 2048
    bytes   activations of 8 bits, 32 to 4096 tokens at two shapes; small-bytes: at 512 x 2048
    small   uint4, and uint3 with bfloat16, at 512 x 2048: for compute-sanitizer, by --only-check
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # a checkout in which nothing is installed

from benchmarks.decode.requests import presets

ROOT = pathlib.Path(__file__).parents[1]


def prepare(args):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    requests = list(dict.fromkeys(presets()[args.preset]))
    tool = ROOT / "build/benchmarks/ladder-kernels"
    if not tool.exists():
        return f"{tool} is not there: build with cmake -DLADDER_BENCHMARKS=ON"
    with open(out / "compile.log", "w") as log:
        done = subprocess.run(
            [tool, out, args.device, args.nvrtc], input="\n".join(requests), text=True, stderr=log
        )
    if done.returncode:
        last = (out / "compile.log").read_text().strip().split("\n")[-1]
        return f"ladder-kernels ended with {done.returncode}, see {log.name}: {last}"
    kernels = json.loads((out / "manifest.json").read_text())
    print(f"{len(kernels)} kernels of {len(requests)} requests")


def problem_of(row):
    return row["bits"], row["activation"], row["n"], row["k"], row["m"]


def run(args):
    # Measuring needs torch, preparing does not.
    from benchmarks.decode.bench import Bench, floor_us
    from benchmarks.machine import require_gpu

    require_gpu()
    folder = pathlib.Path(args.out)
    rows = json.loads((folder / "manifest.json").read_text())
    bench = Bench(folder)
    table, failed = [], 0
    for row in rows:
        try:
            kernel = bench.load(row)
            worst = bench.check(kernel) if not args.no_check else float("nan")
            if args.only_check:
                continue
            for m in sorted({1, row["max_m"]}) if row["max_m"] <= 8 else (row["max_m"],):
                us, floor = bench.time(kernel, m), floor_us(row, m)
                table.append({**row, "m": m, "us": us, "floor": floor, "bound": worst})
        except (AssertionError, RuntimeError) as error:
            failed += 1
            print(f"FAILED {row['n']}x{row['k']} {row['schedule']}: {error}"[:300])
            if isinstance(error, RuntimeError):
                break  # the context is lost
    if args.only_check:
        print(f"{len(rows)} kernels checked, {failed} failed")
        return 1 if failed else 0
    if args.csv:
        with open(args.csv, "w", newline="") as out:
            writer = csv.DictWriter(out, table[0].keys())
            writer.writeheader()
            writer.writerows(table)
    fastest = print_fastest(table, args.top)
    print(f"{len(rows)} kernels, {failed} failed")
    if args.peers:
        from benchmarks.decode.compared import compared

        pathlib.Path(args.peers).write_text(compared(fastest, args.tuning_seconds))
    return 1 if failed else 0


def print_fastest(table, count):
    """The fastest rows of each problem, printed; returns the first of each."""
    fastest = []
    for problem in sorted({problem_of(row) for row in table}):
        same = sorted((r for r in table if problem_of(r) == problem), key=lambda r: r["us"])
        bits, activation, n, k, m = problem
        print(f"u{bits} {activation} {n}x{k} m={m}: floor {same[0]['floor']:.2f}")
        for r in same[:count]:
            print(
                f"  {r['us']:7.2f} us  {r['floor'] / r['us']:.2f}  bound {r['bound']:.2f}  "
                f"{r['registers']} regs  {r['schedule']}"
            )
        fastest.append(same[0])
    return fastest


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("prepare")
    one.add_argument("out")
    one.add_argument("--device", default="h200")
    one.add_argument("--nvrtc", default="/usr/local/cuda/lib64")
    one.add_argument("--preset", default="decode", choices=sorted(presets()))
    two = commands.add_parser("run")
    two.add_argument("out")
    two.add_argument("--csv")
    two.add_argument("--peers", help="file for a table of the fastest kernels beside peers")
    two.add_argument("--tuning-seconds", type=float, default=120, help="of peers, a table")
    two.add_argument("--top", type=int, default=6)
    two.add_argument("--no-check", action="store_true")
    two.add_argument("--only-check", action="store_true")
    args = parser.parse_args()
    return prepare(args) if args.command == "prepare" else run(args)


if __name__ == "__main__":
    sys.exit(main())
