# SPDX-License-Identifier: Apache-2.0
"""Room for the weights of the experts of one layer of an engine.

A layer of experts has two products. A :class:`StackRoom` has one parameter [E, ...] for each name
that a tensor of a product has in the files, whether these hold one tensor for all experts
(``gate_up.qweight``) or one for each (``0.w1.qweight``). What it does with the tensor of one expert
is what :class:`Room` does with the tensor of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.serving.loading import Room
from ladder.integrations.serving.ranks import Rows
from ladder.weight import (
    Weight,
    in_order,
    join,
    join_objection,
    with_alike_second_scales,
)

#: The part of a product that a tensor of one expert is, by the engines' names of shards.
SHARDS = {"w1": 0, "w3": 1, "w2": 0, None: None}


class StackRoom:
    """One product of the experts that a rank has.

    Args:
        stem: what the names of its parameters begin with; "" where they have the files' names.
        rooms: one for each expert of this rank.
        local: the place in ``rooms`` of each expert of the files; those of other ranks are left
            out.
        experts: of the files.
    Raises:
        Unsupported: weights that are not packed, or of several types; the message names two.
    """

    def __init__(
        self, stem: str, rooms: Sequence[Room], local: Mapping[int, int], experts: int
    ) -> None:
        self.stem, self.rooms, self.local, self.experts = stem, tuple(rooms), dict(local), experts
        modules = [module for room in rooms for module in room.modules]
        first = modules[0]
        for module in modules:
            if module.type is None or module.type != first.type:
                found = module.type or "not packed"
                raise Unsupported(
                    f"{module.name} is {found}, and {first.name} {first.type or 'not packed'}: "
                    "ladder serves packed experts of one type for each product"
                )
            if module.tensors.keys() != first.tensors.keys():
                odd = sorted(module.tensors.keys() ^ first.tensors.keys())
                raise CheckpointError(f"only one of {first.name} and {module.name} has {odd[0]}")

    def names(self) -> list[str]:
        """Names of the parameters."""
        return [self._called(name) for name in self.rooms[0].names()]

    def _called(self, name: str) -> str:
        return f"{self.stem}_{name}" if self.stem else name

    def register(self, layer: nn.Module) -> None:
        """Give ``layer`` uninitialised parameters on the default device."""
        for name in self.rooms[0].names():
            with torch.device("meta"):
                like = self.rooms[0].parameter(name)
            whole = torch.empty((len(self.rooms), *like.shape), dtype=like.dtype)
            parameter = nn.Parameter(whole, requires_grad=False)
            parameter.ladder_room = self
            parameter.ladder_name = name
            parameter.weight_loader = load
            layer.register_parameter(self._called(name), parameter)

    def load(
        self, parameter: Tensor, name: str, tensor: Tensor, shard: str | None, expert: int | None
    ) -> bool:
        """Take over one tensor of the files: of one expert, or of all where ``expert`` is None.
        Returns whether this rank has any of it.

        Raises:
            CheckpointError: it does not fit; the message names it and both values.
        """
        if expert is not None:
            tensors = {expert: tensor}
        elif tensor.shape[:1] != (self.experts,):
            raise CheckpointError(
                f"{self.rooms[0].modules[0].name}.{name} has shape {list(tensor.shape)}, not "
                f"{self.experts} experts in front"
            )
        else:
            tensors = dict(enumerate(tensor))
        for number in tensors.keys() & self.local.keys():
            place = self.local[number]
            to = parameter.data[place]
            self.rooms[place].load(to, name, tensors[number], SHARDS[shard])
        return bool(tensors.keys() & self.local.keys())

    def missing(self) -> list[str]:
        """Names in the files of the tensors that were not loaded."""
        names = (name for room in self.rooms for name in room.missing())
        return list(dict.fromkeys(names))

    def fill_dummy(self, layer: nn.Module) -> None:
        """As :meth:`Room.fill_dummy`, for every expert."""
        for place, room in enumerate(self.rooms):
            room.fill_dummy(self._of(layer, place))

    def input_scales(self, layer: nn.Module) -> Tensor | None:
        """[E, 1] float32: the static scales of x that were loaded of the experts, of each the
        largest of its parts; None where the files have none. Before :meth:`take`.

        Raises:
            CheckpointError: one is not positive and finite.
        """
        scales = []
        for place, room in enumerate(self.rooms):
            holder = self._of(layer, place)
            of = [room.input_scale(holder, part) for part in range(len(room.rows))]
            known = [scale for scale in of if scale is not None]
            if len(known) < len(of):
                return None
            scales.append(max(known))
        return torch.tensor(scales, dtype=torch.float32)[:, None]

    def take(self, layer: nn.Module) -> list[Weight]:
        """The weight of each expert, its parts row below row; the parameters are gone. Zero points
        that are the midpoint and columns in their order are left out where all experts have them
        so.

        Raises:
            CheckpointError: values that no weight has.
            Unsupported: parts that cannot be one weight.
        """
        weights = []
        every = [self._parts(layer, place) for place in range(len(self.rooms))]
        every = with_alike_second_scales(every)
        for room, parts in zip(self.rooms, every, strict=True):
            rows, tensors = [w.shape[0] for w in parts], [w.tensors() for w in parts]
            if why := join_objection(parts[0].type, rows, tensors):
                names = " and ".join(dict.fromkeys(m.name for m in room.modules))
                raise Unsupported(f"{names} cannot be one product: {why}")
            weights.append(join(parts))
            room.loaded.clear()
        for name in self.names():
            delattr(layer, name)
        return _settled(weights)

    def _parts(self, layer: nn.Module, place: int) -> list[Weight]:
        room, holder = self.rooms[place], self._of(layer, place)
        parts = [room.weight(holder, part) for part in range(len(room.rows))]
        assert all(isinstance(each, Weight) for each in parts)
        return cast(list[Weight], parts)

    def _of(self, layer: nn.Module, place: int) -> Any:
        """Something whose attributes are the parameters of one expert."""
        names = self.rooms[0].names()
        return SimpleNamespace(**{n: getattr(layer, self._called(n)).data[place] for n in names})


def _settled(weights: list[Weight]) -> list[Weight]:
    ttype = weights[0].type
    drop = set()
    if ttype.zero == "integer":
        middle = 1 << (ttype.bits - 1)
        if all(bool((w.zeros == middle).all()) for w in weights if w.zeros is not None):
            ttype = ttype.with_zero("midpoint")
            drop.add("zeros")
    if all(w.g_idx is None or in_order(w.g_idx, ttype) for w in weights):
        drop.add("g_idx")
    kept = ({n: t for n, t in w.tensors().items() if n not in drop} for w in weights)
    return [Weight(ttype, w.shape, **parts) for w, parts in zip(weights, kept, strict=True)]


class BiasRoom:
    """The biases [E, N] of one product of the experts that a rank has.

    Args:
        name: of the parameter.
        in_files: of the bias, for messages.
        rows: what the rank holds of each part.
        zero: the products of ranks are added, and another rank's has the bias.
        local, experts: as :class:`StackRoom`.
    """

    def __init__(
        self,
        name: str,
        in_files: str,
        rows: Sequence[Rows],
        local: Mapping[int, int],
        experts: int,
        *,
        zero: bool = False,
    ) -> None:
        self.name, self.in_files, self.rows = name, in_files, tuple(rows)
        self.local, self.experts, self.zero = dict(local), experts, zero
        self.loaded: set[tuple[int, int]] = set()

    def register(self, layer: nn.Module, dtype: torch.dtype) -> None:
        """Give ``layer`` an uninitialised parameter on the default device."""
        shape = (len(self.local), sum(rows.count for rows in self.rows))
        parameter = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        parameter.ladder_room = self
        parameter.ladder_name = self.name
        parameter.weight_loader = load
        layer.register_parameter(self.name, parameter)

    def load(
        self, parameter: Tensor, name: str, tensor: Tensor, shard: str | None, expert: int | None
    ) -> bool:
        """As :meth:`StackRoom.load`: [N] of one expert, or [E, N]."""
        part = SHARDS[shard]
        parts = list(range(len(self.rows))) if part is None else [part]
        whole = sum(self.rows[p].whole for p in parts)
        wanted = [whole] if expert is not None else [self.experts, whole]
        if list(tensor.shape) != wanted:
            raise CheckpointError(f"{self.in_files} has shape {list(tensor.shape)}, not {wanted}")
        tensors = dict(enumerate(tensor)) if expert is None else {expert: tensor}
        for number in tensors.keys() & self.local.keys():
            place, first = self.local[number], 0
            for p in parts:
                rows = self.rows[p]
                values = tensors[number][first + rows.start : first + rows.start + rows.count]
                begin = sum(each.count for each in self.rows[:p])
                to = parameter.data[place, begin : begin + rows.count]
                to.copy_(torch.zeros_like(values) if self.zero else values)
                first += rows.whole
                self.loaded.add((place, p))
        return bool(tensors.keys() & self.local.keys())

    def missing(self) -> list[str]:
        """The name of the bias, unless all of it was loaded."""
        return [] if len(self.loaded) == len(self.local) * len(self.rows) else [self.in_files]

    def fill_dummy(self, layer: nn.Module) -> None:
        getattr(layer, self.name).data.zero_()
        self.loaded |= {(e, p) for e in self.local.values() for p in range(len(self.rows))}


def load(
    param: Tensor,
    loaded_weight: Tensor,
    weight_name: str = "",
    shard_id: str | None = None,
    expert_id: int | None = None,
    return_success: bool = False,
) -> bool | None:
    """The ``weight_loader`` of a parameter of a :class:`StackRoom` or :class:`BiasRoom`, called as
    engines call those of experts; without ``expert_id`` for the tensor of all experts."""
    room: StackRoom | BiasRoom = param.ladder_room
    mine = room.load(param, param.ladder_name, loaded_weight, shard_id, expert_id)
    return mine if return_success else None
