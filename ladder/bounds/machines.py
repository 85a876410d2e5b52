# SPDX-License-Identifier: Apache-2.0
"""The capacities and rates of GPUs that pictures mark: rows of csrc/device/devices.cpp."""

from __future__ import annotations

from typing import NamedTuple

from ladder._C import bounds as _native
from ladder.errors import InvalidArgument


class Machine(NamedTuple):
    """A GPU as a bound sees it."""

    name: str
    l2_bytes: float
    shared_bytes: float  #: of one multiprocessor
    multiprocessors: int
    bytes_per_second: float  #: of its DRAM
    operations_per_second: float  #: dense float16 with float32 sums
    source: str


_MACHINES = tuple(Machine(*row) for row in _native.machines())


def machines() -> tuple[str, ...]:
    """Names, in order."""
    return tuple(machine.name for machine in _MACHINES)


def machine(name: str) -> Machine:
    """The row called ``name``.

    Raises:
        InvalidArgument: no such row; the message lists the names.
    """
    for row in _MACHINES:
        if row.name == name.lower():
            return row
    raise InvalidArgument(f"no machine {name!r}; known are {', '.join(machines())}")
