# SPDX-License-Identifier: Apache-2.0
"""Numbers of bytes as people write them."""

from __future__ import annotations

import math
import re

from ladder.errors import InvalidArgument

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
          "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> float:
    """``"50MiB"`` -> 52428800.0. Units: B, KiB, MiB, GiB, TiB, and kB, MB, GB, TB of 1000.

    Raises:
        InvalidArgument: not a positive size.
    """
    found = _SIZE.fullmatch(text)
    unit = _UNITS.get(found[2].lower()) if found else None
    size = float(found[1]) * unit if found and unit else 0.0
    if not 0 < size < math.inf:
        raise InvalidArgument(f"{text!r} is not a size such as 50MiB")
    return size


def format_bytes(count: float) -> str:
    """52428800 -> '50 MiB'; three or four digits."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    index = 0
    while count >= 1000 and index + 1 < len(units):
        count, index = count / 1024, index + 1
    return f"{count:.4g} {units[index]}"


def format_seconds(seconds: float) -> str:
    """2.5e-6 -> '2.5 us'."""
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
