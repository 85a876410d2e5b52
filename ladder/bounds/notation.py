# SPDX-License-Identifier: Apache-2.0
"""Einsums as text: ``i[c, 2*p+r] * w[k, c, r] -> o[k, p]``."""

from __future__ import annotations

import re
from collections import Counter

from ladder.errors import InvalidArgument

Axis = list[tuple[str, int]]
_TENSOR = re.compile(r"\s*([A-Za-z_]\w*)\s*\[([^\[\]]*)\]\s*")
_TERM = re.compile(r"\s*(?:(\d+)\s*\*\s*)?([A-Za-z_]\w*)\s*")


def tensors(text: str) -> list[tuple[str, list[Axis]]]:
    """Names and axes of the inputs and, last, the output.

    Raises:
        InvalidArgument: ``text`` is not a definition; the message has the part that is wrong.
    """
    sides = text.split("->")
    if len(sides) != 2:
        raise InvalidArgument(f"{text!r} does not have one '->'")
    found = [*map(_tensor, re.split(r"(?<=\])\s*\*", sides[0])), _tensor(sides[1])]
    # Elements of one tensor would be counted as those of two, which is no bound.
    twice = [name for name, count in Counter(name for name, _ in found).items() if count > 1]
    if twice:
        raise InvalidArgument(f"tensor {twice[0]} is in {text!r} more than once")
    read = {rank for _, axes in found[:-1] for axis in axes for rank, _ in axis}
    for axis in found[-1][1]:
        for rank, _ in axis:
            if rank not in read:
                raise InvalidArgument(f"rank {rank} of the output {found[-1][0]} is in no input")
    return found


def _tensor(text: str) -> tuple[str, list[Axis]]:
    found = _TENSOR.fullmatch(text)
    if not found:
        raise InvalidArgument(f"{text.strip()!r} is not a tensor such as a[m, k]")
    name, axes = found.groups()
    return name, [_axis(axis, text) for axis in axes.split(",")] if axes.strip() else []


def _axis(text: str, tensor: str) -> Axis:
    axis = []
    for term in text.split("+"):
        found = _TERM.fullmatch(term)
        if not found:
            raise InvalidArgument(
                f"{term.strip()!r} in {tensor.strip()!r} is not a rank or a number times a rank"
            )
        axis.append((found[2], int(found[1] or 1)))
    return axis
