# SPDX-License-Identifier: Apache-2.0
"""What every table of results says above itself."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import torch

import ladder
from ladder.ops.cpu import cpu_isa


def processor() -> str:
    """Model name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [
        line.split(":")[1].strip()
        for line in (cpuinfo.read_text().splitlines() if cpuinfo.exists() else [])
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


def busy(seconds: float = 0.5) -> float:
    """Share of the processors' time that others take, the machine's host included: measured while
    this program sleeps. 0 where the system does not say."""

    def idle_and_all() -> tuple[int, int]:
        numbers = [int(n) for n in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return numbers[3] + numbers[4], sum(numbers)

    if not Path("/proc/stat").exists():
        return 0.0
    idle, whole = idle_and_all()
    time.sleep(seconds)
    idle_later, whole_later = idle_and_all()
    return 1 - (idle_later - idle) / max(1, whole_later - whole)


def require_gpu() -> None:
    """End the program with a sentence where torch finds no CUDA device."""
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device, and torch finds none")


def describe(command: str) -> str:
    """Machine, software and command, as Markdown."""
    lines = [
        f"- command: `{command}`",
        f"- processor: {processor()}, {torch.get_num_threads()} threads, ladder uses {cpu_isa()}",
        f"- software: ladder {ladder.__version__}, torch {torch.__version__}",
    ]
    if torch.cuda.is_available():
        lines.append(f"- GPU: {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
    return "\n".join(lines) + "\n"
