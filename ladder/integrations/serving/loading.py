# SPDX-License-Identifier: Apache-2.0
"""Room for the tensors of one layer of an engine, filled tensor by tensor in any order.

An engine fuses linear modules of a checkpoint (q, k, v) into one layer and gives each rank of
tensor parallelism its rows or columns. A :class:`Room` has one parameter for each name that a
tensor of the layer has in the files. A tensor becomes canonical, is cut for the rank, and is copied
to the place of its module, so that memory holds one whole tensor at a time, and a later load of
the same names fills the same room.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ladder.checkpoints.layer import check_input_scale, check_pre_scale
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.integrations.serving import dummy
from ladder.integrations.serving.ranks import Columns, Rows
from ladder.integrations.serving.stored import StoredLinear
from ladder.nn.packed import OF_X
from ladder.types import TType
from ladder.weight import Weight, in_order, needs_single_rows, parts_of_rows

#: Parts of which a layer has one for each module, not one for each row; a second scale, too, unless
#: rows have their own.
_OF_MODULE = ("g_idx", *OF_X)


class Room:
    """The modules of one layer on one rank.

    Args:
        prefix: the layer's name, for messages.
        modules: one for each element of ``rows``, or one that has the rows of all.
        rows: what the rank holds of each module.
        columns: of every module; the whole of K where ``start`` is 0 and ``count`` is ``whole``.
        dense: dtype of modules that are not packed.
    Raises:
        Unsupported: the cut is not possible; the message says what would be.
    """

    def __init__(
        self,
        prefix: str,
        modules: Sequence[StoredLinear],
        rows: Sequence[Rows],
        columns: Columns,
        dense: torch.dtype,
    ) -> None:
        self.prefix, self.rows, self.columns, self.dense = prefix, tuple(rows), columns, dense
        self.modules = tuple(modules)
        self._fused_on_disk = len(modules) != len(rows)
        if self._fused_on_disk and len(modules) != 1:
            raise Unsupported(
                f"{prefix} has {len(rows)} parts, and the files {len(modules)} modules for them"
            )
        for module in modules:
            if why := module.columns_objection(columns.whole, columns.start, columns.count):
                raise Unsupported(f"{module.name}: {why}")
        self._check_rows()
        self.loaded: set[tuple[int, str]] = set()

    def _check_rows(self) -> None:
        whole = sum(rows.whole for rows in self.rows)
        before = 0
        for i, rows in enumerate(self.rows):
            module, on_disk = self.module(i), whole if self._fused_on_disk else rows.whole
            probe = torch.empty((on_disk, 0), device="meta")
            try:
                module.rows_of("scales", probe, before + rows.start, rows.filled, on_disk)
            except InvalidArgument as error:
                raise Unsupported(f"{module.name}: {error}") from None
            before += rows.whole if self._fused_on_disk else 0

    def module(self, part: int) -> StoredLinear:
        """The stored module that part ``part`` of the layer comes from."""
        return self.modules[0 if self._fused_on_disk else part]

    def splits(self, ttype: TType) -> bool:
        """Whether weights of ``ttype`` are given a scale for each row, lest blocks of rows keep the
        parts of the layer from being one weight."""
        return needs_single_rows(ttype, [rows.count for rows in self.rows])

    def expected_type(self) -> TType | None:
        """Of the one weight that all parts are going to be, as far as headers tell; None where they
        are several, dense or of another order of columns."""
        types = {module.type for module in self.modules}
        ttype = types.pop()
        if ttype is None or types or self.modules[0].act_order:
            return None
        if ttype.zero == "integer" and self.modules[0].symmetric:
            ttype = ttype.with_zero("midpoint")
        return ttype.of_single_rows() if self.splits(ttype) else ttype

    # --- parameters -------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Names of the tensors of the layer in the files."""
        return list(dict.fromkeys(name for module in self.modules for name in module.tensors))

    def parameter(self, name: str) -> nn.Parameter:
        """An uninitialised parameter for the tensors called ``name``, on the default device, whose
        ``weight_loader(parameter, tensor, shard_id)`` fills it.

        Modules of one type lie row below row; those of several types byte behind byte.
        """
        likes = [like for i in range(len(self.rows)) if (like := self._like(i, name)) is not None]
        if self._stacked(name):
            parameter = nn.Parameter(
                torch.empty((len(likes), *likes[0].shape), dtype=likes[0].dtype),
                requires_grad=False,
            )
        elif self._uniform(name):
            shape = (sum(like.shape[0] for like in likes), *likes[0].shape[1:])
            parameter = nn.Parameter(torch.empty(shape, dtype=likes[0].dtype), requires_grad=False)
        else:
            size = sum(like.numel() * like.itemsize for like in likes)
            parameter = nn.Parameter(torch.empty(size, dtype=torch.uint8), requires_grad=False)
        parameter.ladder_room = self
        parameter.ladder_name = name
        parameter.weight_loader = load
        return parameter

    def _like(self, part: int, name: str) -> Tensor | None:
        """Shape and dtype of the rank's tensor ``name`` of a part; None where it has none."""
        module = self.module(part)
        if name not in module.tensors:
            return None
        kind, n, k = module.tensors[name], self.rows[part].count, self.columns.count
        if not kind:
            return torch.empty((0, 1), dtype=torch.int64, device="meta")
        return module.like(kind, n, k, self.dense)

    def _stacked(self, name: str) -> bool:
        kind = next(m.tensors[name] for m in self.modules if name in m.tensors)
        if kind in _OF_MODULE:
            return True
        types = {self.module(i).type for i in range(len(self.rows))}
        if kind == "scale2":  # [1] and [N] lie behind each other
            return not any(t is not None and "scale2" in parts_of_rows(t) for t in types)
        of_tensor = any(t is not None and t.rows == 0 for t in types)
        return kind in ("scales", "zeros") and of_tensor and len(types) == 1

    def _uniform(self, name: str) -> bool:
        likes = [self._like(i, name) for i in range(len(self.rows))]
        kinds = {None if like is None else (like.dtype, like.shape[1:]) for like in likes}
        return len(kinds) == 1

    def view(self, parameter: Tensor, name: str, part: int) -> Tensor | None:
        """The place of one part in ``parameter``: bytes where types differ."""
        likes = [self._like(i, name) for i in range(len(self.rows))]
        like = likes[part]
        if like is None:
            return None
        before = [each for each in likes[:part] if each is not None]
        if self._stacked(name):
            return parameter.data[len(before)]
        if self._uniform(name):
            first = sum(each.shape[0] for each in before)
            return parameter.data[first : first + like.shape[0]]
        first = sum(each.numel() * each.itemsize for each in before)
        return parameter.data[first : first + like.numel() * like.itemsize]

    # --- loading ----------------------------------------------------------------------------------

    def parts_of(self, shard: object) -> list[int]:
        """The parts that a tensor with this shard id of vLLM holds."""
        if shard is None:
            return list(range(len(self.rows)))
        if isinstance(shard, tuple):
            return [part for each in shard for part in self.parts_of(each)]
        part = {"q": 0, "k": 1, "v": 2}.get(shard, shard) if isinstance(shard, str) else shard
        if type(part) is not int or not 0 <= part < len(self.rows):
            raise Unsupported(
                f"{self.prefix} has no part {shard!r}, of {len(self.rows)} that ladder knows"
            )
        return [part]

    def load(self, parameter: Tensor, name: str, tensor: Tensor, shard: object) -> None:
        """Take over one tensor of the files.

        Raises:
            CheckpointError: it does not fit; the message names it and both values.
        """
        parts = self.parts_of(shard)
        module = self.module(parts[0])
        kind, canonical = module.canonical(name, tensor)
        whole = sum(self.rows[part].whole for part in parts)
        if kind:
            wanted = module.like(kind, whole, self.columns.whole, self.dense)
            if kind == "scale2" and wanted.dim() == 1:
                canonical = canonical.reshape(-1)
            if canonical.shape != wanted.shape:
                raise CheckpointError(
                    f"{module.name}.{name} has shape {list(canonical.shape)}, not "
                    f"{list(wanted.shape)}"
                )
            if kind != "weight" and canonical.dtype != wanted.dtype:
                raise CheckpointError(
                    f"{module.name}.{name} has dtype {canonical.dtype}, not {wanted.dtype}"
                )
        first = 0
        for part in parts:
            rows = self.rows[part]
            if kind:
                self._copy(parameter, name, part, kind, canonical, first + rows.start, whole)
            first += rows.whole
            self.loaded.add((part, name))

    def _copy(
        self,
        parameter: Tensor,
        name: str,
        part: int,
        kind: str,
        canonical: Tensor,
        start: int,
        whole: int,
    ) -> None:
        module, cut, rows = self.module(part), self.columns, self.rows[part]
        if cut.count != cut.whole:
            if kind == "g_idx" and module.type and not in_order(canonical, module.type):
                raise CheckpointError(
                    f"{module.name}.{name} orders columns (act-order), which "
                    "quantization_config.desc_act denies: no rank can have its columns alone"
                )
            canonical = module.columns_of(kind, canonical, cut.whole, cut.start, cut.count)
        values = module.rows_of(kind, canonical, start, rows.filled, whole)
        to = self.view(parameter, name, part)
        assert to is not None
        self._put(to, name, values.to(self.dense) if kind == "weight" else values)

    def _put(self, to: Tensor, name: str, values: Tensor) -> None:
        if not self._stacked(name) and not self._uniform(name):
            values = values.contiguous().view(torch.uint8).flatten()
        if to.shape == values.shape:
            to.copy_(values)
            return
        to[: values.shape[0]].copy_(values)  # vocabularies are padded
        to[values.shape[0] :].zero_()

    def fill_dummy(self, layer: nn.Module) -> None:
        """Random numbers that a weight could have, for engines that time models without files."""
        for name in self.names():
            to = getattr(layer, name).data
            for i in range(len(self.rows)):
                ttype, view = self.module(i).type, self.view(to, name, i)
                kind = self.module(i).tensors.get(name)
                if view is None or not kind:
                    continue
                like = self.module(i).like(kind, self.rows[i].count, self.columns.count, self.dense)
                values = torch.empty(like.shape, dtype=like.dtype, device=to.device)
                dummy.fill(values, kind, ttype)
                self._put(view, name, values)
        self.loaded.update((i, n) for i in range(len(self.rows)) for n in self.module(i).tensors)

    def missing(self) -> list[str]:
        """Names in the files of the tensors that were not loaded."""
        return sorted(
            f"{self.module(i).name}.{name}"
            for i in range(len(self.rows))
            for name in self.module(i).tensors
            if (i, name) not in self.loaded
        )

    def weight(self, layer: nn.Module, part: int) -> Weight | Tensor:
        """What was loaded of one part: a Weight, or a dense [n, k].

        Raises:
            CheckpointError: a scale that is not finite, a g_idx out of range.
        """
        module, n, k = self.module(part), self.rows[part].count, self.columns.count
        parts: dict[str, Tensor] = {}
        for name, kind in module.tensors.items():
            if kind in ("", *OF_X):
                continue
            view = self.view(getattr(layer, name), name, part)
            if view is None:
                continue
            like = module.like(kind, n, k, self.dense)
            if view.dtype != like.dtype or view.shape != like.shape:
                view = view.clone().view(like.dtype).view(like.shape)  # aligned
            parts[kind] = view
        if module.type is None:
            return parts["weight"]
        weight = Weight(module.type, (n, k), **parts)
        try:
            weight.check(module.name)
        except InvalidArgument as error:
            raise CheckpointError(str(error)) from error
        return weight.of_single_rows() if self.splits(module.type) else weight

    def input_scale(self, layer: nn.Module, part: int) -> float | None:
        """The static scale of x that was loaded of one part; None where the files have none.

        Raises:
            CheckpointError: it is not positive and finite.
        """
        view = self._of_x(layer, part, "input_scale")
        if view is None:
            return None
        check_input_scale(view, self.module(part).name)
        return float(view)

    def pre_scale(self, layer: nn.Module, part: int) -> Tensor | None:
        """The numbers [k] of this rank's columns of x that were loaded of one part; None where the
        files have none.

        Raises:
            CheckpointError: one is not finite.
        """
        view = self._of_x(layer, part, "pre_scale")
        if view is not None:
            check_pre_scale(view, self.columns.count, self.module(part).name)
        return view

    def _of_x(self, layer: nn.Module, part: int, wanted: str) -> Tensor | None:
        for name, kind in self.module(part).tensors.items():
            if kind == wanted:
                view = self.view(getattr(layer, name), name, part)
                assert view is not None
                return view if view.dtype == torch.float32 else view.clone().view(torch.float32)
        return None


def load(param: Tensor, loaded_weight: Tensor, shard_id: object = None) -> None:
    """The ``weight_loader`` of a parameter of a :class:`Room`."""
    room: Room = param.ladder_room
    room.load(param, param.ladder_name, loaded_weight, shard_id)
