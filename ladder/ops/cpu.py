# SPDX-License-Identifier: Apache-2.0
"""The instruction sets of the CPU kernels (docs/cpu.md)."""

from __future__ import annotations

import torch

from ladder import _library  # noqa: F401  (registers torch.ops.ladder)
from ladder.types import _checked

_ops = torch.ops.ladder


def cpu_isas() -> list[str]:
    """The instruction sets that have kernels and that this processor runs, the narrowest first.

    The first is always "generic", plain C++.
    """
    return _ops.cpu_isas().split()


def cpu_isa() -> str:
    """The instruction set in use: the last of :func:`cpu_isas`, unless :func:`use_cpu_isa` chose
    another."""
    return _ops.cpu_isa()


def use_cpu_isa(name: str = "") -> str:
    """Multiply and quantise on the CPU with the kernels of one instruction set from now on, in all
    threads of this process.

    To compare instruction sets, or to see on a newer processor what an older one gives. Products of
    real numbers differ between sets within :func:`ladder.testing.bound`; exact ones, and quantised
    weights, do not differ.

    Args:
        name: one of :func:`cpu_isas`; "" for the widest, which is what a process begins with.
    Returns:
        The name of the instruction set in use.
    Raises:
        InvalidArgument: ``name`` is not one that this processor runs.
    """
    return _checked(_ops.use_cpu_isa, name)
