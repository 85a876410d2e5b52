# SPDX-License-Identifier: Apache-2.0
"""The experts of a floating-point folder, whose files may have each expert's tensors one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ladder.checkpoints.model import placer, renamer
from ladder.checkpoints.model_files import Described, describe_tensors
from ladder.checkpoints.shards import ShardSet
from ladder.errors import CheckpointError
from ladder.nn.dense_experts import DOWN_BIAS, GATE_UP, GATE_UP_BIAS, STACKS
from ladder.nn.experts import Experts
from ladder.nn.layer_types import LayerTypes
from ladder.nn.mixtures import FoundExperts
from ladder.quantization import weights_of
from ladder.weight import Weight

#: Parameters of experts, and what the tensors of a ladder folder are called.
_BIASES = {GATE_UP_BIAS: "gate_up.bias", DOWN_BIAS: "down.bias"}


@dataclass(frozen=True)
class Sources:
    """The tensors of the files of which one parameter of experts is made."""

    names: tuple[str, ...]
    make: Callable[[dict[str, Tensor]], Tensor]  #: the parameter from tensors by name


@dataclass(frozen=True)
class PlannedExperts:
    """Experts that are to be packed.

    Attributes:
        name: of the module in the files.
        layer: the module on the meta device.
        sources: parameter -> tensors of the files.
        room: experts on the meta device, of the wanted types.
    """

    name: str
    layer: FoundExperts
    sources: dict[str, Sources]
    room: Experts

    def described(self, parameter: str) -> dict[str, Described]:
        """The tensors that are written for one parameter, by their names in the files."""
        if parameter in _BIASES:
            stack, _, part = _BIASES[parameter].partition(".")
            tensors = {part: getattr(self.room, stack).bias}
        else:
            stack = STACKS[parameter]
            tensors = dict(getattr(self.room, stack).named_buffers())
        return describe_tensors({f"{self.name}.{stack}.{p}": t for p, t in tensors.items()})

    def tensors(
        self,
        parameter: str,
        shards: ShardSet,
        method: str,
        weights: Sequence[Weight] | None = None,
    ) -> dict[str, Tensor]:
        """What :meth:`described` describes: reads, merges and quantises one parameter, or takes the
        ``weights`` of all experts that it was quantised to already.

        Raises:
            CheckpointError: the tensors of the files cannot be merged to the model's parameter.
            InvalidArgument: a weight is not finite, naming the expert.
        """
        experts = Experts.in_place_of(
            self.layer.module, self.room.gate_up.weight_type, self.room.down.weight_type,
            device="meta",
        )  # fmt: skip
        if parameter in _BIASES:
            dense = self._merged(parameter, shards)
            holder = nn.Module()
            holder.register_parameter(parameter, nn.Parameter(dense.detach()))
            experts.take_biases(holder)
            stack, _, part = _BIASES[parameter].partition(".")
            return {f"{self.name}.{stack}.{part}": getattr(experts, stack).bias.detach()}
        stack = STACKS[parameter]
        if weights is not None:
            getattr(experts, stack).set_weights(weight.to("cpu") for weight in weights)
        else:
            dense = self._merged(parameter, shards)
            with weights_of(self.name):
                experts.quantize_stack(parameter, dense, method=method)
        parts = getattr(experts, stack).named_buffers()
        return {f"{self.name}.{stack}.{part}": tensor for part, tensor in parts}

    def _merged(self, parameter: str, shards: ShardSet) -> Tensor:
        """A parameter of the tensors of the files, a bias in the model's dtype."""
        sources = self.sources[parameter]
        wanted: Tensor = getattr(self.layer.module, parameter)
        try:
            dense = sources.make(shards.read(sources.names))
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{sources.names[0]} and others: {error}") from error
        if dense.shape != wanted.shape:
            raise CheckpointError(
                f"{sources.names[0]} and others make {parameter} {list(dense.shape)}, not "
                f"{list(wanted.shape)}"
            )
        return dense.to(wanted.dtype) if parameter in _BIASES else dense


def plan_experts(
    model: Any, shards: ShardSet, found: Iterable[FoundExperts], types: LayerTypes
) -> list[PlannedExperts]:
    """Which tensors of the files become which stacks. Experts of which the files hold nothing are
    left out.

    Args:
        model: on the meta device.
    Raises:
        CheckpointError: the files hold some parameters of experts, but not all.
    """
    found = list(found)
    if not found:
        return []
    merging = _Merging(model, shards.home)
    planned = []
    for layer in found:
        parameters = [*STACKS, *(_BIASES if layer.layout.bias else ())]
        sources = {
            parameter: each
            for parameter in parameters
            for name in layer.names
            if (each := merging.sources(f"{name}.{parameter}")) is not None
        }
        if not sources:
            continue
        for parameter in parameters:
            if parameter not in sources:
                raise CheckpointError(f"{layer.name}.{parameter} is missing")
        name = merging.file_name(layer.name, sources[GATE_UP].names[0])
        first, second = types.of_stacks(layer, name)
        room = Experts.in_place_of(layer.module, first, second, device="meta")
        planned.append(PlannedExperts(name, layer, sources, room))
    return planned


class _Merging:
    """How transformers makes the parameters of ``model`` of tensors named ``names``."""

    def __init__(self, model: Any, names: Iterable[str]) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            dot_natural_key,
            rename_source_key,
        )

        mapping = get_model_conversion_mapping(model)
        self._converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        self._model, self._rename = model, rename_source_key
        self._renamed, _ = renamer(model)
        place = placer(model)
        #: of a parameter: names of tensors, each with the pattern that it matched
        self._of: dict[str, list[tuple[str, str | None]]] = {}
        for name in sorted(names, key=dot_natural_key):
            target, pattern = place(name)
            self._of.setdefault(target, []).append((name, pattern))

    def sources(self, parameter: str) -> Sources | None:
        found = self._of.get(parameter)
        if found is None:
            return None
        names = tuple(name for name, _ in found)
        if found[0][1] is None:
            return Sources(names, lambda tensors: tensors[names[0]])
        model, converters = self._model, self._converters

        def make(tensors: dict[str, Tensor]) -> Tensor:
            from copy import deepcopy

            used = next(c for c in converters if found[0][1] in c.source_patterns)
            converter = deepcopy(used)
            for name, pattern in found:
                converter.add_tensor(parameter, name, pattern, tensors[name])
            made = converter.convert(parameter, model=model, config=model.config)[parameter]
            return made[0] if isinstance(made, list) else made

        return Sources(names, make)

    def file_name(self, module: str, source: str) -> str:
        """What the files would call ``module``: as in ``source``, of which its first stack is
        made."""
        renamed: str = self._rename(source, [], self._converters)[0]
        name = renamed.removesuffix(f".{GATE_UP}")
        fits = renamed != name and self._renamed(renamed) == f"{module}.{GATE_UP}"
        return name if fits else module
