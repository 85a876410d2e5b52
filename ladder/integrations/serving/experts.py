# SPDX-License-Identifier: Apache-2.0
"""Room for the packed experts of one layer of an engine, from the files to what a call needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from ladder.checkpoints.activation_schemes import say_of_experts
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.serving.layer import say_as_it_comes
from ladder.integrations.serving.loading import Room
from ladder.integrations.serving.mixture import Mixture, finish_stacks
from ladder.integrations.serving.ranks import Columns, Rows, part_rows, whole_rows
from ladder.integrations.serving.stacks import BiasRoom, StackRoom
from ladder.integrations.serving.stored import Folder, StoredLinear
from ladder.ops.gating import Gating

#: Names of stacks in ladder folders, and what names of parameters in engines' layers begin with.
GATE_UP, DOWN = "gate_up", "down"
STEMS = {GATE_UP: "w13", DOWN: "w2"}


@dataclass(frozen=True)
class Share:
    """What one rank has of the experts of a layer.

    Attributes:
        experts: of the files.
        local: expert -> its place on this rank, of those that it has.
        hidden_size, intermediate_size: H and I of one expert.
        own: of the I, how many this rank has.
        rank, ranks: of those that share each expert.
    """

    experts: int
    local: Mapping[int, int]
    hidden_size: int
    intermediate_size: int
    own: int
    rank: int
    ranks: int


class ExpertsRoom:
    """Parameters for every tensor of a layer's experts in the files.

    Args:
        folder: what the files hold: the two stacks of a ladder folder (``<prefix>.gate_up``,
            ``<prefix>.down``), or linear modules ``<prefix>.<expert>.<name>`` of any format.
        prefix: the layer's name.
        share: what this rank has.
        names: of gate, up and down where each expert has linear modules.
        dtype: of activations.
        bias: whether the engine's model adds biases.
        engine: its name, for messages.
        whole: how a user gives every rank whole experts, for messages.
        by_stack: stacks have their parameters in submodules ``gate_up`` and ``down``, for engines
            that look names of the files up among those of parameters.
    Raises:
        CheckpointError: headers that do not fit the model.
        Unsupported: a cut for tensor parallelism that a type does not allow.
    """

    def __init__(
        self,
        folder: Folder,
        prefix: str,
        share: Share,
        names: tuple[str, str, str],
        dtype: torch.dtype,
        *,
        bias: bool,
        engine: str,
        whole: str,
        by_stack: bool = False,
    ) -> None:
        self.folder, self.prefix, self.dtype = folder, prefix, dtype
        self.engine, self.whole, self.bias = engine, whole, bias
        h, own, i = share.hidden_size, share.own, share.intermediate_size
        self.stacked = is_stacked(folder, prefix)
        self.apart = by_stack and self.stacked
        columns = {GATE_UP: Columns(0, h, h), DOWN: Columns(share.rank * own, own, i)}
        if self.stacked and share.ranks == 1:  # nothing to cut
            rows = {GATE_UP: whole_rows([2 * i]), DOWN: whole_rows([h])}
        else:
            rows = {
                GATE_UP: part_rows([own, own], share.rank, share.ranks),
                DOWN: whole_rows([h]),
            }
        modules = self._modules(share, names)
        asked = {m.activation_type or "" for of in modules.values() for e in of.values() for m in e}
        self.activation_type = ""  #: that the files offer
        if len(asked) == 1:
            (self.activation_type,) = asked
        else:
            ways = ", ".join(sorted(each or "as it comes" for each in asked))
            say_as_it_comes(f"the experts of a layer are to have x rounded in several ways: {ways}")
        self.rooms = {
            name: StackRoom(
                "" if self.apart else STEMS[name],
                [self._room(modules[name][e], rows[name], columns[name]) for e in share.local],
                share.local,
                share.experts,
            )
            for name in STEMS
        }
        self.biases = self._biases(rows, share)

    def _modules(
        self, share: Share, names: tuple[str, str, str]
    ) -> dict[str, dict[int, list[StoredLinear]]]:
        """For each product the modules in the files of each expert of this rank."""
        h, i = share.hidden_size, share.intermediate_size
        if self.stacked:
            stack = self.folder.stack
            first = stack(f"{self.prefix}.{GATE_UP}", share.experts, 2 * i, h)
            second = stack(f"{self.prefix}.{DOWN}", share.experts, h, i)
            return {
                GATE_UP: {e: [first] for e in share.local},
                DOWN: {e: [second] for e in share.local},
            }

        def module(expert: int, name: str, n: int, k: int) -> StoredLinear:
            return self.folder.module(f"{self.prefix}.{expert}.{name}", n, k)

        gate, up, down = names
        return {
            GATE_UP: {e: [module(e, gate, i, h), module(e, up, i, h)] for e in share.local},
            DOWN: {e: [module(e, down, h, i)] for e in share.local},
        }

    def _room(self, modules: list[StoredLinear], rows: list[Rows], columns: Columns) -> Room:
        for module in modules:
            if "pre_scale" in module.tensors.values():
                raise Unsupported(
                    f"{module.name} multiplies columns of x by pre_scale, which ladder's experts "
                    "do not"
                )
            if module.act_order and columns.count != columns.whole:
                raise Unsupported(
                    f"{module.name} may order columns (act-order), of which no rank can have a "
                    f"part: serve it with {self.whole}"
                )
        return Room(self.prefix, modules, rows, columns, self.dtype)

    def _biases(self, rows: dict[str, list[Rows]], share: Share) -> dict[str, BiasRoom]:
        made = {}
        for name, stem in STEMS.items():
            in_files = f"{self.prefix}.{name}.bias"
            if self.bias:
                parameter = "bias" if self.apart else f"{stem}_bias"
                zero = share.rank > 0 and name == DOWN
                made[name] = BiasRoom(
                    parameter, in_files, rows[name], share.local, share.experts, zero=zero
                )
            elif self.folder.has_bias(f"{self.prefix}.{name}"):
                raise CheckpointError(
                    f"{in_files} is in the files, and {self.engine}'s model has none"
                )
        return made

    def _holder(self, layer: nn.Module, name: str) -> nn.Module:
        return layer.get_submodule(name) if self.apart else layer

    def register(self, layer: nn.Module) -> None:
        """Give ``layer`` uninitialised parameters on the default device."""
        for name, room in self.rooms.items():
            if self.apart:
                layer.add_module(name, nn.Module())
            room.register(self._holder(layer, name))
            if name in self.biases:
                self.biases[name].register(self._holder(layer, name), self.dtype)

    def expected(self) -> list[tuple[str, int, int]]:
        """The type, N and K that weights of both products are going to have, as far as headers
        tell; empty where experts differ, or parts of one."""
        out = []
        for stack in self.rooms.values():
            types = {room.expected_type() for room in stack.rooms}
            ttype, first = types.pop(), stack.rooms[0]
            if ttype is None or types:
                return []
            out.append((str(ttype), sum(rows.count for rows in first.rows), first.columns.count))
        return out

    def is_open(self, layer: nn.Module) -> bool:
        """Whether the parameters are still those of the files."""
        for name, room in self.rooms.items():
            holder = getattr(layer, name, None) if self.apart else layer
            if not all(hasattr(getattr(holder, n, None), "ladder_room") for n in room.names()):
                return False
        return True

    def fill_dummy(self, layer: nn.Module) -> None:
        """Values for a run without files."""
        for name in STEMS:
            self.rooms[name].fill_dummy(self._holder(layer, name))
            if name in self.biases:
                self.biases[name].fill_dummy(self._holder(layer, name))

    def finish(self, layer: nn.Module, gating: Gating, before: Mixture | None) -> Mixture:
        """Replace the parameters by those that kernels of the device read, as
        :func:`finish_stacks` does.

        Args:
            before: of the load before, whose graphs may be kept: the new one must equal it.
        Raises:
            CheckpointError: tensors that were not loaded, by name, or cannot be a weight's; other
                types than ``before``.
        """
        rooms = [*self.rooms.values(), *self.biases.values()]
        if missing := [name for room in rooms for name in room.missing()]:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise CheckpointError(
                f"{self.prefix}: {', '.join(missing[:5])}{more} was not loaded: it is missing in "
                f"the files, or {self.engine}'s model did not hand it on"
            )
        stacks = [(room, self._holder(layer, name)) for name, room in self.rooms.items()]
        scales = [room.input_scales(at) if self.activation_type else None for room, at in stacks]
        for name, scale in zip(STEMS, scales, strict=True):
            if scale is not None:
                say_of_experts(f"{self.prefix} ({STEMS[name]})", scale)
        weights = [room.take(at) for room, at in stacks]
        for name, bias in self.biases.items():
            holder = self._holder(layer, name)
            bias.loaded.clear()
            tensor = getattr(holder, bias.name).data
            delattr(holder, bias.name)
            parameter = nn.Parameter(tensor, requires_grad=False)
            layer.register_parameter(f"{STEMS[name]}_bias", parameter)
        if self.apart:
            for name in self.rooms:
                delattr(layer, name)
        made = finish_stacks(
            layer, (STEMS[GATE_UP], weights[0]), (STEMS[DOWN], weights[1]), gating, self.dtype,
            self.activation_type, (scales[0], scales[1]),
        )  # fmt: skip
        if before is not None and before != made:
            raise CheckpointError(
                f"{self.prefix} was {before.gate_up.type} and {before.down.type} when it was first "
                f"loaded, and is {made.gate_up.type} and {made.down.type} now: start the engine "
                "anew"
            )
        return made


def is_stacked(folder: Folder, prefix: str) -> bool:
    """Whether the files have one tensor for all experts of the layer ``prefix``."""
    if folder.headers is None:
        return folder.method == "ladder"
    return any(folder.parts_of(f"{prefix}.{name}") for name in STEMS)


def local_experts(
    prefix: str, engine: str, experts: int, count: int, place: Callable[[int], int]
) -> dict[int, int]:
    """The places of the experts of this rank, by an engine's own map.

    Args:
        experts: of the files.
        count: of this rank.
        place: expert -> its place here, negative where another rank has it.
    Raises:
        Unsupported: the map does not fill the places.
    """
    found = {e: place(e) for e in range(experts)}
    local = {e: at for e, at in found.items() if at >= 0}
    if sorted(local.values()) != list(range(count)):
        raise Unsupported(
            f"{prefix}: {count} experts on this rank, of which {engine}'s map names {len(local)}"
        )
    return local
