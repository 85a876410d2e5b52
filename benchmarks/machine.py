# SPDX-License-Identifier: Apache-2.0
"""What every table of results says above itself."""

from __future__ import annotations

import platform
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
