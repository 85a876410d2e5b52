# SPDX-License-Identifier: Apache-2.0
"""Experts whose projections the files hold packed one by one: ``<experts>.3.gate_proj.qweight``.

transformers keeps the experts of a layer in two parameters, which its converters fill from
dense tensors of single projections. Packed tensors cannot go that way. So while the model is loaded
each projection is a linear layer of its own, which is filled and checked as any other; then the
weights of the layer become the two stacks of a :class:`ladder.Experts`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ladder.checkpoints.layer import Stored
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.folders.checkpoint import parts_by_module
from ladder.integrations.transformers.conversions import Roles
from ladder.nn.convert import replace
from ladder.nn.dense_experts import GATE_UP, STACKS, Layout, layout_of
from ladder.nn.experts import Experts
from ladder.nn.linear import Linear
from ladder.nn.mixtures import mixtures
from ladder.nn.stack import PackedStack
from ladder.weight import (
    Weight,
    join,
    join_objection,
    needs_single_rows,
    with_alike_second_scales,
)

_PROJECTION = re.compile(r"(?P<experts>.+)\.(?P<number>\d+)\.(?P<projection>[^.]+)")


class SingleExperts(nn.Module):
    """In place of an experts module while its projections are loaded: the linear layers
    ``<expert>.<projection>``, dense at first and on the meta device.

    Args:
        module: the experts module, which is no child of this one.
        stored: what the files call ``module``.
        projections: for each parameter of ``module`` the projections whose rows are its rows.
        codes: what the files call the codes of a projection.
    """

    def __init__(
        self,
        module: nn.Module,
        stored: str,
        projections: Mapping[str, Sequence[str]],
        codes: str,
    ) -> None:
        super().__init__()
        layout = layout_of(module)
        assert isinstance(layout, Layout)  # mixtures() has seen to that
        self.count, hidden, intermediate = layout.shape
        self.__dict__["_module"] = module
        self.stored, self.projections, self.codes = stored, projections, codes
        dtype = module._parameters[GATE_UP].dtype
        for expert in range(self.count):
            holder = nn.Module()
            for parameter, names in projections.items():
                n, k = (intermediate, hidden) if parameter == GATE_UP else (hidden, intermediate)
                for name in names:
                    linear = nn.Linear(k, n, bias=False, device="meta", dtype=dtype)
                    holder.add_module(name, linear)
            self.add_module(str(expert), holder.train(module.training))

    def layers(self, stack: str | None = None) -> list[str]:
        """The names, below this module, of its layers: of those of which ``stack`` is made."""
        stacks = STACKS.values() if stack is None else (stack,)
        return [name for each in stacks for expert in self._by_expert(each) for name in expert]

    def _by_expert(self, stack: str) -> list[list[str]]:
        parameter = next(each for each, name in STACKS.items() if name == stack)
        of_expert = self.projections[parameter]
        return [[f"{expert}.{name}" for name in of_expert] for expert in range(self.count)]

    def check_whole(self, headers: Mapping[str, Stored]) -> None:
        """To be called when the layers that the files hold packed are in place.

        Args:
            headers: of all tensors.
        Raises:
            CheckpointError: the files lack a projection.
            Unsupported: they have one that is dense.
        """
        every = self.layers()
        missing = [name for name in every if isinstance(self.get_submodule(name), nn.Linear)]
        if not missing:
            return
        name, there = missing[0], next(name for name in every if name not in missing)
        if f"{self.stored}.{name}.weight" in headers:
            raise Unsupported(
                f"{self.stored}.{name} is dense, and {self.stored}.{there} packed: ladder takes "
                "all projections of the experts of a layer packed, or none"
            )
        raise CheckpointError(
            f"{self.stored}.{name}.{self.codes} is missing, and {self.stored}.{there}.{self.codes} "
            f"is there: the model has {self.count} experts"
        )

    def finish(self, model: nn.Module, name: str) -> None:
        """Put a :class:`ladder.Experts` of the loaded weights in place of this module.

        Args:
            name: of this module in ``model``.
        Raises:
            CheckpointError: a tensor was not loaded or does not fit; or there is a bias.
            Unsupported: weights that are not of one type, or offloaded; gate and up whose columns
                are in two orders.
        """
        single = {stack: self._single(stack) for stack in STACKS.values()}
        scales = {stack: self._input_scales(stack) for stack in STACKS.values()}
        types = {}
        for stack, weights in single.items():
            first = self._by_expert(stack)[0]
            types[stack] = self._joined({each: weights[each] for each in first}).type
        experts = Experts.in_place_of(
            self.__dict__["_module"], types["gate_up"], types["down"], device="meta"
        )
        for expert in range(self.count):
            delattr(self, str(expert))
        for stack, weights in single.items():
            room: PackedStack = getattr(experts, stack)
            room.set_weights(
                self._joined({each: weights.pop(each) for each in names})
                for names in self._by_expert(stack)
            )
            room.input_scale = scales[stack]
        replace(model, [name], self, experts)

    def _input_scales(self, stack: str) -> Tensor | None:
        """[E, 1] float32: the largest of the static scales of x of each expert's layers; None where
        a layer has none."""
        scales = []
        for names in self._by_expert(stack):
            of = [self.get_submodule(name).input_scale for name in names]
            if any(scale is None for scale in of):
                return None
            scales.append(torch.stack([scale.reshape(()) for scale in of]).amax().reshape(1))
        return torch.stack(scales).float()

    def _single(self, stack: str) -> dict[str, Weight]:
        """The weights of which ``stack`` is made, of one type, by the names of their layers."""
        weights = {name: self._weight(name) for name in self.layers(stack)}
        first, like = next(iter(weights.items()))
        for name, weight in weights.items():
            if weight.type.with_stored_zeros() != like.type.with_stored_zeros():
                raise Unsupported(
                    f"{self.stored}.{name} is {weight.type}, and {self.stored}.{first} "
                    f"{like.type}: the experts of a layer need one type for each product"
                )
        if len({weight.type for weight in weights.values()}) > 1:
            weights = {name: weight.with_stored_zeros() for name, weight in weights.items()}
        by_expert = self._by_expert(stack)
        joined = with_alike_second_scales([[weights[name] for name in of] for of in by_expert])
        return dict(zip(chain(*by_expert), chain(*joined), strict=True))

    def _weight(self, name: str) -> Weight:
        where, layer = f"{self.stored}.{name}", self.get_submodule(name)
        layer.finish(where)
        assert isinstance(layer, Linear)
        if layer.pre_scale is not None:
            raise Unsupported(
                f"{where} multiplies columns of x by pre_scale, which ladder.Experts does not"
            )
        if layer.qweight.is_meta:
            raise Unsupported(
                f"{where} is offloaded: experts that are packed one by one become stacks in "
                "memory. Load without offload_buffers; or load on a machine where the model "
                "fits, and save_pretrained writes stacks"
            )
        if layer.bias is not None and layer.bias.is_meta:
            raise Unsupported(
                f"{where}.bias is offloaded, and ladder.Experts takes no bias but one of zeros, "
                "which cannot be told there. Load with a device_map that leaves this layer in "
                "memory; or load on a machine where the model fits, and save_pretrained writes "
                "stacks without a bias"
            )
        if layer.bias is not None and bool(layer.bias.any()):  # AutoGPTQ writes zeros
            raise CheckpointError(f"{where}.bias is not zero, and the model's experts have no bias")
        return layer.packed_weight

    def _joined(self, parts: Mapping[str, Weight]) -> Weight:
        """The rows of gate and up as one weight."""
        weights = list(parts.values())
        rows = [weight.shape[0] for weight in weights]
        if needs_single_rows(weights[0].type, rows):
            weights = [weight.of_single_rows() for weight in weights]
        if why := join_objection(weights[0].type, rows, [weight.tensors() for weight in weights]):
            names = " and ".join(f"{self.stored}.{name}" for name in parts)
            raise Unsupported(f"{names} cannot be one product: {why}")
        return join(weights)


def open_experts(
    model: Any,
    headers: Mapping[str, Stored],
    parts: Collection[str],
    codes_part: Callable[[Mapping[str, Stored]], str | None],
    *,
    cut: bool,
) -> dict[str, SingleExperts]:
    """Put a :class:`SingleExperts` in place of each experts module of ``model`` of which the files
    hold packed projections.

    Args:
        headers: of all tensors.
        parts, codes_part: as :func:`find_modules`.
        cut: whether the model is to be cut over processes.
    Returns:
        The new modules, by name.
    Raises:
        CheckpointError: projections of more experts than the model has.
        Unsupported: ``cut``.
    """
    known = mixtures(model)
    if not known:
        return {}
    roles = Roles(model)
    found: dict[str, SingleExperts] = {}
    for stored, present in parts_by_module(headers, parts).items():
        match = _PROJECTION.fullmatch(stored)
        codes = codes_part(present)
        if match is None or codes is None:
            continue
        name = roles.experts_of(stored)
        if name is None or (name not in known and name not in found):
            continue
        if cut:
            raise Unsupported(
                f"{stored}.{codes} is of packed experts, which cannot be cut over processes yet: "
                "load without tp_plan, with device_map say"
            )
        if name not in found:
            module = known.pop(name)
            layout = layout_of(module)
            projections = roles.projections(match["projection"])
            assert isinstance(layout, Layout)
            if projections is None or layout.transposed or layout.interleaved or layout.bias:
                continue  # find_modules refuses them
            found[name] = SingleExperts(module, match["experts"], projections, codes)
            model.set_submodule(name, found[name])
        count = found[name].count
        if int(match["number"]) >= count:
            raise CheckpointError(f"{stored}.{codes} is there, but the model has {count} experts")
    return found
