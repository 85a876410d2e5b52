# SPDX-License-Identifier: Apache-2.0
"""What kernels for AMD's GPUs are expected to take: a model, since none of these GPUs was at hand.

For each linear layer of the models that LADDER was measured with on an MI250 (OSDI '24, Fig. 17)
the cost of the first schedule, its share of the read rate, what clang makes of it, and what
llvm-mca counts for the body of its loop. Needs clang++-19; llvm-mca-19 for the last column.

python benchmarks/hip_predicted.py > benchmarks/results/hip_predicted.md
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

from ladder import _C

#: Those of csrc/codegen/hip/toolchain.cpp that decide the code.
FLAGS = ["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc",
         "-O3", "-std=c++17", "-ffp-contract=on", "-S"]  # fmt: skip
#: Layers of one decoder layer, [rows, columns].
MODELS = {
    "LLAMA2-70B": [(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)],
    "BLOOM-176B": [(43008, 14336), (14336, 14336), (57344, 14336), (14336, 57344)],
}
TYPES = {
    "W:INT4 A:FP16": "uint4,group=128,scale=float16,zero=midpoint",
    "W:NF4 A:FP16": "nf4,group=64,scale=float16",
    "W:MXFP4 A:FP16": "mxfp4",
}
#: Milliseconds of a whole decoder layer on an MI250: LADDER (OSDI '24), Fig. 17; batch 1 and 32.
MEASURED = {
    ("LLAMA2-70B", "W:INT4 A:FP16"): (0.7346, 2.569),
    ("LLAMA2-70B", "W:NF4 A:FP16"): (0.7853, 5.181),
    ("BLOOM-176B", "W:INT4 A:FP16"): (1.755, 3.877),
    ("BLOOM-176B", "W:NF4 A:FP16"): (2.012, 8.142),
}
ARCHITECTURES = {
    "mi250": "gfx90a",
    "mi300x": "gfx942",
    "rx7900xtx": "gfx1100",
    "rx9070xt": "gfx1201",
}
#: Those that layers are predicted for, and that multiply bytes.
DATA_CENTRE = ("mi250", "mi300x")
#: Weights for activations of 8 bits, and what these are rounded to.
BYTES = {
    "W:INT4 G128 A:INT8": ("uint4,group=128,scale=float16,zero=midpoint", "int8"),
    "W:INT4 A:INT8": ("int4,channel,scale=float16", "int8"),
    "W:INT8 A:INT8": ("int8,channel,scale=float16", "int8"),
    "W:INT4 G128 A:FP8": ("uint4,group=128,scale=float16,zero=midpoint", "float8_e4m3"),
    "W:MXFP4 A:FP8": ("mxfp4", "float8_e4m3"),
    "W:FP8 A:FP8": ("float8_e4m3,channel,scale=float32", "float8_e4m3"),
}
#: Architectures that multiply float8.
FLOAT8 = {"gfx942"}
PEAK = {"mi250": 1.6384, "mi300x": 5.3, "rx7900xtx": 0.96, "rx9070xt": 0.64}  # TB/s, datasheets
#: Tokens of the kernels that are compiled.
TOKENS = (1, 16, 64, 512, 2048)


def explained(
    m: int, n: int, k: int, weight: str, device: str, activation_type: str = ""
) -> dict[str, str]:
    return dict(_C.explain(m, n, k, weight, "float16", device, 8, False, False, activation_type))


def first_kernel(sections: dict[str, str]) -> tuple[float, str]:
    """Microseconds and schedule of the first candidate that is a kernel."""
    for line in sections["candidates"].splitlines():
        found = re.match(r"([\d.e+]+) us .*?: (waves .*)", line.strip())
        if found:
            return float(found[1]), found[2]
    return float("nan"), "no kernel"


def assembly(source: str, architecture: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.hip"
        path.write_text(source)
        subprocess.run(
            ["clang++-19", *FLAGS, f"--offload-arch={architecture}", str(path), "-o",
             str(path.with_suffix(".s"))],
            check=True, capture_output=True,
        )  # fmt: skip
        return path.with_suffix(".s").read_text()


def products(text: str) -> int:
    return len(re.findall(r"\tv_(?:mfma|wmma)_", text))


def number(text: str, name: str) -> int:
    return int(re.search(rf"\.{name}:\s+(\d+)", text)[1])


def loop_body(text: str) -> str:
    """Instructions of the longest loop, its branches left out."""
    loops = []
    for label in re.finditer(r"^(\.LBB\d+_\d+):", text, re.M):
        back = list(re.finditer(rf"\ts_c?branch\w* {re.escape(label[1])}\b", text[label.end() :]))
        if back:
            loops.append(text[label.start() : label.end() + back[-1].start()])
    if not loops:
        return ""
    longest = max(loops, key=len)
    lines = (line.split(";")[0].rstrip() for line in longest.splitlines()[1:])
    instructions = (line for line in lines if line.startswith("\t"))
    return "\n".join(line for line in instructions if not re.match(r"\ts_c?branch|\t\.", line))


def loop_cycles(text: str, architecture: str) -> str:
    body = loop_body(text)
    if not body or shutil.which("llvm-mca-19") is None:
        return ""
    done = subprocess.run(
        ["llvm-mca-19", "-mtriple=amdgcn", f"-mcpu={architecture}", "-iterations=8"],
        input=body, capture_output=True, text=True,
    )  # fmt: skip
    cycles = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    # Of an instruction: 16 lanes a clock of 64, or 32 of 32.
    clocks = 4 if architecture.startswith("gfx9") else 1
    return f"{clocks * int(cycles[1]) // 8}" if cycles else "llvm-mca refuses"


def layer_table(models: list[str], types: list[str]) -> None:
    print("## One decoder layer, milliseconds\n")
    print("Predicted: the sum over its linear layers. Measured: LADDER's whole layer, with")
    print("attention and norms, on an MI250, of which a kernel runs on one of two dies.\n")
    print("| model | type | tokens | MI250 predicted | MI250, LADDER measured | MI300X predicted |")
    print("|---|---|---|---|---|---|")
    for model in models:
        layers = MODELS[model]
        for name in types:
            weight = TYPES[name]
            for turn, m in enumerate((1, 32)):
                times = {}
                for device in DATA_CENTRE:
                    parts = [first_kernel(explained(m, n, k, weight, device))[0] for n, k in layers]
                    times[device] = f"{sum(parts) / 1e3:.3f}"
                measured = MEASURED.get((model, name), ("", ""))[turn]
                print(f"| {model} | {name} | {m} | {times['mi250']} | {measured} "
                      f"| {times['mi300x']} |")  # fmt: skip


def kernel_table(types: list[str]) -> None:
    print("\n## Kernels\n")
    print("`TB/s`: codes and scales over the predicted time, and of the datasheet's rate.")
    print("`VGPRs`, `spills`: of the code object. `loop`: clocks of a SIMD for a turn of one wave,")
    print("llvm-mca's count, times four on CDNA, which knows no memory. Where the first choice")
    print("spills, a session takes the next that does not. Where the model has a dequantised")
    print("weight and a dense product faster, the time is the first kernel's all the same.\n")
    print("| device | N x K | type | tokens | µs | TB/s | VGPRs | spills | matrix instructions "
          "| loop | schedule |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for device, architecture in ARCHITECTURES.items():
        for n, k in ((8192, 8192), (28672, 8192)):
            for name in types:
                weight = TYPES[name]
                for m in TOKENS:
                    sections = explained(m, n, k, weight, device)
                    us, schedule = first_kernel(sections)
                    if "source" not in sections:
                        print(f"| {device} | {n} x {k} | {name} | {m} | {us:.1f} | | | | | | "
                              f"a dense product should be faster: {schedule} |")  # fmt: skip
                        continue
                    text = assembly(sections["source"], architecture)
                    rate = n * k * (4 + 16 / 64) / 8 / us / 1e6
                    spills = number(text, "vgpr_spill_count") + number(text, "sgpr_spill_count")
                    print(f"| {device} | {n} x {k} | {name} | {m} | {us:.1f} | {rate:.2f} "
                          f"({rate / PEAK[device]:.0%}) | {number(text, 'vgpr_count')} | {spills} "
                          f"| {products(text)} "
                          f"| {loop_cycles(text, architecture)} | {schedule} |")  # fmt: skip


def bytes_table() -> None:
    n = k = 8192
    print("\n## Activations of 8 bits\n")
    print(f"{n} x {k}. Instructions of bytes have the rate of float16 on gfx90a and twice that on")
    print("gfx942, by the datasheets. The kernel that rounds tokens is not in these times.\n")
    print("| device | type | tokens | A:FP16 µs | µs | VGPRs | spills | matrix instructions "
          "| schedule |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    for device in DATA_CENTRE:
        architecture = ARCHITECTURES[device]
        for name, (weight, activation_type) in BYTES.items():
            if activation_type == "float8_e4m3" and architecture not in FLOAT8:
                continue
            for m in (64, 256, 1024, 4096):
                halves, _ = first_kernel(explained(m, n, k, weight, device))
                sections = explained(m, n, k, weight, device, activation_type)
                us, schedule = first_kernel(sections)
                text = assembly(sections["source"], architecture)
                spills = number(text, "vgpr_spill_count") + number(text, "sgpr_spill_count")
                print(f"| {device} | {name} | {m} | {halves:.1f} | {us:.1f} "
                      f"| {number(text, 'vgpr_count')} | {spills} "
                      f"| {products(text)} | {schedule} |")  # fmt: skip


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--only", choices=("layers", "kernels", "bytes"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    arguments = parser.parse_args()
    compiler = shutil.which("clang++-19")
    if compiler is None and arguments.only != "layers":
        sys.exit("hip_predicted needs clang++-19: apt-get install clang-19")
    print("# AMD's GPUs: a model, not a measurement\n")
    print("- command: `python benchmarks/hip_predicted.py`")
    if compiler is not None:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
        print(f"- compiler: {version.splitlines()[0]}")
    print("- no kernel of this table has run on a GPU; `csrc/pipelines/waves/cost.cpp` says what")
    print("  the times are made of\n")
    if arguments.only in (None, "layers"):
        layer_table(arguments.models, arguments.types)
    if arguments.only in (None, "kernels"):
        kernel_table(arguments.types)
    if arguments.only in (None, "bytes"):
        bytes_table()


if __name__ == "__main__":
    main()
