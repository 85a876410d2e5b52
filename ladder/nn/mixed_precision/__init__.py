# SPDX-License-Identifier: Apache-2.0
"""Types by layer for a budget of bits: mixed precision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from ladder.errors import InvalidArgument
from ladder.nn.arguments import check_integers
from ladder.nn.calibration.calls import at_rest, calls_of
from ladder.nn.calibration.hessians import Layer
from ladder.nn.layer_types import LayerTypes, check_bits, completed
from ladder.nn.mixed_precision.chosen import (
    Candidate,
    ChosenTypes,
    check_average,
    check_budget,
    choose_within,
)
from ladder.nn.mixed_precision.compensated import compensate
from ladder.nn.mixed_precision.outputs import Outputs
from ladder.nn.mixed_precision.sample import listed, sample
from ladder.nn.mixed_precision.sensitivity import Sensitivity, measured
from ladder.nn.mixed_precision.units import Unit, units_of
from ladder.nn.report import Progress
from ladder.nn.select import survey
from ladder.nn.select_conv import convolutions as convolutions_of
from ladder.nn.targets import check_dense, heads_of
from ladder.quantization import METHODS
from ladder.types import TType

#: How costs are found: of each type by a measurement, or of one, from which the others follow.
MEASURES = ("one", "each")
#: What is measured by: so many batches, and so many tokens of each.
WINDOWS, TOKENS = 8, 512


def choose_types(
    model: nn.Module,
    types: Iterable[str | TType],
    bits: float,
    calibration: object,
    *,
    group_size: int | None = None,
    symmetric: bool | None = None,
    skip: Iterable[str] | None = None,
    method: str = "search",
    activation_type: str | None = None,
    convolutions: bool = False,
    head: bool = False,
    measure: str = "one",
    calibrated: bool = False,
    windows: int = WINDOWS,
    tokens: int = TOKENS,
    progress: Progress | None = None,
) -> ChosenTypes:
    """Choose a type for each layer of ``model``, so that what it gives moves least while its
    quantised weights take ``bits`` bits each on average.

    Layers of one module with one input, which engines run as one (q, k and v; gate and up), get one
    type together; so do all experts of a stack. Each of these units is quantised alone, to nearest
    codes, and the outputs of the model for ``calibration`` are compared with those of the dense
    model: the KL divergence of its predictions where it gives ``logits``, else the squared
    difference relative to the outputs' squares. The sum over all units is then the least that the
    budget allows. Afterwards ``model`` is bit for bit what it was.

    Args:
        types: to choose from, each completed by ``group_size`` and ``symmetric`` as those of
            :func:`ladder.convert`. A type whose groups do not divide K of a layer, where those of
            others do, is none for it.
        bits: stored for each weight that is quantised, scales and zero points included
            (:meth:`ladder.TType.bits_per_weight`); of a k-quant ("q4_k") those of llama.cpp.
        calibration: what the model is called with, as :func:`ladder.convert` takes it.
        skip, method, activation_type, convolutions, head: as :func:`ladder.convert`.
        measure: "one" type of each unit is measured, that nearest to ``bits``, and the costs of
            others follow from the squared errors of the weights; "each" type is measured, which
            takes as many times as long.
        calibrated: codes will be calibrated: costs are multiplied by the part of the error of a
            unit's outputs that calibrated codes leave of that of the nearest ones, by all of
            ``calibration``.
        windows, tokens: of ``calibration`` at most so many batches are used, spread over it, and of
            batches of token ids the first so many of each row.
        progress: called with (name, done, count) after each unit, with ``calibrated`` twice.
    Returns:
        Types by name, for ``ladder.convert(model, types=...)``, with the cost of each.
    Raises:
        InvalidArgument: ``bits`` is less than the smallest types take, with both numbers; no type
            is left for a layer, naming it; outputs that are not finite; a model that cannot be
            called with a batch; or an argument out of range. ``model`` is what it was.
    """
    check_dense(model)
    found = survey(model, skip, untied=heads_of(model) if head else ())
    layers: list[Layer] = [*found.found, *found.experts]
    candidates = candidates_of(types, group_size, symmetric)
    if convolutions:
        # What the widest serves all serve.
        usual = LayerTypes(max(candidates, key=lambda each: each.bits))
        layers += convolutions_of(model, skip, usual)[0]
    return choose(
        model,
        layers,
        candidates,
        bits,
        calibration,
        method=method,
        activation_type=activation_type,
        measure=measure,
        calibrated=calibrated,
        windows=windows,
        tokens=tokens,
        progress=progress,
    )


def candidates_of(
    types: Iterable[str | TType], group_size: int | None = None, symmetric: bool | None = None
) -> list[TType]:
    """The types to choose from, each once. Raises InvalidArgument where there are none, or for one
    of more than 8 bits."""
    given: Any = (types,) if isinstance(types, (str, TType)) else types
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise InvalidArgument(f"types is {given!r}, not types to choose from")
    found = list(dict.fromkeys(completed(each, group_size, symmetric) for each in given))
    if not found:
        raise InvalidArgument("types is empty: there is nothing to choose from")
    for ttype in found:
        check_bits(LayerTypes(ttype), "choices have")
    return found


def choose(
    model: nn.Module,
    layers: Sequence[Layer],
    types: Sequence[TType],
    bits: float,
    calibration: object,
    *,
    method: str = "search",
    activation_type: str | None = None,
    measure: str = "one",
    calibrated: bool = False,
    windows: int = WINDOWS,
    tokens: int = TOKENS,
    progress: Progress | None = None,
) -> ChosenTypes:
    """As :func:`choose_types`, of the ``layers`` that are given."""
    check_average(bits)
    if method not in METHODS:
        raise InvalidArgument(f'method is "{method}", not one of {", ".join(METHODS)}')
    check_measure(measure)
    check_integers(windows=windows, tokens=tokens)
    for name, number in (("windows", windows), ("tokens", tokens)):
        if number < 1:
            raise InvalidArgument(f"{name} is {number}, not positive")
    if not layers:
        raise InvalidArgument("the model has no layer to be quantised")
    batches = listed(calibration)
    calls = calls_of(sample(batches, windows, tokens))
    places = {name: at for at, (name, _) in enumerate(model.named_modules(remove_duplicate=False))}
    with at_rest(model):
        units = units_of(model, sorted(layers, key=lambda each: places[each.name]), calls[0])
        _check_budget(units, types, bits, activation_type)  # before minutes go by
        every = measured(
            units,
            sorted(types, key=lambda each: abs(_average(units, each) - bits)),
            outputs := Outputs(model, calls),
            each=measure == "each",
            method=method,
            activation_type=activation_type,
            progress=progress,
        )
        if calibrated:
            every_call = calls_of(batches)
            compensate(model, units, every, every_call, method=method, progress=progress)
    found = (_candidate(unit, each, types) for unit, each in zip(units, every, strict=True))
    what = outputs.what + (", times what calibration leaves of it" if calibrated else "")
    return choose_within(tuple(found), bits, what)


def check_measure(measure: str) -> None:
    """Raise InvalidArgument unless it is one of :data:`MEASURES`."""
    if measure not in MEASURES:
        raise InvalidArgument(f'measure is "{measure}", not one of {", ".join(MEASURES)}')


def _average(units: Iterable[Unit], ttype: TType) -> float:
    """Bits a weight had all units this type."""
    units = list(units)
    return sum(unit.stored_bits(ttype) for unit in units) / sum(unit.weights for unit in units)


def _check_budget(
    units: Sequence[Unit], types: Sequence[TType], bits: float, activation_type: str | None
) -> None:
    least = 0
    for unit in units:
        fit = [each for each in types if not unit.objection(each, activation_type, types)]
        # Where none fits, measuring says why.
        least += min((unit.stored_bits(each) for each in fit), default=0)
    check_budget(least, sum(unit.weights for unit in units), bits)


def _candidate(unit: Unit, found: Sensitivity, types: Sequence[TType]) -> Candidate:
    kept = [ttype for ttype in types if ttype in found.costs]
    return Candidate(
        unit.name,
        unit.names,
        unit.weights,
        {str(ttype): unit.stored_bits(ttype) for ttype in kept},
        {str(ttype): found.costs[ttype] for ttype in kept},
        tuple(str(each) for each in found.measured),
    )
