# SPDX-License-Identifier: Apache-2.0
"""The capacities and rates of GPUs that pictures mark. The compiler's own rows are csrc/device."""

from __future__ import annotations

from typing import NamedTuple

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


def _row(name, l2, shared, multiprocessors, gigabytes, tera, source) -> Machine:
    sizes = l2 * 2**20, shared * 2**10
    return Machine(name, *sizes, multiprocessors, gigabytes * 1e9, tera * 1e12, source)


_MACHINES = (
    _row("a100", 40, 164, 108, 2039, 312, "NVIDIA A100 80GB datasheet and whitepaper"),
    _row("b200", 126, 228, 148, 8000, 2250, "DGX B200 datasheet, per GPU"),
    _row("h100", 50, 228, 132, 3350, 989.4, "H100 SXM datasheet"),
    _row("h200", 60, 228, 132, 4530, 761, "measured on one; datasheet: 4.8 TB/s, 989 TFLOP/s"),
    _row("l40s", 96, 100, 142, 864, 362, "L40S datasheet"),
    _row("rtx4090", 72, 100, 128, 1008, 165.2, "Ada architecture whitepaper"),
)


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
