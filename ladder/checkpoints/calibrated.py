# SPDX-License-Identifier: Apache-2.0
"""Calibrating the weights of a folder, by the model that was loaded from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ladder.checkpoints import diffusion
from ladder.checkpoints.disk_room import DiskRoom
from ladder.errors import InvalidArgument
from ladder.nn.calibration import Calibrated, calibrated
from ladder.nn.calibration.hessians import Layer
from ladder.nn.calibration.offloading import is_offloaded
from ladder.nn.convert import give_own_weights
from ladder.nn.dense_experts import has_stacks, layout_of
from ladder.nn.layer_types import LayerTypes
from ladder.nn.mixed_precision import choose
from ladder.nn.mixed_precision.chosen import ChosenTypes
from ladder.nn.mixtures import FoundExperts
from ladder.nn.outputs import heads
from ladder.nn.report import Progress
from ladder.nn.select import Found, dense_weight, is_linear
from ladder.types import TType


def check_no_pipeline(folder: Path) -> None:
    """Raise InvalidArgument for a pipeline of diffusers."""
    if diffusion.is_pipeline(folder):
        raise InvalidArgument(
            f"{folder} is a pipeline of diffusers, which is not calibrated: calibrate one of its "
            "models by ladder.convert"
        )


@dataclass(frozen=True)
class Budget:
    """Types to choose from.

    Attributes:
        bits, types, measure: as :func:`ladder.choose_types`.
    """

    bits: float
    types: tuple[TType, ...]
    measure: str = "one"

    @property
    def widest(self) -> TType:
        """That of the most bits."""
        return max(self.types, key=lambda each: each.bits)


@dataclass(frozen=True)
class Calibration:
    """What a folder is calibrated by.

    Attributes:
        model: of the folder, loaded and dense, in the dtype and on the device in which it is to be
            run. Its weights become the quantised ones. Blocks that accelerate offloads (to disk, or
            to the host) stay as they are, and are in memory one at a time.
        batches: what it is called with, as :func:`ladder.convert` takes them.
        train_blocks: as there.
    """

    model: nn.Module
    batches: object
    train_blocks: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise InvalidArgument(f"model is of {type(self.model).__name__}, not nn.Module")

    def kept(self) -> Calibration:
        """The same, whose batches can be iterated more than once."""
        if isinstance(self.batches, Iterator):
            return replace(self, batches=list(self.batches))
        return self

    def choose(
        self,
        wanted: Mapping[str, tuple[int, ...]],
        budget: Budget,
        method: str,
        activation_type: str | None,
        progress: Progress | None,
    ) -> ChosenTypes:
        """Choose types for the modules ``wanted``, as :meth:`run` has them. The model stays as it
        is.

        Raises:
            InvalidArgument: the model has not these modules, or is offloaded; else as
                :func:`ladder.choose_types`.
        """
        if is_offloaded(self.model):
            raise InvalidArgument(
                "the model is offloaded, and to choose types it runs as a whole, again and again: "
                "it must be in memory"
            )
        return choose(
            self.model,
            list(self._layers(wanted)),
            budget.types,
            budget.bits,
            self.batches,
            method=method,
            activation_type=activation_type,
            measure=budget.measure,
            calibrated=True,
            progress=progress,
        )

    def run(
        self,
        wanted: Mapping[str, tuple[int, ...]],
        types: LayerTypes,
        method: str,
        progress: Progress | None,
        destination: Path,
    ) -> Calibrated:
        """Quantise the modules ``wanted``: the shape of the weight of each, of experts (E, H, I).
        ``types`` has their names in the model. Weights of an offloaded model are kept beside
        ``destination``, the folder that they are for.

        Raises:
            InvalidArgument: the model has not these modules; else as
                :func:`ladder.nn.calibration.calibrated`.
            DestinationError: no room on the disk.
        """
        layers = list(self._layers(wanted))
        keep = DiskRoom(destination).keep if is_offloaded(self.model) else None
        give_own_weights(self.model, layers, heads(self.model))
        return calibrated(
            self.model, layers, types, self.batches,
            method=method, train_blocks=self.train_blocks, progress=progress, keep=keep,
        )  # fmt: skip

    def _layers(self, wanted: Mapping[str, tuple[int, ...]]) -> Iterable[Layer]:
        modules = dict(self.model.named_modules(remove_duplicate=False))
        for name, shape in wanted.items():
            layer, found = _layer(name, modules.get(name))
            if layer is None or found != shape:
                has = "no such dense layer" if layer is None else f"one of {list(found)}"
                raise InvalidArgument(
                    f"model is not that of the folder, which has {name} of {list(shape)}: it has "
                    f"{has}"
                )
            yield layer


def _layer(name: str, module: Any) -> tuple[Layer | None, tuple[int, ...]]:
    """A dense layer with the shape of its weight, [N, K] of a linear one, of experts (E, H, I).
    None for others."""
    if module is not None and has_stacks(module):
        layout = layout_of(module)
        if not isinstance(layout, str):
            return FoundExperts((name,), module, layout), layout.shape
    elif is_linear(module) or isinstance(module, nn.Conv2d):
        of_linear = is_linear(module)
        weight: Tensor = dense_weight(module) if of_linear else module.weight
        return Found((name,), module), tuple(weight.shape)
    return None, ()
