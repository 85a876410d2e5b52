# SPDX-License-Identifier: Apache-2.0
"""
What ladder knows of machines, and finds on this one.
"""

from __future__ import annotations

#: Name, architecture, family, multiprocessors, bytes and bytes per second of its memory, bytes of
#: L2, 16-bit operations per second, and why no kernels are compiled for it.
_Row = tuple[str, str, str, int, float, float, float, float, str]

def found(ordinal: int) -> _Row:
    """
    The row that stands for a GPU of this machine. NotImplementedError: none does.
    """

def rows() -> list[_Row]:
    """
    Every row by name: name, architecture, family, multiprocessors, bytes and bytes per second of
    its memory, bytes of L2, 16-bit operations per second, and why no kernels are compiled for it;
    empty: they are.
    """

def targets() -> list[tuple[str, bool, str, list[str]]]:
    """
    Languages of kernels: name, whether this machine has the driver of its devices, its compiler
    ("nvrtc 13.0"; empty where there is none) and what that compiles for; empty where it does not
    say.
    """
