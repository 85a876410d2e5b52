# SPDX-License-Identifier: Apache-2.0
"""What a type of one unit costs: how far the model's outputs move where that unit alone has it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn

from ladder.errors import InvalidArgument
from ladder.nn.mixed_precision.outputs import Outputs
from ladder.nn.mixed_precision.units import Unit
from ladder.nn.report import Progress
from ladder.types import TType


@dataclass
class Sensitivity:
    """What is known of a unit.

    Attributes:
        errors: squared error of its weights by type, relative to their squares.
        costs: by type, of those that the unit can have.
        measured: the types of which the cost was measured; those of others are in proportion to
            ``errors``.
        refused: why other types are none.
    """

    errors: dict[TType, float] = field(default_factory=dict)
    costs: dict[TType, float] = field(default_factory=dict)
    measured: tuple[TType, ...] = ()
    refused: dict[TType, str] = field(default_factory=dict)


@contextmanager
def holding(unit: Unit, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """The weights of a unit are others inside; then the very parameters that they were."""
    holders = unit.parameters()
    before = [module._parameters[name] for module, name in holders]
    try:
        for (module, name), parameter in zip(holders, parameters, strict=True):
            module._parameters[name] = parameter
        yield
    finally:
        for (module, name), own in zip(holders, before, strict=True):
            module._parameters[name] = own


def sensitivity_of(
    unit: Unit,
    types: Sequence[TType],
    outputs: Outputs,
    *,
    each: bool,
    method: str,
    activation_type: str | None,
) -> Sensitivity:
    """Measure ``unit``.

    Args:
        types: candidates, first those to be measured first.
        each: measure all; else the first that changes a weight, from which the costs of others
            follow.
    Raises:
        InvalidArgument: no candidate is a type for the unit, with the reason for each.
    """
    found = Sensitivity()
    enough = False
    for ttype in types:
        why = unit.objection(ttype, activation_type, types)
        if why:
            found.refused[ttype] = why
            continue
        try:
            values = unit.quantized(ttype, method)
        except InvalidArgument as error:
            found.refused[ttype] = str(error)
            continue
        found.errors[ttype] = values.error
        if enough:
            continue
        with holding(unit, values.parameters):
            cost = outputs.moved()
        if math.isfinite(cost):
            found.costs[ttype] = cost
            found.measured += (ttype,)
            enough = values.error > 0 and not each
        else:
            found.refused[ttype] = "the model's outputs are not finite"
    if not found.costs:
        reasons = "; ".join(f"{ttype}: {why}" for ttype, why in found.refused.items())
        raise InvalidArgument(
            f"{unit.name}: no type is left to choose, and skip does not name it ({reasons})"
        )
    if enough:
        known = found.measured[-1]
        by_error = found.costs[known] / found.errors[known]
        _fill(found, by_error)
    return found


def _fill(found: Sensitivity, by_error: float) -> None:
    """Costs that were not measured: outputs move, to second order, in proportion to the squared
    error of weights (the linearity theorem of HIGGS, arXiv 2411.17525)."""
    for ttype, error in found.errors.items():
        if ttype not in found.costs and ttype not in found.refused:
            found.costs[ttype] = by_error * error


def measured(
    units: Sequence[Unit],
    types: Sequence[TType],
    outputs: Outputs,
    *,
    each: bool,
    method: str,
    activation_type: str | None,
    progress: Progress | None,
) -> list[Sensitivity]:
    """:func:`sensitivity_of` each of ``units``. Those that ``outputs`` do not depend on, because no
    input reached them, count as the median of the others.

    Raises:
        InvalidArgument: outputs depend on none; else as :func:`sensitivity_of`.
    """
    every = []
    for done, unit in enumerate(units, start=1):
        every.append(
            sensitivity_of(
                unit, types, outputs, each=each, method=method, activation_type=activation_type
            )
        )
        if progress is not None:
            progress(unit.name, done, len(units))
    reached = [found for found in every if any(found.costs.values())]
    if not reached and any(any(found.errors.values()) for found in every):
        raise InvalidArgument(
            "the model's outputs for calibration depend on no layer that is quantised"
        )
    shares = [
        cost / found.errors[ttype]
        for found in reached
        for ttype, cost in found.costs.items()
        if found.errors[ttype]
    ]
    for found in every:
        if not any(found.costs.values()) and any(found.errors.values()):
            found.costs, found.measured = {}, ()
            _fill(found, statistics.median(shares))
    return every
