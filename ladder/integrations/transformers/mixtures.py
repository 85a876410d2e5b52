# SPDX-License-Identifier: Apache-2.0
"""Experts that are packed while a model is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from ladder.errors import CheckpointError
from ladder.nn.convert import replace
from ladder.nn.dense_experts import DOWN_BIAS, GATE_UP, GATE_UP_BIAS, STACKS
from ladder.nn.experts import Experts
from ladder.nn.layer_types import LayerTypes, every_name
from ladder.nn.mixtures import FoundExperts
from ladder.nn.report import Conversion
from ladder.nn.select import Left
from ladder.nn.stack import PackedStack
from ladder.quantization import weights_of
from ladder.types import parse


class LoadingMixtures:
    """The experts that are packed while a model is loaded.

    Args:
        found: of the model.
        types: of those that ``modules`` does not name.
        modules: tTypes by name of a stack, or of experts.

    Attributes:
        names: what the config may name them by.
    """

    def __init__(
        self,
        found: Iterable[FoundExperts] = (),
        types: LayerTypes | None = None,
        modules: Mapping[str, str] | None = None,
    ) -> None:
        named = modules or {}
        self._by_parameter: dict[str, FoundExperts] = {}
        self._types: dict[str, tuple[str, str]] = {}
        self._begun: dict[str, tuple[Experts, set[str]]] = {}
        self.names: set[str] = set()
        for layer in found:
            assert types is not None
            texts = [
                next((named[n] for n in self._names(layer, stack) if n in named), str(ttype))
                for stack, ttype in zip(STACKS.values(), types.of_stacks(layer), strict=True)
            ]
            self._types[layer.name] = (texts[0], texts[1])
            self.names |= {*layer.names, *every_name([layer])}
            for name in layer.names:
                for parameter in self._parameters(layer):
                    self._by_parameter[f"{name}.{parameter}"] = layer

    @staticmethod
    def _names(layer: FoundExperts, stack: str) -> list[str]:
        return [*(f"{name}.{stack}" for name in layer.names), *layer.names]

    @staticmethod
    def _parameters(layer: FoundExperts) -> list[str]:
        biases = (GATE_UP_BIAS, DOWN_BIAS) if layer.layout.bias else ()
        return [*STACKS, *biases]

    def takes(self, parameter: str) -> bool:
        """Whether a parameter of the model is one of these."""
        return parameter in self._by_parameter

    def bytes_per_element(self, parameter: str, parameter_bytes: float) -> float:
        """Of what is made of ``parameter``, whose dense elements have ``parameter_bytes``."""
        layer, last = self._by_parameter[parameter], parameter.rpartition(".")[2]
        if last not in STACKS:
            return parameter_bytes
        text = self._types[layer.name][list(STACKS).index(last)]
        _, h, i = layer.layout.shape
        n, k = (2 * i, h) if last == GATE_UP else (h, i)
        return parse(text).bits_per_weight(n, k) / 8

    def take(
        self, model: nn.Module, parameter: str, dense: Tensor, method: str, report: Conversion
    ) -> bool:
        """Pack ``dense`` if it is one of these parameters, and put the experts into ``model`` when
        it is the last of them. Returns whether it is one.

        Raises:
            CheckpointError: it has another shape than the model's.
            InvalidArgument: it cannot be quantised.
        """
        layer = self._by_parameter.get(parameter)
        if layer is None:
            return False
        last, module = parameter.rpartition(".")[2], layer.module
        if layer.name not in self._begun:
            first, second = self._types[layer.name]
            room = Experts.in_place_of(module, first, second, device="meta")
            self._begun[layer.name] = (room, set())
        experts, taken = self._begun[layer.name]
        wanted = getattr(module, last).shape
        if dense.shape != wanted:
            raise CheckpointError(f"{parameter} has shape {list(dense.shape)}, not {list(wanted)}")
        if last in STACKS:
            with weights_of(layer.name):
                experts.quantize_stack(last, dense, method=method)
            name, weights = layer.stacks()[last]
            stack: PackedStack = getattr(experts, STACKS[last])
            report.add(name, stack.weight_type, weights, stack.experts)
        else:
            setattr(module, last, nn.Parameter(dense.detach()))
        taken.add(last)
        if taken == {*self._parameters(layer)}:
            experts.take_biases(module)
            for tensor in (*experts.buffers(), *experts.parameters()):
                tensor._is_hf_initialized = True
            replace(model, layer.names, module, experts)
            del self._begun[layer.name]
        return True

    def finish(self, report: Conversion) -> None:
        """Note what the files did not have.

        Raises:
            CheckpointError: they had some parameters of experts, but not all.
        """
        for name, (_, taken) in self._begun.items():
            missing = sorted({*self._parameters(self._by_parameter[f"{name}.{GATE_UP}"])} - taken)
            raise CheckpointError(f"{name}.{missing[0]} is missing; there is {min(taken)}")
        for parameter, layer in self._by_parameter.items():
            name, _, last = parameter.rpartition(".")
            if last in STACKS and name == layer.name:
                stack, weights = layer.stacks()[last]
                if stack not in report.packed:
                    report.left[parameter] = Left(
                        "the files have no weight of it", weights, layer.layout.shape[0]
                    )
