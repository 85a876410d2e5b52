# SPDX-License-Identifier: Apache-2.0
"""Whole models in memory: every ``nn.Linear`` to a :class:`ladder.Linear`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from torch import nn

from ladder.errors import InvalidArgument
from ladder.nn.linear import Linear
from ladder.types import TType

#: Modules left alone by default, whether a model has them or not.
SKIPPED = ("lm_head",)


def convert(
    model: nn.Module,
    weight_type: str | TType = "uint4",
    group_size: int | None = None,
    symmetric: bool | None = None,
    *,
    skip: Iterable[str] = SKIPPED,
    method: str = "search",
    progress: Callable[[str, int, int], None] | None = None,
) -> nn.Module:
    """Replace every ``nn.Linear`` of ``model`` by a :class:`Linear`, in place.

    Args:
        weight_type, group_size, symmetric, method: as :func:`ladder.quantize`.
        skip: names of modules to leave as they are, or one: a whole dotted name, its last part, or
            a prefix of whole parts ("model.layers.0"). Each but "lm_head" must name one.
        progress: called with (name, index, count) before each layer.
    Returns:
        ``model``.
    Raises:
        InvalidArgument: an entry of ``skip`` that names no Linear; or a weight that cannot be
            quantised, naming its module. Modules before it have been replaced; the model computes
            the same function of what it then holds.
    """
    kept = (skip,) if isinstance(skip, str) else tuple(skip)
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    check_skip(kept, linears, "the model")
    names = [name for name in linears if not is_skipped(name, kept)]
    for index, name in enumerate(names):
        if progress is not None:
            progress(name, index, len(names))
        linear = cast(nn.Linear, model.get_submodule(name))
        try:
            packed = Linear.from_linear(linear, weight_type, group_size, symmetric, method=method)
        except InvalidArgument as error:
            raise InvalidArgument(f"{name}: {error}") from None
        if name == "":
            raise InvalidArgument("model is a Linear itself: use ladder.Linear.from_linear")
        model.set_submodule(name, packed)
    return model


def check_skip(skip: tuple[str, ...], linears: Sequence[str], where: str) -> None:
    """Raise InvalidArgument unless each entry of ``skip`` but :data:`SKIPPED` names one of the
    modules ``linears`` of ``where``."""
    for entry in skip:
        if entry not in SKIPPED and not any(is_skipped(name, (entry,)) for name in linears):
            raise InvalidArgument(
                f'skip has "{entry}", which names none of the {len(linears)} Linear modules of '
                f"{where}, such as {', '.join(linears[:1])}"
            )


def is_skipped(name: str, skip: tuple[str, ...]) -> bool:
    """Whether an entry of ``skip`` is the name of a module, its last part, or what holds it."""
    last = name.rpartition(".")[2]
    return any(name == s or last == s or name.startswith(s + ".") for s in skip)
