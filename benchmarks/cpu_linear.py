# SPDX-License-Identifier: Apache-2.0
"""How fast is ``ladder.Linear`` on the CPU, against what the machine and torch can do?

    python benchmarks/cpu_linear.py [--threads 2] [--repeats 15] [--out FILE.md]

Every figure of a row is measured in turns with its peer, so that a busy machine slows both.
Weights are rotated through enough copies that they come from memory, not from a cache.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
import torch.nn.functional as F

import ladder
import ladder.types
from ladder import ops

GROUP = 128
#: Rotated weights fill this much: several times any last-level cache of a desktop or server slice.
ROTATE_BYTES = 160 << 20


def read_bandwidth(threads: int):
    """A function that reads 512 MB once, and the bytes it reads."""
    source = Path(__file__).parent / "read_bandwidth.cpp"
    folder = Path(tempfile.mkdtemp())
    library = folder / "read_bandwidth.so"
    command = ["g++", "-std=c++20", "-O3", "-march=native", "-mprefer-vector-width=512", "-shared"]
    subprocess.run([*command, "-fPIC", "-pthread", source, "-o", library], check=True)
    read = ctypes.CDLL(str(library)).sum
    read.restype = ctypes.c_int64
    data = torch.ones(512 << 17, dtype=torch.int32)
    size = data.numel() * 4
    return (
        lambda: read(ctypes.c_void_p(data.data_ptr()), ctypes.c_int64(size // 64), threads)
    ), size


def in_turns(functions, repeats: int) -> list[float]:
    """Median seconds per call of each function, all measured in turns, so that what else a shared
    machine does slows all of them. One thread is timed by the processor time it got, which other
    programs cannot take away."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times = [[] for _ in functions]
    for f in functions:
        f()
    for _ in range(repeats):
        for f, mine in zip(functions, times, strict=True):
            start = clock()
            f()
            mine.append(clock() - start)
    return [statistics.median(t) for t in times]


def rotated(make, size: int):
    """Copies of what ``make`` returns, enough of them, in an endless round."""
    return itertools.cycle([make() for _ in range(max(2, -(-ROTATE_BYTES // size)))])


def packed(spelling: str, n: int, k: int):
    """A function of x that multiplies by rotated random weights, and the bytes of one weight."""
    few = min(n, 64)  # rows, repeated: quantising all of them would take most of the time
    weight = ladder.quantize(torch.randn(few, k), spelling, method="nearest")

    def repeated(t):
        return t if t is None or t.dim() == 0 or t.shape[0] != few else t.repeat(n // few, 1)

    stored = {name: repeated(t) for name, t in parts(weight).items()}
    size = sum(t.numel() * t.element_size() for t in stored.values() if t is not None)

    def copy():
        return {name: None if t is None else t.clone() for name, t in stored.items()}

    copies = rotated(copy, size)
    spelled = str(weight.type)

    def run(x):
        return ops.linear(x, type=spelled, **next(copies))

    return run, size, weight


def parts(weight):
    names = ("qweight", "scales", "zeros", "scale2")
    return {name: getattr(weight, name) for name in names}


class Report:
    """Lines of the markdown report, printed as they come."""

    def __init__(self):
        self.lines = []

    def __call__(self, line: str = "") -> None:
        print(line, flush=True)
        self.lines.append(line)


def bandwidth_table(report: Report, repeats: int, threads: int, size: int) -> None:
    read, read_bytes = read_bandwidth(threads)
    report("\n## One token: share of the read bandwidth\n")
    report("| weight | x | µs | GB/s | plain sum GB/s | share |")
    report("|---|---|---|---|---|---|")
    for spelling in (
        "uint4,group=128,scale=float16,zero=midpoint",
        "uint4,group=128,scale=float16,zero=quantized",
        "mxfp4",
    ):
        for dtype in (torch.float32, torch.bfloat16):
            run, bytes_, _ = packed(spelling, size, size)
            x = torch.randn(1, size, dtype=dtype)
            # One turn reads every copy, as a model reads its layers; one call after the plain sum
            # would mostly time the walks of page tables that the sum has evicted.
            calls = ROTATE_BYTES // bytes_

            def every_copy(run=run, x=x, calls=calls):
                for _ in range(calls):
                    run(x)

            turn, plain = in_turns([every_copy, read], repeats)
            ours = turn / calls
            rate, limit = bytes_ / ours / 1e9, read_bytes / plain / 1e9
            report(
                f"| {spelling} | {name(dtype)} | {ours * 1e6:.0f} | {rate:.1f} | {limit:.1f} "
                f"| **{rate / limit:.0%}** |"
            )


def int4pack_table(report: Report, repeats: int, size: int) -> None:
    report("\n## uint4, groups of 128, against `torch.ops.aten._weight_int4pack_mm_for_cpu`\n")
    report("| x | M | ladder ms | int4pack ms | times faster |")
    report("|---|---|---|---|---|")
    codes = torch.randint(0, 16, (size, size), dtype=torch.int32)
    torch_packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    for dtype in (torch.bfloat16, torch.float32):
        metadata = torch.randn(size // GROUP, size, 2).to(dtype)
        peers = rotated(torch_packed.clone, torch_packed.numel())
        run, _, _ = packed(f"uint4,group={GROUP},scale=float16,zero=midpoint", size, size)
        for m in (1, 4, 16, 64):
            x = torch.randn(m, size).to(dtype)

            def peer(x=x, metadata=metadata):
                torch.ops.aten._weight_int4pack_mm_for_cpu(x, next(peers), GROUP, metadata)

            turns = 2 if dtype == torch.float32 and m > 4 else repeats * max(1, 16 // m)
            ours, theirs = in_turns([lambda x=x: run(x), peer], turns)
            report(
                f"| {name(dtype)} | {m} | {ours * 1e3:.3f} | {theirs * 1e3:.3f} "
                f"| **{theirs / ours:.2f}** |"
            )


def dense_table(report: Report, repeats: int, size: int) -> None:
    report("\n## One token, every type of 1 to 8 bits, against `F.linear` on float32 weights\n")
    report("| type | bits | µs | F.linear µs | times faster |")
    report("|---|---|---|---|---|")
    dense = rotated(lambda: torch.randn(size, size), size * size * 4)
    x = torch.randn(1, size)
    for spelling in weight_types():
        run, _, weight = packed(spelling, size, size)
        ours, theirs = in_turns([lambda: run(x), lambda: F.linear(x, next(dense))], repeats)
        report(
            f"| {spelling} | {weight.type.bits} | {ours * 1e6:.0f} | {theirs * 1e6:.0f} "
            f"| **{theirs / ours:.1f}** |"
        )


def weight_types() -> list[str]:
    """Every element of at most 8 bits in groups of 128, asymmetric where that exists, then the
    named block types and the groupings that need their own loops."""
    spellings = []
    for spelling in ladder.types.type_names():
        is_block = (
            str(ladder.types.parse(spelling)) == spelling and ladder.types.parse(spelling).scale
        )
        spellings.append(spelling if is_block else f"{spelling},group={GROUP},scale=float16")
    return spellings + [
        "uint4,group=128,scale=float16,zero=integer",
        "uint4,group=32,scale=float16,zero=original",
        "uint8,group=128,scale=float16,zero=quantized",
    ]


def large_table(report: Report, repeats: int, size: int) -> None:
    report("\n## Many tokens, against `F.linear` on the dequantised weights\n")
    report("| weight | x | M | ladder ms | F.linear ms | share of its speed |")
    report("|---|---|---|---|---|---|")
    run, _, weight = packed("uint4,group=128,scale=float16,zero=midpoint", size, size)
    repeats_of_rows = size // weight.shape[0]
    for dtype, ms in ((torch.float32, (16, 64, 128, 512)), (torch.bfloat16, (16, 64, 512))):
        whole = weight.dequantize().repeat(repeats_of_rows, 1).to(dtype)
        dense = rotated(whole.clone, size * size * 4)
        for m in ms:
            x = torch.randn(m, size).to(dtype)
            ours, theirs = in_turns(
                [lambda: run(x), lambda: F.linear(x, next(dense))], max(3, repeats // 2)
            )
            report(
                f"| uint4 | {name(dtype)} | {m} | {ours * 1e3:.2f} | {theirs * 1e3:.2f} "
                f"| **{theirs / ours:.2f}** |"
            )


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, kernels {torch.ops.ladder.cpu_isas().split()[-1]}, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--size", type=int, default=4096, help="N and K, a multiple of 128")
    parser.add_argument("--only", nargs="*", default=["bandwidth", "int4pack", "large", "dense"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    report = Report()
    clock = "processor" if arguments.threads == 1 else "wall"
    report("# CPU linear\n")
    report(
        f"{machine()}; {arguments.threads} threads; N = K = {arguments.size}; median of "
        f"{arguments.repeats} turns, {clock} time.\n"
    )
    report(
        f"`python benchmarks/cpu_linear.py --threads {arguments.threads} "
        f"--repeats {arguments.repeats}`"
    )
    if "bandwidth" in arguments.only:
        bandwidth_table(report, arguments.repeats, arguments.threads, arguments.size)
    if "int4pack" in arguments.only:
        int4pack_table(report, arguments.repeats, arguments.size)
    if "large" in arguments.only:
        large_table(report, arguments.repeats, arguments.size)
    if "dense" in arguments.only:
        dense_table(report, arguments.repeats, arguments.size)
    if arguments.out:
        arguments.out.write_text("\n".join(report.lines) + "\n")


if __name__ == "__main__":
    main()
