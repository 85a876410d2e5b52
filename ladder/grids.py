# SPDX-License-Identifier: Apache-2.0
"""The integers that scales and minima of superblocks are, as of the k-quants of llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """In a superblock of a row the scale of a group is an integer times a float d, and what is
    subtracted of its values, an integer times another.

    Attributes:
        least, most: of the integers that scales are of.
        minima: the largest integer that what is subtracted is of, the least is 0; 0 where the
            type has no minima.
    """

    least: int
    most: int
    minima: int = 0
