# SPDX-License-Identifier: Apache-2.0
"""The types that are chosen for a budget of bits, for people and programs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

from ladder.errors import InvalidArgument
from ladder.nn.mixed_precision.knapsack import least_cost
from ladder.types import TType, parse


@dataclass(frozen=True)
class Candidate:
    """Weights that have one type together, and what each type is for them.

    Attributes:
        name: of all of them, for people.
        modules: their names.
        weights: how many.
        sizes: bits of all of them, scales and zero points included, by type that they can have.
        costs: how far outputs move, by type; see :attr:`ChosenTypes.measure`.
        measured: types of which the cost was measured; those of others follow from the squared
            errors of weights. None where no input reached the weights.
    """

    name: str
    modules: tuple[str, ...]
    weights: int
    sizes: Mapping[str, int]
    costs: Mapping[str, float]
    measured: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class ChosenTypes(Mapping[str, TType]):
    """Types by the names of modules, as ``types`` of :func:`ladder.convert` takes them. ``print``
    and the prompt show a table.

    Attributes:
        units: what a type was chosen for.
        chosen: the type of each.
        budget: bits a weight that were allowed.
        measure: what a cost is.
    """

    units: tuple[Candidate, ...]
    chosen: tuple[str, ...]
    budget: float
    measure: str

    @functools.cached_property
    def types(self) -> dict[str, TType]:
        """Of each module."""
        pairs = zip(self.units, self.chosen, strict=True)
        return {name: parse(text) for unit, text in pairs for name in unit.modules}

    def __getitem__(self, name: str) -> TType:
        return self.types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)

    @property
    def bits(self) -> float:
        """Bits a weight that the types take, on average over all weights."""
        pairs = zip(self.units, self.chosen, strict=True)
        return sum(unit.sizes[text] for unit, text in pairs) / self.weights

    @property
    def weights(self) -> int:
        """How many weights have one of the types."""
        return sum(unit.weights for unit in self.units)

    @property
    def cost(self) -> float:
        """The sum over :attr:`units` of the cost of the chosen type."""
        return sum(unit.costs[t] for unit, t in zip(self.units, self.chosen, strict=True))

    def at(self, bits: float) -> ChosenTypes:
        """The choice for another budget, by what has been measured.

        Raises:
            InvalidArgument: ``bits`` is less than the smallest types take, with both numbers.
        """
        return choose_within(self.units, bits, self.measure)

    def everywhere(self) -> dict[str, tuple[float, float]]:
        """Bits a weight and the sum of costs were all units of one type, by type."""
        found = {}
        for text in dict.fromkeys(text for unit in self.units for text in unit.costs):
            if all(text in unit.costs for unit in self.units):
                size = sum(unit.sizes[text] for unit in self.units)
                found[text] = size / self.weights, sum(unit.costs[text] for unit in self.units)
        return found

    def to_dict(self) -> dict[str, Any]:
        """JSON-clean."""
        return {
            "budget": self.budget,
            "bits": self.bits,
            "cost": self.cost,
            "measure": self.measure,
            "types": {name: str(ttype) for name, ttype in self.types.items()},
            "units": [
                {**asdict(unit), "type": text}
                for unit, text in zip(self.units, self.chosen, strict=True)
            ],
        }

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Of each unit its name, type, bits a weight, and cost."""
        return [
            (unit.name, text, f"{unit.sizes[text] / unit.weights:.2f}", f"{unit.costs[text]:.2e}")
            for unit, text in zip(self.units, self.chosen, strict=True)
        ]

    def lines(self) -> list[str]:
        """A table, and what the types take together."""
        table = [("modules", "type", "bits", "cost"), *self.rows()]
        widths = [max(len(row[column]) for row in table) for column in range(4)]
        lines = [
            f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  "
            f"{row[3]:>{widths[3]}}"
            for row in table
        ]
        return [*lines, *self.summary()]

    def summary(self) -> list[str]:
        """What the types take together, and cost beside one type for all."""
        lines = [
            f"{self.bits:.3f} bits a weight, of {self.budget:g} that were allowed; cost "
            f"{self.cost:.3e} ({self.measure}; sum over all layers, each quantised alone)"
        ]
        for text, (bits, cost) in self.everywhere().items():
            lines.append(f"  {text} everywhere: {bits:.3f} bits a weight, cost {cost:.3e}")
        if unreached := [unit.name for unit in self.units if not unit.measured]:
            lines.append(
                f"no calibration data reached {len(unreached)} of {len(self.units)}, such as "
                f"{unreached[0]}, which count as the median of the others"
            )
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__


def choose_within(units: tuple[Candidate, ...], bits: float, measure: str) -> ChosenTypes:
    """The types of ``units`` of which the sum of costs is least within ``bits`` a weight. Raises
    InvalidArgument as :meth:`ChosenTypes.at`."""
    check_average(bits)
    weights = sum(unit.weights for unit in units)
    check_budget(sum(min(unit.sizes.values()) for unit in units), weights, bits)
    options = [[(unit.sizes[text], cost) for text, cost in unit.costs.items()] for unit in units]
    places = least_cost(options, _allowed(weights, bits))
    chosen = (list(unit.costs)[place] for unit, place in zip(units, places, strict=True))
    return ChosenTypes(units, tuple(chosen), float(bits), measure)


def check_average(bits: Any) -> None:
    """Raise InvalidArgument unless it is a positive number."""
    if isinstance(bits, bool) or not isinstance(bits, Real) or not 0 < float(bits) < math.inf:
        raise InvalidArgument(f"bits is {bits!r}, not a positive number of bits a weight")


def check_budget(least: int, weights: int, bits: float) -> None:
    """Raise InvalidArgument where the ``least`` bits that ``weights`` can take are more than
    ``bits`` for each."""
    if least > _allowed(weights, bits):
        raise InvalidArgument(
            f"bits is {bits:g}, and the smallest types take {least / weights:.4g} bits a weight"
        )


def _allowed(weights: int, bits: float) -> int:
    """Bits in all. A sum of whole bits, divided by the weights and multiplied again, is itself."""
    return math.floor(float(bits) * weights + 2**-10)
