# SPDX-License-Identifier: Apache-2.0
"""Tests and times of kernels on the AMD GPU of this machine, as hip_report.md: `make test-hip`.

Needs a ROCm build of torch and a GPU of docs/amd.md. Nothing in this file has run on one yet.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch

import ladder
from benchmarks.hip_predicted import TYPES, explained, first_kernel

#: Of correctness on a GPU; they are the same for every vendor.
TESTS = ["tests/run/test_cuda.py", "tests/run/test_cuda_types.py", "tests/run/test_cuda_calls.py",
         "tests/run/test_cuda_experts.py", "tests/run/test_cuda_expert_layers.py",
         "tests/run/test_cuda_int8.py", "tests/run/test_image.py",
         "tests/run/test_rocm.py"]  # fmt: skip
ROWS = {"gfx90a": "mi250", "gfx942": "mi300x", "gfx950": "mi355x"}
#: Weights are read from buffers of more than twice the Infinity Cache.
ROTATED_BYTES = 600e6


def microseconds(call, repeats: int = 30) -> float:
    """Median of a call, by events around each."""
    times = []
    for _ in range(repeats + 5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[5:])


def layers(weight: str, n: int, k: int) -> list[ladder.Linear]:
    """As many layers of random weights as fill ROTATED_BYTES."""
    count = max(int(ROTATED_BYTES / (n * k / 2)), 1)
    dense = torch.nn.Linear(k, n, bias=False, dtype=torch.float16, device="cuda")
    return [ladder.Linear.from_linear(dense, weight) for _ in range(count)]


def times(row: str) -> list[str]:
    out = ["| N x K | type | tokens | µs | predicted µs |", "|---|---|---|---|---|"]
    for n, k in ((8192, 8192), (28672, 8192)):
        for name, weight in TYPES.items():
            stack = layers(weight, n, k)
            for m in (1, 16, 64):
                x = torch.randn(m, k, dtype=torch.float16, device="cuda")
                turn = iter(range(10**6))
                us = microseconds(lambda: stack[next(turn) % len(stack)](x))
                predicted = first_kernel(explained(m, n, k, weight, row))[0]
                out.append(f"| {n} x {k} | {name} | {m} | {us:.1f} | {predicted:.1f} |")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("hip_report.md"))
    output = parser.parse_args().output
    if torch.version.hip is None:
        sys.exit(f"torch {torch.__version__} is no build for ROCm: torch.version.hip is None")
    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} finds no GPU")
    properties = torch.cuda.get_device_properties(0)
    architecture = properties.gcnArchName.split(":")[0]
    if architecture not in ROWS:
        sys.exit(f"{properties.name} is {architecture}; ladder has kernels for {', '.join(ROWS)}")
    lines = [f"# ladder {ladder.__version__} on {properties.name}", "",
             f"- architecture: {properties.gcnArchName}",
             f"- compute units: {properties.multi_processor_count}",
             f"- torch: {torch.__version__}, HIP {torch.version.hip}", "", "## Devices", "", "```",
             subprocess.run([sys.executable, "-m", "ladder", "devices"], capture_output=True,
                            text=True).stdout, "```", "", "## Tests", "", "```"]  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-rf", *TESTS],
                          capture_output=True, text=True)  # fmt: skip
    lines += [*done.stdout.splitlines()[-60:], "```", "", "## Times", ""]
    lines += times(ROWS[architecture])
    output.write_text("\n".join(lines) + "\n")
    print(f"wrote {output}; tests {'passed' if done.returncode == 0 else 'failed'}")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
