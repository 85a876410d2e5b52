# SPDX-License-Identifier: Apache-2.0
"""The packed modules of a ladder folder as the model has them that was loaded of it: by what they
are quantised anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.checkpoints.calibrated import Budget, Calibration
from ladder.checkpoints.model import renamer
from ladder.errors import InvalidArgument
from ladder.nn.dense_experts import DOWN, STACKS
from ladder.nn.layer_types import LayerTypes
from ladder.nn.mixed_precision.chosen import ChosenTypes
from ladder.nn.report import Progress, calibrated_lines
from ladder.types import TType
from ladder.weight import Weight

#: Of packed experts, by stack, what it is made of.
PARAMETERS = {stack: parameter for parameter, stack in STACKS.items()}


@dataclass(frozen=True)
class Made:
    """Weights by module of the folder, of stacks one for each expert; and what the model's errors
    are like."""

    weights: dict[str, Sequence[Weight]]
    said: list[str]


@dataclass(frozen=True)
class Homes:
    """Where modules of a folder are in its model.

    Attributes:
        places: of each, its module of the model and, of a stack, the parameter.
        wanted: shapes of the model's modules, as :meth:`Calibration.run` takes them.
    """

    calibration: Calibration
    places: dict[str, tuple[str, str]]
    wanted: dict[str, tuple[int, ...]]

    @classmethod
    def of(
        cls,
        calibration: Calibration,
        chosen: Mapping[str, Any],
        convolutions: Mapping[str, Sequence[int]],
    ) -> Homes:
        """Of ``chosen`` modules, with ``n``, ``k`` and ``experts``. Raises InvalidArgument where
        they have one stack of a mixture alone."""
        rename, _ = renamer(calibration.model)
        places: dict[str, tuple[str, str]] = {}
        wanted: dict[str, tuple[int, ...]] = {}
        for name, module in chosen.items():
            owner, _, stack = name.rpartition(".")
            if module.experts is not None and stack in PARAMETERS:
                parameter = PARAMETERS[stack]
                home = rename(f"{owner}.{parameter}").removesuffix(f".{parameter}")
                down = parameter == DOWN
                sizes = (module.n, module.k) if down else (module.k, module.n // 2)
                places[name], wanted[home] = (home, parameter), (module.experts, *sizes)
                continue
            home = rename(f"{name}.weight").removesuffix(".weight")
            places[name] = (home, "")
            wanted[home] = tuple(convolutions.get(name, (module.n, module.k)))
        for home in wanted:
            both = {parameter for of, parameter in places.values() if of == home and parameter}
            if len(both) == 1:
                raise InvalidArgument(
                    f"{home}: calibration takes both stacks of experts or none, and skip leaves "
                    f"{STACKS[both.pop()]} alone to be converted"
                )
        return cls(calibration, places, wanted)

    def called(self, name: str) -> str:
        """What the model calls a module, or a stack, of the folder."""
        home, parameter = self.places[name]
        return f"{home}.{STACKS[parameter]}" if parameter else home

    def choose(
        self,
        budget: Budget,
        method: str,
        activation_type: str | None,
        progress: Progress | None,
    ) -> ChosenTypes:
        """As :meth:`Calibration.choose`."""
        return self.calibration.choose(self.wanted, budget, method, activation_type, progress)

    def calibrated(
        self,
        type_of: Mapping[str, TType],
        method: str,
        progress: Progress | None,
        destination: Path,
    ) -> Made:
        """As :meth:`Calibration.run`, types and weights by the names of the folder."""
        types = {self.called(name): ttype for name, ttype in type_of.items()}
        usual = next(iter(types.values()))  # all are named
        in_model = LayerTypes(usual, types)
        made = self.calibration.run(self.wanted, in_model, method, progress, destination)
        weights: dict[str, Sequence[Weight]] = {
            name: made.stacks[home][parameter] if parameter else (made.weights[home],)
            for name, (home, parameter) in self.places.items()
        }
        return Made(weights, list(calibrated_lines(made.errors, made.blocks)))
