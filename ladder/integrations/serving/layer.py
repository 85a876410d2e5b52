# SPDX-License-Identifier: Apache-2.0
"""From loaded tensors to what a layer of an engine is called with."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from ladder import ops  # noqa: F401  (registers torch.ops.ladder)
from ladder.cuda.epilogue import in_turn
from ladder.cuda.linear import linear_prepacked
from ladder.errors import CheckpointError
from ladder.integrations.serving.loading import Room
from ladder.nn.gated import GatedLinear
from ladder.nn.linear import Linear
from ladder.nn.pre_scale import scaled, told
from ladder.ops.activations import format_of_x
from ladder.ops.gating import Gating
from ladder.types import parse
from ladder.weight import (
    PARTS,
    Weight,
    in_order,
    join,
    join_objection,
    parts_of_rows,
    with_alike_second_scales,
)

_log = logging.getLogger("ladder")
_ops = torch.ops.ladder


@dataclass(frozen=True)
class Run:
    """Rows of a layer that one op multiplies. Its tensors are parameters of the layer called
    ``<part><suffix>``."""

    kind: str  #: "prepacked" (an image), "canonical" or "dense"
    type: str  #: spelling of the tType; "" for dense rows
    n: int  #: columns of y
    suffix: str
    parts: tuple[str, ...]
    dependent_launch: bool = False  #: of an image: as :attr:`ladder.Linear.dependent_launch`
    activation_type: str = ""  #: as :attr:`ladder.Linear.activation_type`; "" for none
    static: bool = False  #: of an image: x has the scale ``input_scale<suffix>``
    scaled: bool = False  #: columns of x are multiplied by ``pre_scale<suffix>`` first
    #: Rows are a gate's and up's, and y is this product of theirs. With an image a bias is in turn.
    gating: Gating | None = None

    def __call__(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.scaled:
            x = scaled(x, getattr(layer, f"pre_scale{self.suffix}"))
        if self.kind == "prepacked":
            image = getattr(layer, f"qweight{self.suffix}")
            scale = getattr(layer, f"input_scale{self.suffix}") if self.static else None
            how = self.dependent_launch, self.activation_type, scale
            if self.gating is None:
                return linear_prepacked(x, image, bias, self.type, self.n, *how)
            gate = self.gating.activation, self.gating.least_limit, self.gating.alpha
            return linear_prepacked(x, image, bias, self.type, self.n, *how, *gate)
        if self.kind == "dense":
            return nn.functional.linear(x, getattr(layer, f"weight{self.suffix}"), bias)
        parts = [
            getattr(layer, f"{part}{self.suffix}") if part in self.parts else None for part in PARTS
        ]
        op = f"linear_{format_of_x(self.activation_type)}" if self.activation_type else "linear"
        y: Tensor = getattr(_ops, op)(x, *parts, bias, self.type)
        return y if self.gating is None else self.gating(y)


def multiply(runs: tuple[Run, ...], layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
    """``y = x @ w.T + bias`` for the rows of all ``runs``, side by side."""
    if len(runs) == 1:
        return runs[0](layer, x, bias)
    y = torch.cat([run(layer, x, None) for run in runs], -1)
    return y if bias is None else y + bias


def finish(
    room: Room,
    layer: nn.Module,
    dtype: torch.dtype,
    *,
    prepack: bool = True,
    before: tuple[Run, ...] = (),
    warm: Callable[[Linear], None] = lambda module: None,
    rounds: bool = True,
    gating: Gating | None = None,
) -> tuple[Run, ...]:
    """Replace the parameters that ``room`` made on ``layer`` by those that kernels read.

    Rows of equal types, activation types, static scales of x and order of columns become one run;
    second scales of whole tensors that differ become those of rows. The canonical codes are let go
    as soon as there is an image: peak memory is that of one layer more.

    Args:
        dtype: of activations.
        prepack: make images where the device has kernels for the type.
        before: runs of the load before, whose graphs may be kept: the new ones must equal them.
        warm: called with the module of each image, whose kernels it compiles and tunes, and whose
            ``dependent_launch`` it may set.
        rounds: whether x is rounded as the files say where there are kernels for it.
        gating: what is wanted of a layer whose two parts are a gate and up, of a multiple of 8 rows
            each: their product, where they are one run.
    Raises:
        CheckpointError: tensors that were not loaded, by name; values that no weight has; other
            runs than ``before``.
    """
    if missing := room.missing():
        raise CheckpointError(
            f"{room.prefix}: {', '.join(missing)} was not loaded: it is missing in the files"
        )
    room.loaded.clear()
    parts = range(len(room.rows))
    weights = [room.weight(layer, part) for part in parts]
    wanted = [_wish(room, layer, part) if rounds else Wish() for part in parts]
    settled = [_settled(w) if isinstance(w, Weight) else w for w in weights]
    groups = _groups(_with_alike_second_scales(settled, wanted), wanted)
    for name in room.names():
        delattr(layer, name)
    del weights
    if len(groups) > 1:
        gating = None
    runs: list[Run] = []
    while groups:
        rows, wish = groups.pop(0)
        suffix = f"_{len(runs)}" if runs else ""
        run, tensors = _run(rows, suffix, dtype, prepack, warm, wish, gating)
        _check_reload(room, before, run, len(runs))
        runs.append(run)
        for part, tensor in tensors.items():
            layer.register_parameter(f"{part}{suffix}", nn.Parameter(tensor, requires_grad=False))
    if before and len(before) != len(runs):
        _check_reload(room, before, None, len(runs))
    bias = getattr(layer, "bias", None)
    if bias is not None and runs[0].gating is not None and runs[0].kind == "prepacked":
        bias.data.copy_(in_turn(bias.data))
    return tuple(runs)


def _check_reload(room: Room, before: tuple[Run, ...], run: Run | None, at: int) -> None:
    """Raise CheckpointError where the files are those of other launches than they first were:
    graphs call the first."""
    was = before[at] if at < len(before) else None
    if before and was != run:
        raise CheckpointError(
            f"{room.prefix} was {was or 'not there'} when it was first loaded, and is "
            f"{run or 'not there'} now (launch {at}): start the engine anew"
        )


@dataclass(frozen=True)
class Wish:
    """What the files would have done to x; None for nothing."""

    activation_type: str | None = None  #: what it is rounded to
    input_scale: float | None = None  #: by which static scale
    #: What its columns are multiplied by first, and a word for it, equal where the numbers are.
    pre_scale: Tensor | None = field(default=None, compare=False)
    told: str = ""


def _wish(room: Room, layer: nn.Module, part: int) -> Wish:
    activation_type = room.module(part).activation_type
    scale = room.input_scale(layer, part) if activation_type else None
    pre_scale = room.pre_scale(layer, part)
    return Wish(activation_type, scale, pre_scale, told(pre_scale))


def _settled(weight: Weight) -> Weight:
    """Without what says nothing: zero points that are the midpoint, columns in their order."""
    ttype, parts = weight.type, weight.tensors()
    if ttype.zero == "integer" and bool((parts["zeros"] == 1 << (ttype.bits - 1)).all()):
        ttype = ttype.with_zero("midpoint")
        del parts["zeros"]
    if "g_idx" in parts and in_order(parts["g_idx"], ttype):
        del parts["g_idx"]
    return Weight(ttype, weight.shape, **parts)


def _with_alike_second_scales(
    weights: list[Weight | Tensor], wanted: list[Wish]
) -> list[Weight | Tensor]:
    """Parts of one type and wish whose second scales, of whole tensors, differ have them for each
    row instead: files that were quantised part by part are one launch, too."""
    alike: dict[tuple[str, Wish], list[int]] = {}
    for i, (each, wish) in enumerate(zip(weights, wanted, strict=True)):
        if isinstance(each, Weight):
            alike.setdefault((str(each.type), wish), []).append(i)
    out = list(weights)
    for places in alike.values():
        (found,) = with_alike_second_scales([[cast(Weight, weights[i]) for i in places]])
        for i, weight in zip(places, found, strict=True):
            out[i] = weight
    return out


def _groups(rows: list[Weight | Tensor], wanted: list[Wish]) -> list[tuple[list[Any], Wish]]:
    """Neighbours that one op can multiply: lists of Weights, and of dense tensors, each with what
    is wished of x."""
    groups: list[tuple[list[Any], Wish]] = []
    for each, wish in zip(rows, wanted, strict=True):
        last, before = (groups[-1][0][-1], groups[-1][1]) if groups else (None, None)
        if isinstance(each, Weight):
            fits = isinstance(last, Weight) and before == wish and _joinable(last, each)
        else:
            fits = isinstance(last, Tensor)
        if fits:
            groups[-1][0].append(each)
        else:
            groups.append(([each], wish))
    return groups


def _joinable(one: Weight, other: Weight) -> bool:
    same = one.type == other.type and one.shape[1] == other.shape[1]
    rows, parts = (one.shape[0], other.shape[0]), (one.tensors(), other.tensors())
    return same and not join_objection(one.type, rows, parts)


def _run(
    rows: list[Weight] | list[Tensor],
    suffix: str,
    dtype: torch.dtype,
    prepack: bool,
    warm: Callable[[Linear], None],
    wish: Wish,
    gating: Gating | None,
) -> tuple[Run, dict[str, Tensor]]:
    if isinstance(rows[0], Tensor):
        dense = torch.cat(rows) if len(rows) > 1 else rows[0].clone()
        return Run("dense", "", dense.shape[0], suffix, ("weight",)), {"weight": dense}
    weight = join(rows)
    rows.clear()
    return finish_weight(
        weight,
        dtype,
        suffix=suffix,
        prepack=prepack,
        warm=warm,
        activation_type=wish.activation_type,
        input_scale=wish.input_scale,
        pre_scale=wish.pre_scale,
        gating=gating,
    )


def finish_weight(
    weight: Weight,
    dtype: torch.dtype,
    *,
    suffix: str = "",
    prepack: bool = True,
    warm: Callable[[Linear], None] = lambda module: None,
    activation_type: str | None = None,
    input_scale: float | None = None,
    pre_scale: Tensor | None = None,
    gating: Gating | None = None,
) -> tuple[Run, dict[str, Tensor]]:
    """What multiplies by one weight, and the tensors that it needs, by part; as :func:`finish`.

    Args:
        activation_type: offered to the weight, see :mod:`ladder.nn.offered`. The log says once why
            x is taken as it comes.
        input_scale, pre_scale: as of :class:`ladder.Linear`.
        gating: the weight is that of a gate and, behind it, of up, whose product is wanted.
    """
    text, n = str(weight.type), weight.shape[0] // (1 if gating is None else 2)
    module = (Linear if gating is None else GatedLinear).from_weight(weight)
    if isinstance(module, GatedLinear) and gating is not None:
        module.gating = gating
    if why := module.offer_activation_type(activation_type):
        say_as_it_comes(why)
    rounded = module.activation_type or ""
    module.input_scale = input_scale if rounded else None
    of_x = {} if pre_scale is None else {"pre_scale": pre_scale.clone()}
    if prepack:
        module.dtype = dtype
        if module.prepare():
            assert module.image is not None
            warm(module)
            run = Run(
                "prepacked", text, n, suffix, ("qweight",), module.dependent_launch, rounded,
                module.input_scale is not None, bool(of_x), gating,
            )  # fmt: skip
            image = module.image if gating is None else module.image[None]
            tensors = {"qweight": image} | of_x
            if module.input_scale is not None:
                tensors["input_scale"] = module.input_scale
            return run, tensors
        if weight.qweight.is_cuda:
            _log.warning(
                "%s %s has no kernels on this GPU: torch decodes it in each call",
                text, list(weight.shape),
            )  # fmt: skip
    # Contiguous, and nothing else in their memory.
    tensors = {name: part.clone() for name, part in weight.tensors().items()}
    run = Run(
        "canonical", text, n, suffix, tuple(tensors), activation_type=rounded,
        scaled=bool(of_x), gating=gating,
    )  # fmt: skip
    return run, tensors | of_x


@functools.cache
def say_as_it_comes(why: str) -> None:
    """Say once why layers take activations as they come, although the folder would round them."""
    _log.warning("activations are taken as they come, not rounded: %s", why)


@dataclass(frozen=True)
class Lookup:
    """Rows of a canonical weight as values, decoded as they are asked for. A value without a tType,
    so that a compiler can trace the call."""

    run: Run
    k: int
    block: int  #: rows that share a scale; 0: all
    second: bool  #: rows have a second scale of their own
    type: str  #: of single rows, each with its scale
    dtype: torch.dtype

    @classmethod
    def of(cls, run: Run, k: int, dtype: torch.dtype) -> Lookup:
        ttype = parse(run.type)
        block, second = ttype.rows, "scale2" in parts_of_rows(ttype)
        of_rows = run.type if block < 2 else str(ttype.of_single_rows())
        return cls(run, k, block, second, of_rows, dtype)

    def __call__(self, layer: nn.Module, ids: Tensor) -> Tensor:
        """[*ids.shape, k]."""
        rows = ids.reshape(-1)
        taken: dict[str, Tensor] = {}
        for part in self.run.parts:
            whole = getattr(layer, f"{part}{self.run.suffix}")
            if part == "qweight" or (part == "scale2" and self.second):
                taken[part] = whole[rows]
            elif part in ("scales", "zeros") and self.block:
                taken[part] = whole[rows // self.block]
            else:
                taken[part] = whole
        values = _ops.dequantize(*(taken.get(part) for part in PARTS), self.type, self.k)
        return values.to(self.dtype).view(*ids.shape, self.k)
