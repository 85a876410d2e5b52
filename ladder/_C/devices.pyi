# SPDX-License-Identifier: Apache-2.0
"""
What ladder knows of machines, and finds on this one.
"""

from __future__ import annotations

#: Name, architecture, family, multiprocessors, bytes and bytes per second of its memory, bytes of
#: L2, 16-bit operations per second, and why no kernels are compiled for it.
_Row = tuple[str, str, str, int, float, float, float, float, str]

def calibration(
    ordinal: int,
) -> tuple[str, str, str, list[tuple[str, str]], list[tuple[str, str, float, float]]]:
    """
    Of a GPU of this machine: what its calibration is filed under; the file that is in use, and why
    none is, empty where there is neither; pairs that are said of it; and of each field name, unit,
    what was measured and what the row has, 0 for nothing.
    """

def calibration_path() -> str:
    """
    The file of the user's cache.
    """

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

def write_calibration(
    ordinal: int, path: str, numbers: list[tuple[str, float]], about: list[tuple[str, str]]
) -> None:
    """
    Adds a calibration of a GPU of this machine to a file; "": that of the user's cache. ValueError:
    numbers that no such machine has, or a file of something else. In use from the next process on.
    """
