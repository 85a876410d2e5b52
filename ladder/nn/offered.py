# SPDX-License-Identifier: Apache-2.0
"""Activation types as folders ask for them: taken where there are kernels, and not an error
elsewhere.

A folder is loaded on any device, so what it says of activations is an offer. What a program sets
(``activation_type``, :func:`ladder.set_activation_type`) is a demand, and raises Unsupported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

_log = logging.getLogger("ladder")


class TakesActivations(nn.Module):
    """A packed module with an ``activation_type``, whose setter forgets what was offered."""

    _offered_activation_type: str | None = None

    def activation_objection(self, wanted: str | None) -> str:
        """Why the weights take no such activations; "" when they do."""
        raise NotImplementedError

    def call_objection(self, wanted: str | None) -> str:
        """Why calls with such activations raise Unsupported where this module now is, although
        there is no :meth:`activation_objection`; "" when they do not."""
        raise NotImplementedError

    def _change_activation_type(self, wanted: str | None) -> None:
        raise NotImplementedError

    def offer_activation_type(self, wanted: str | None) -> str:
        """Have x rounded to ``wanted`` on devices that have kernels for it with these weights, and
        taken as it comes on others. The choice is made anew whenever the module is moved, until
        ``activation_type`` is set.

        Returns:
            Why x is taken as it comes here; "" when it is rounded.
        Raises:
            InvalidArgument: an unknown ``wanted``.
        """
        why = self.activation_objection(wanted) or self.call_objection(wanted)
        self._offered_activation_type = wanted
        self._change_activation_type(None if why else wanted)
        return why

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        moved = super()._apply(fn, recurse)
        if self._offered_activation_type is not None:
            self.offer_activation_type(self._offered_activation_type)
        return moved


def wish_of(module: Any) -> str | None:
    """What the x of ``module`` is to be rounded to, on devices that have kernels for it."""
    offered: str | None = module._offered_activation_type
    wanted: str | None = module.activation_type
    return wanted if offered is None else offered


def offer_activation_types(
    model: nn.Module, wanted: Callable[[str], str | None]
) -> dict[str, list[str]]:
    """:meth:`TakesActivations.offer_activation_type` of every packed module of ``model``. The log
    has a warning for each reason why modules take x as it comes.

    Args:
        wanted: the activation type that is offered to a module, by its name.
    Returns:
        For each reason the names of those modules.
    """
    left: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        offers = isinstance(module, TakesActivations)
        if offers and (why := module.offer_activation_type(wanted(name))):
            left.setdefault(why, []).append(name)
    say_left(left)
    return left


def say_left(left: Mapping[str, Sequence[str]]) -> None:
    """Log each reason why modules take activations as they come, and the first of these."""
    for why, names in left.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        _log.warning("%s%s: activations are taken as they come, not rounded: %s",
                     names[0], more, why)  # fmt: skip
