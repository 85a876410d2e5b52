# SPDX-License-Identifier: Apache-2.0
"""Which modules of a model are experts that can be packed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from ladder.nn.dense_experts import DOWN, STACKS, Layout, has_stacks, layout_of

#: Why a parameter of three dimensions stays dense.
NOT_PACKED = "experts in one parameter of three dimensions, which ladder does not pack yet"


@dataclass(frozen=True)
class FoundExperts:
    """Experts in parameters of three dimensions that can be packed; all ``names`` are of this one
    module."""

    names: tuple[str, ...]
    module: nn.Module
    layout: Layout

    @property
    def name(self) -> str:
        return self.names[0]

    def stacks(self) -> dict[str, tuple[str, int]]:
        """For each parameter that is packed, the name of its stack and how many weights it has."""
        e, h, i = self.layout.shape
        return {
            parameter: (f"{self.name}.{stack}", e * h * i * (1 if parameter == DOWN else 2))
            for parameter, stack in STACKS.items()
        }


def mixtures(model: nn.Module) -> dict[str, nn.Module]:
    """Every module with dense experts in parameters of three dimensions that
    :class:`ladder.Experts` can be in place of, by its first name."""
    return {
        name: module
        for name, module in model.named_modules()
        if has_stacks(module) and isinstance(layout_of(module), Layout)
    }


def stack_names(modules: Iterable[str]) -> list[str]:
    """What the stacks of packed experts of these names are called."""
    return [f"{name}.{stack}" for name in modules for stack in STACKS.values()]
