# SPDX-License-Identifier: Apache-2.0
"""What is left of a type's cost where codes are calibrated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch import Tensor, nn

from ladder.nn.calibration.blocks import in_turn
from ladder.nn.calibration.calls import Call
from ladder.nn.calibration.hessians import Hessians, Part
from ladder.nn.mixed_precision.sensitivity import Sensitivity
from ladder.nn.mixed_precision.units import Unit, matrices
from ladder.nn.mixtures import FoundExperts
from ladder.nn.report import Progress
from ladder.quantization import quantize_calibrated, weights_of


def compensate(
    model: nn.Module,
    units: Sequence[Unit],
    every: Sequence[Sensitivity],
    calls: Sequence[Call],
    *,
    method: str,
    progress: Progress | None,
) -> None:
    """Multiply costs by the part of the error of a unit's outputs that calibrated codes leave of
    that of the nearest ones, by ``calls`` of the dense ``model``.

    Calibration gains most where inputs of a layer are much alike, as in the first blocks, so that
    layers that matter most with nearest codes need not do so with calibrated ones.

    Args:
        every: of each unit; changed.
        progress: called with (name, done, count) after each unit.
    """
    place = {part: at for at, unit in enumerate(units) for part in unit.parts}
    errors = [{ttype: [0.0, 0.0] for ttype in found.costs} for found in every]
    waiting = [len(unit.parts) for unit in units]
    layers = list({id(part.layer): part.layer for part in place}.values())
    done = 0
    for turn in in_turn(model, layers, calls):
        for part, hessians in zip(turn.parts, turn.hessians, strict=True):
            at = place[part]
            for rows, hessian in _inputs(part, hessians):
                for ttype, sums in errors[at].items():
                    with weights_of(part.layer.name):
                        found = quantize_calibrated(rows, ttype, hessian, method=method)
                    sums[0] += found.error
                    sums[1] += found.nearest
            waiting[at] -= 1
            if not waiting[at]:
                done += 1
                if progress is not None:
                    progress(units[at].name, done, len(units))
    for found_of, sums_of in zip(every, errors, strict=True):
        for ttype, (error, nearest) in sums_of.items():
            if nearest:
                found_of.costs[ttype] *= error / nearest


def _inputs(part: Part, hessians: Hessians) -> Iterator[tuple[Tensor, Tensor]]:
    """The matrices of a part that inputs reached, each with the Hessian of its error."""
    parameter: Any = part.layer.module._parameters[part.stack or "weight"]
    for expert, rows in enumerate(matrices(part, cast(Tensor, parameter).detach())):
        experts = isinstance(part.layer, FoundExperts)
        hessian, _ = hessians.of(expert) if experts else hessians.of_groups()
        if hessian is not None:
            yield rows, hessian
