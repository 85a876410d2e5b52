"""
Inspection of ladder's types, layouts, devices, schedules, programs and bounds.
"""
from __future__ import annotations
import typing
from . import bounds
from . import program
__all__: list[str] = ['Element', 'bounds', 'element', 'explain', 'program']
class Element:
    """
    An element format: one row of csrc/types/table.cpp.
    """
    def __repr__(self) -> str:
        ...
    def decode(self, code: typing.SupportsInt | typing.SupportsIndex) -> float:
        """
        Value of a code, exact.
        """
    def encode(self, value: typing.SupportsFloat | typing.SupportsIndex) -> int:
        """
        Code of the nearest value, ties to even, saturating.
        """
    @property
    def bits(self) -> int:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def source(self) -> str:
        ...
def element(name: str) -> Element:
    """
    The element format of this name or alias.
    """
def explain(m: typing.SupportsInt | typing.SupportsIndex, n: typing.SupportsInt | typing.SupportsIndex, k: typing.SupportsInt | typing.SupportsIndex, weight: str, activation: str, device: str, candidates: typing.SupportsInt | typing.SupportsIndex = 8, all: bool = False, dependent_launch: bool = False) -> list[tuple[str, str]]:
    """
    Every value between a tType and a kernel: (title, text), in order.
    """
