# SPDX-License-Identifier: Apache-2.0
"""The blocks of a model, and the order in which they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import nn

from ladder.nn.calibration.calls import Call
from ladder.nn.calibration.hessians import Layer


def blocks_of(model: nn.Module, layers: Iterable[Layer]) -> dict[nn.Module, list[Layer]]:
    """The members of outermost lists of modules that hold layers, with the layers that are in each
    of them alone."""
    lists: dict[nn.ModuleList, None] = {}
    found: dict[nn.Module, list[Layer]] = {}
    for layer in layers:
        of = {block_of(model, name) for name in layer.names}
        if len(of) == 1 and (place := of.pop()) is not None:
            lists[place[0]] = None
            found.setdefault(place[1], []).append(layer)
    return {block: found.get(block, []) for each in lists for block in each}


def block_of(model: nn.Module, name: str) -> tuple[nn.ModuleList, nn.Module] | None:
    """The outermost list of modules that holds the module ``name``, and the member that does."""
    parent = model
    for part in name.split(".")[:-1]:
        child = parent.get_submodule(part)
        if isinstance(parent, nn.ModuleList):
            return parent, child
        parent = child
    return None


def order_of(
    model: nn.Module, blocks: Sequence[nn.Module], calls: Sequence[Call]
) -> tuple[list[nn.Module], set[nn.Module]]:
    """The blocks that run, in that order, but those that a call runs more than once; and those."""
    counts: dict[nn.Module, int] = {}
    often: set[nn.Module] = set()
    for call in calls:
        ran: list[nn.Module] = []
        note = partial(_note, ran)
        with ExitStack() as stack:
            for block in blocks:
                stack.callback(block.register_forward_pre_hook(note).remove)
            call(model)
        often |= {block for block in ran if ran.count(block) > 1}
        counts |= dict.fromkeys(ran, 1)
        if len(counts) == len(blocks):
            break
    return [block for block in counts if block not in often], often


def _note(ran: list[nn.Module], module: nn.Module, args: Any) -> None:
    ran.append(module)
