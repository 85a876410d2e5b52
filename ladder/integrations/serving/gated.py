# SPDX-License-Identifier: Apache-2.0
"""Which layers of an engine give gate and up to an activation product, and to nothing else.

Kernels of such a layer can end with the product (:class:`ladder.ops.gating.Gating`), so that the
sums of gate and up never reach memory. That nothing else reads the sums follows from the source of
the module that holds the layer, on every path of its forward; that the activation is a product
that kernels have follows from what it gives for some hundred numbers. No class is known by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ladder.errors import InvalidArgument
from ladder.nn.quick_call import watched
from ladder.nn.sole_reader import sole_reader
from ladder.ops.gating import Gating, recognised


@dataclass(frozen=True)
class Product:
    """What follows a layer of gate and up: the child ``activation`` of the module that holds it,
    which computes ``gating``."""

    activation: str
    gating: Gating


def product_after(
    parent: nn.Module, name: str, pair: bool, appliers: tuple[str, ...] = ()
) -> Product | str:
    """What takes the result of the child ``name`` of ``parent``, or why it is no product alone.

    Args:
        pair: the layer returns its result and a bias, not the result alone.
        appliers: as of :func:`sole_reader`.
    """
    if "forward" in vars(parent):
        return "something has replaced the forward of the module that holds it"
    found = sole_reader(type(parent), name, pair, appliers)
    if found.why:
        return found.why
    activation = parent._modules.get(found.reader)
    if activation is None:
        return f"{type(parent).__name__} has no module {found.reader}"
    if any(watched(parent.get_submodule(child)) for child in (name, found.reader)):
        return f"a hook watches {name} or {found.reader}, or something has replaced its forward"
    gating = gating_of(activation)
    return gating if isinstance(gating, str) else Product(found.reader, gating)


def gating_of(activation: nn.Module) -> Gating | str:
    """The product that ``activation`` computes of [..., 2I], the gate in front of up, or why it is
    none. Engines compute the same by kernels of their own; ``forward_native`` says it in torch."""
    kind = type(activation).__name__
    if any(True for _ in (*activation.parameters(), *activation.buffers())):
        return f"{kind} has numbers of its own"
    compute = getattr(activation, "forward_native", activation.forward)
    limit = getattr(activation, "swiglu_limit", getattr(activation, "limit", None))
    alpha = getattr(activation, "alpha", None)
    try:
        gating = recognised(compute, *(_number(each) for each in (limit, alpha)))
    except Exception as error:
        return f"{kind} cannot be tried: {type(error).__name__}: {error}"
    return gating or f"{kind} is no product of gate and up that kernels have"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


class FusedActivation(nn.Module):
    """Stands for an activation whose product kernels have computed already.

    Args:
        theirs: the activation, for whoever calls it with both halves.
        columns: of the product.
    """

    def __init__(self, theirs: nn.Module, columns: int) -> None:
        super().__init__()
        self.theirs, self.columns = theirs, columns

    def forward(self, x: Tensor) -> Tensor:
        """[..., columns], as it is; [..., 2 * columns] to [..., columns] by the activation.

        Raises:
            InvalidArgument: any other number of columns.
        """
        given = x.shape[-1]
        if given == self.columns:
            return x
        if given != 2 * self.columns:
            raise InvalidArgument(
                f"x has {given} columns, neither {self.columns}, a product of gate and up, nor "
                f"{2 * self.columns}, both"
            )
        y: Tensor = self.theirs(x)
        return y

    def extra_repr(self) -> str:
        return f"columns={self.columns}"
