"""
What ladder knows of machines, and finds on this one.
"""
from __future__ import annotations
import typing
__all__: list[str] = ['compiler_version', 'driver_present', 'found', 'rows']
def compiler_version() -> str:
    """
    "nvrtc 13.0"; empty where there is none.
    """
def driver_present() -> bool:
    """
    Whether there is a CUDA driver.
    """
def found(ordinal: typing.SupportsInt | typing.SupportsIndex) -> dict:
    """
    The row that stands for a CUDA device of this machine. NotImplementedError: none does.
    """
def rows() -> list:
    """
    Every row by name. no_kernels: why no kernels are written for it; empty: they are.
    """
