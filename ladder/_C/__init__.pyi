# SPDX-License-Identifier: Apache-2.0
"""
Inspection of ladder's types, layouts, devices, schedules, programs and bounds.
"""

from __future__ import annotations

import typing

@typing.final
class Element:
    """
    An element format: one row of csrc/types/table.cpp.
    """
    def __repr__(self) -> str: ...
    def decode(self, code: int) -> float:
        """
        Value of a code, exact.
        """
    def encode(self, value: float) -> int:
        """
        Code of the nearest value, ties to even, saturating.
        """
    @property
    def bits(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...

def element(name: str) -> Element:
    """
    The element format of this name or alias.
    """

def explain(
    m: int,
    n: int,
    k: int,
    weight: str,
    activation: str,
    device: str,
    candidates: int = 8,
    all: bool = False,
    dependent_launch: bool = False,
    activation_type: str = "",
    batch: int = 1,
    windows: str = "",
    residual: bool = False,
    codes_of_y: str = "",
) -> list[tuple[str, str]]:
    """
    Every value between a tType and a kernel: (title, text), in order.
    """
