# SPDX-License-Identifier: Apache-2.0
"""How fast is ``ladder.Linear`` on the CPU, against what the machine, torch and ggml can do?

    python benchmarks/cpu_linear.py [--threads 2] [--repeats 15] [--isa avx2] [--ggml FOLDER]
        [--out FILE.md [--append]]

Every figure of a row is measured in turns with its peer, so that a busy machine slows both, and is
a median with the least of all turns behind it. Weights are rotated through enough copies that they
come from memory, not from a cache. ``--isa avx2`` limits ladder, torch, oneDNN and MKL alike.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
import torch.nn.functional as F
from ggml_peer import Ggml
from machine import busy, processor

import ladder
import ladder.types
from ladder import ops

#: What limits the libraries of torch to an instruction set; they read it when they are loaded.
LIMITS = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }
}
GROUP = 128
#: Rotated weights fill this much: several times any last-level cache of a desktop or server slice.
ROTATE_BYTES = 160 << 20
#: Numbers of tokens: one, around the limits between the ways that a product can take, many.
TOKENS = (1, 4, 5, 8, 16, 17, 32, 64, 128, 191, 192, 512)
#: With ``--match``, which has many types.
FEW_TOKENS = (17, 32, 64, 128, 192, 256, 512)
#: A format whose decoding takes long: values by table in four bytes, none of 16 bits.
SLOWEST = "benchmark_table7,group=128,scale=float16"


def register_tables() -> None:
    """Tables as a user might have them, of 6 to 8 bits: ``benchmark_table`` of float32 numbers,
    which has 5 bits, too, ``short_table`` of bfloat16 numbers, ``signed_table`` of these and their
    negatives."""
    generator = torch.Generator().manual_seed(7)
    for bits in (7, 6, 8):  # 7 first: results before there were others keep their table
        values = torch.randn(1 << bits, generator=generator, dtype=torch.float64).sort().values
        ladder.register_type(f"benchmark_table{bits}", bits=bits, values=values.float().tolist())
    short = torch.randn(8192, generator=generator).bfloat16().float().unique()
    positive = short[short > 0]
    for bits in (6, 7, 8):
        values = short[:: len(short) >> bits][: 1 << bits].tolist()
        ladder.register_type(f"short_table{bits}", bits=bits, values=values)
        half = positive[:: len(positive) >> (bits - 1)][: 1 << (bits - 1)].tolist()
        ladder.register_type(f"signed_table{bits}", bits=bits, values=half + [-v for v in half])
    values = torch.randn(32, generator=generator).sort().values.tolist()
    ladder.register_type("benchmark_table5", bits=5, values=values)


def read_bandwidth(threads: int):
    """A function that reads 512 MB once, and the bytes it reads."""
    source = Path(__file__).parent / "read_bandwidth.cpp"
    folder = Path(tempfile.mkdtemp())
    library = folder / "read_bandwidth.so"
    narrow = torch.backends.cpu.get_cpu_capability() == "AVX2"
    flags = ["-march=haswell"] if narrow else ["-march=native", "-mprefer-vector-width=512"]
    command = ["g++", "-std=c++20", "-O3", *flags, "-shared"]
    subprocess.run([*command, "-fPIC", "-pthread", source, "-o", library], check=True)
    read = ctypes.CDLL(str(library)).sum
    read.restype = ctypes.c_int64
    data = torch.ones(512 << 17, dtype=torch.int32)
    size = data.numel() * 4
    return (
        lambda: read(ctypes.c_void_p(data.data_ptr()), ctypes.c_int64(size // 64), threads)
    ), size


class Times(NamedTuple):
    """Seconds of a call."""

    median: float
    least: float

    def us(self) -> str:
        return f"{self.median * 1e6:.0f} ({self.least * 1e6:.0f})"

    def ms(self) -> str:
        return f"{self.median * 1e3:.2f} ({self.least * 1e3:.2f})"


def in_turns(functions, repeats: int) -> list[Times]:
    """Seconds per call of each function, all measured in turns, so that what else a shared
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
    return [Times(statistics.median(t), min(t)) for t in times]


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
            ours = Times(*(seconds / calls for seconds in turn))
            rate, limit = bytes_ / ours.median / 1e9, read_bytes / plain.median / 1e9
            report(
                f"| {spelling} | {name(dtype)} | {ours.us()} | {rate:.1f} | {limit:.1f} "
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
                f"| {name(dtype)} | {m} | {ours.ms()} | {theirs.ms()} "
                f"| **{theirs.median / ours.median:.2f}** |"
            )


def dense_table(report: Report, repeats: int, size: int, match: str) -> None:
    report("\n## One token, every type of 1 to 8 bits, against `F.linear` on float32 weights\n")
    report("| type | bits | µs | F.linear µs | times faster | least / least |")
    report("|---|---|---|---|---|---|")
    dense = rotated(lambda: torch.randn(size, size), size * size * 4)
    x = torch.randn(1, size)
    for spelling in weight_types():
        if match not in spelling:
            continue
        run, _, weight = packed(spelling, size, size)
        ours, theirs = in_turns([lambda: run(x), lambda: F.linear(x, next(dense))], repeats)
        report(
            f"| {spelling} | {weight.type.bits} | {ours.us()} | {theirs.us()} "
            f"| **{theirs.median / ours.median:.1f}** | {ours.least / theirs.least:.2f} |"
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
        "benchmark_table8,group=16,scale=float16",
        "benchmark_table8,group=32,scale=float16",
        "uint8,group=128,scale=float16,zero=quantized",
    ]


def matched_table(report: Report, repeats: int, size: int, match: str) -> None:
    """Of each number of tokens every type in turns with one ``F.linear``."""
    report(
        "\n## More tokens, against `F.linear` on float32 weights and x, least / least (medians)\n"
    )
    spellings = [spelling for spelling in weight_types() if match in spelling]
    report("| weight | x | " + " | ".join(map(str, FEW_TOKENS)) + " |")
    report("|---|---|" + "---|" * len(FEW_TOKENS))
    dense = rotated(lambda: torch.randn(size, size), size * size * 4)
    runs = [packed(spelling, size, size)[0] for spelling in spellings]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        columns = []
        for m in FEW_TOKENS:
            x = torch.randn(m, size)
            turns = [lambda run=run, x=x.to(dtype): run(x) for run in runs]
            turns.append(lambda x=x: F.linear(x, next(dense)))
            columns.append(in_turns(turns, max(3, repeats // (1 + m // 32))))
        of_dense = [f"{times[-1].ms()} ms" for times in columns]
        report(f"| `F.linear` | {name(dtype)} | " + " | ".join(of_dense) + " |")
        for i, spelling in enumerate(spellings):
            shares = [
                f"{t[i].least / t[-1].least:.2f} ({t[i].median / t[-1].median:.2f})"
                for t in columns
            ]
            report(f"| {spelling} | {name(dtype)} | " + " | ".join(shares) + " |")


def large_table(report: Report, repeats: int, size: int) -> None:
    report("\n## More tokens, against `F.linear` on unquantised weights of the dtype of x\n")
    report("| weight | x | M | ladder ms | F.linear ms | share of its speed |")
    report("|---|---|---|---|---|---|")
    # The quickest and the slowest to decode; narrow groups and values that no bfloat16 holds.
    every, pairs = (torch.float32, torch.bfloat16), (torch.bfloat16,)
    for spelling, dtypes in (
        ("uint4,group=128,scale=float16,zero=midpoint", every),
        (SLOWEST, every),
        ("nf4,group=64,scale=float16", pairs),
        ("mxfp4", pairs),
        ("nvfp4", pairs),
    ):
        run, _, _ = packed(spelling, size, size)
        for dtype in dtypes:
            dense = rotated(lambda dtype=dtype: torch.randn(size, size).to(dtype), size * size * 4)
            for m in TOKENS:
                x = torch.randn(m, size).to(dtype)
                turns = [lambda x=x: run(x), lambda x=x: F.linear(x, next(dense))]
                ours, theirs = in_turns(turns, max(3, repeats // (1 + m // 32)))
                report(
                    f"| {spelling.split(',')[0]} | {name(dtype)} | {m} | {ours.ms()} "
                    f"| {theirs.ms()} | **{theirs.median / ours.median:.2f}** |"
                )


def ggml_table(report: Report, repeats: int, threads: int, size: int, folder: Path) -> None:
    ggml = Ggml(folder)
    report("\n## Against ggml, whose products quantise x to 8 bits\n")
    report(f"ggml built for {ggml.isas()}; ladder multiplies x as it is, float32.\n")
    report("| M | ladder | ms | ggml | ms | times faster |")
    report("|---|---|---|---|---|---|")
    weight = torch.randn(size, size)
    for ours_type, theirs_type in (
        ("uint4,group=32,scale=float16,zero=midpoint", "q4_0"),
        ("uint4,group=128,scale=float16,zero=midpoint", "q4_0"),
        ("int8,group=32,scale=float16", "q8_0"),
    ):
        run, _, _ = packed(ours_type, size, size)
        copies = max(2, -(-ROTATE_BYTES // (size * ggml.row_bytes(theirs_type, size))))
        for m in (1, 4, 16, 64, 512):
            x = torch.randn(m, size)
            peer = ggml.product(theirs_type, weight, x, threads, copies)
            turns = max(3, repeats // (1 + m // 32))
            ours, theirs = in_turns([lambda x=x: run(x), peer], turns)
            report(
                f"| {m} | {ours_type} | {ours.ms()} | {theirs_type} | {theirs.ms()} "
                f"| **{theirs.median / ours.median:.2f}** |"
            )
            del peer


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main() -> None:
    tables = ["bandwidth", "int4pack", "large", "dense", "ggml"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--size", type=int, default=4096, help="N and K, a multiple of 128")
    parser.add_argument("--isa", default="", help="use no more than this instruction set")
    parser.add_argument("--ggml", type=Path, help="folder of ggml's shared libraries")
    parser.add_argument(
        "--match", default="", help="of --only dense, large: types whose name has this"
    )
    parser.add_argument("--only", nargs="*", choices=tables, default=tables)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--append", action="store_true", help="add to the file of --out")
    arguments = parser.parse_args()
    limits = LIMITS.get(arguments.isa, {})
    if any(os.environ.get(name) != limit for name, limit in limits.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **limits})
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    isa = torch.ops.ladder.use_cpu_isa(arguments.isa)
    register_tables()
    report = Report()
    clock = "processor" if arguments.threads == 1 else "wall"
    report(f"# CPU linear, {isa}, {arguments.threads} threads\n")
    report(
        f"{processor()}, kernels {isa}, torch {torch.__version__} with "
        f"{torch.backends.cpu.get_cpu_capability()}; N = K = {arguments.size}; median (and least) "
        f"of {arguments.repeats} turns, {clock} time."
    )
    if limits:
        given = ", ".join(f"{variable}={limit}" for variable, limit in limits.items())
        report(f"Torch, oneDNN and MKL are limited alike: {given}.")
    options = [f"--threads {arguments.threads}", f"--repeats {arguments.repeats}"]
    options += [f"--isa {arguments.isa}"] if arguments.isa else []
    options += [f"--only {' '.join(arguments.only)}"] if arguments.only != tables else []
    options += [f"--match {arguments.match}"] if arguments.match else []
    options += ["--ggml FOLDER"] if arguments.ggml else []
    report(f"\n`python benchmarks/cpu_linear.py {' '.join(options)}`")
    before = busy()
    if before > 0.05:
        report(
            f"\n**Other programs use {before:.0%} of the processors: do not trust the figures.**"
        )
    if "bandwidth" in arguments.only:
        bandwidth_table(report, arguments.repeats, arguments.threads, arguments.size)
    if "int4pack" in arguments.only:
        int4pack_table(report, arguments.repeats, arguments.size)
    if "large" in arguments.only and arguments.match:
        matched_table(report, arguments.repeats, arguments.size, arguments.match)
    elif "large" in arguments.only:
        large_table(report, arguments.repeats, arguments.size)
    if "dense" in arguments.only:
        dense_table(report, arguments.repeats, arguments.size, arguments.match)
    if "ggml" in arguments.only and arguments.ggml:
        folder = arguments.ggml
        ggml_table(report, arguments.repeats, arguments.threads, arguments.size, folder)
    after = busy()
    if after > 0.05:
        report(f"\n**Other programs use {after:.0%} of the processors now that it ends.**")
    if arguments.out:
        text = "\n".join(report.lines) + "\n"
        if arguments.append and arguments.out.exists():
            text = arguments.out.read_text() + "\n" + text
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
