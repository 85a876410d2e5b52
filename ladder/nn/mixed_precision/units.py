# SPDX-License-Identifier: Apache-2.0
"""Weights that get one type together, and what it takes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ladder.nn.calibration.calls import Call
from ladder.nn.calibration.hessians import Layer, Part, captured
from ladder.nn.conv_products import filters
from ladder.nn.dense_experts import GATE_UP, STACKS
from ladder.nn.mixtures import FoundExperts
from ladder.nn.same_input import parent_of
from ladder.nn.select import is_conv1d, is_linear
from ladder.nn.select_conv import matrix_of, no_use
from ladder.ops import activations
from ladder.quantization import quantize, weights_of
from ladder.types import TType


@dataclass(frozen=True)
class Values:
    """What quantising a unit makes of it.

    Attributes:
        parameters: of each part, in the dtype and of the form of the module's own.
        error: squared difference of all weights, relative to their squares.
    """

    parameters: list[nn.Parameter]
    error: float


@dataclass(frozen=True)
class Unit:
    """Linear layers with one input in one module, which engines run as one, or a convolution, or a
    stack of experts."""

    parts: tuple[Part, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the layers, or of the stack."""
        return tuple(
            f"{part.layer.name}.{STACKS[part.stack]}" if part.stack else part.layer.name
            for part in self.parts
        )

    @property
    def name(self) -> str:
        """All of them: ``layers.0.self_attn.{q_proj,k_proj,v_proj}``."""
        first, *others = self.names
        if not others:
            return first
        parent = parent_of(first)
        dot = "." if parent else ""
        return f"{parent}{dot}{{{','.join(n.removeprefix(parent + dot) for n in self.names)}}}"

    def shapes(self) -> Iterator[tuple[int, int, int]]:
        """(matrices, N, K) of each part."""
        for part in self.parts:
            if isinstance(part.layer, FoundExperts):
                e, h, i = part.layer.layout.shape
                yield (e, 2 * i, h) if part.stack == GATE_UP else (e, h, i)
            else:
                module: Any = part.layer.module
                n, k = matrix_of(module, module.weight).shape
                yield 1, n, k

    @property
    def weights(self) -> int:
        return sum(count * n * k for count, n, k in self.shapes())

    def stored_bits(self, ttype: TType) -> int:
        """Bits of codes, whose rows are whole words, scales and zero points."""
        total = 0.0
        for count, n, k in self.shapes():
            beside = ttype.bits_per_weight(n, k) - ttype.bits
            total += count * n * (32 * ttype.words(k) + k * beside)
        return round(total)

    def objection(
        self, ttype: TType, activation_type: str | None, types: Iterable[TType] = ()
    ) -> str:
        """Why a type is none for the unit; "" where it is one. Groups that do not divide K, for
        which there are fewer kernels, are an objection where those of some of ``types`` do."""
        for part, (_, _, k) in zip(self.parts, self.shapes(), strict=True):
            if not _divides(ttype, k) and any(_divides(other, k) for other in types):
                return f"groups of {ttype.columns} do not divide K = {k}"
            if why := ttype.superblock_objection(k):
                return why
            module = part.layer.module
            if isinstance(module, nn.Conv2d):
                why = no_use(module, ttype) or ""
            else:
                device = next(module.parameters()).device.type
                why = activations.objection(activation_type, ttype, k, device)
            if why:
                return why
        return ""

    def parameters(self) -> list[tuple[nn.Module, str]]:
        """The modules that hold the weights, and what they call them."""
        return [(part.layer.module, part.stack or "weight") for part in self.parts]

    def quantized(self, ttype: TType, method: str) -> Values:
        """Each weight of its nearest code. Raises InvalidArgument where one cannot be quantised,
        naming it."""
        made, error, size = [], 0.0, 0.0
        for part, (module, name) in zip(self.parts, self.parameters(), strict=True):
            dense = cast(Tensor, module._parameters[name]).detach()
            values = torch.empty_like(dense)
            with weights_of(part.layer.name):
                for at, rows in enumerate(matrices(part, dense)):
                    found = quantize(rows, ttype, method=method).dequantize(torch.float32)
                    _put(part, values, at, found)
                    source = rows.to(torch.float32)
                    error += (found - source).square().sum().item()
                    size += source.square().sum().item()
            made.append(nn.Parameter(values, requires_grad=False))
        return Values(made, error / size if size else 0.0)


def _divides(ttype: TType, k: int) -> bool:
    """Whether the last group of a row is as long as the others."""
    return ttype.columns >= k or not ttype.columns or k % ttype.columns == 0


def matrices(part: Part, parameter: Tensor) -> list[Tensor]:
    """The weights [N, K] of a parameter, several of experts."""
    if isinstance(part.layer, FoundExperts):
        return [part.layer.layout.rows(part.stack, expert) for expert in parameter]
    return [matrix_of(part.layer.module, parameter)]


def _put(part: Part, values: Tensor, at: int, found: Tensor) -> None:
    """Put the weight [N, K] of place ``at`` into the ``values`` of a parameter."""
    module = part.layer.module
    if isinstance(part.layer, FoundExperts):
        values[at].copy_(part.layer.layout.as_dense(part.stack, found[None])[0])
    elif isinstance(module, nn.Conv2d):
        values.copy_(filters(module, found))
    else:
        values.copy_(found.T if is_conv1d(module) else found)


def units_of(model: nn.Module, layers: Sequence[Layer], call: Call) -> list[Unit]:
    """``layers`` by their inputs, which one call of ``model`` shows, in the order of ``layers``."""
    with captured(layers, keep=False) as seen:
        call(model)
        groups: dict[object, list[Part]] = {}
        for layer in layers:
            sources = seen.sources.get(layer.name)
            for part in _parts(layer):
                key: object = (layer.name, part.stack)
                if sources is not None and is_linear(layer.module):
                    inputs = tuple((id(tensor), version) for tensor, version in sources)
                    key = (parent_of(layer.name), inputs)
                groups.setdefault(key, []).append(part)
    return [Unit(tuple(parts)) for parts in groups.values()]


def _parts(layer: Layer) -> Iterable[Part]:
    return [Part(layer, stack) for stack in (STACKS if isinstance(layer, FoundExperts) else ("",))]
