"""
Inspection of ladder's types, layouts, devices, schedules, programs and bounds.
"""
from __future__ import annotations
import typing
from . import bounds
__all__: list[str] = ['Element', 'bounds', 'element']
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
