# SPDX-License-Identifier: Apache-2.0
"""The product of gate and up, which gated layers have between their two products."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from ladder.errors import InvalidArgument

#: Functions of the gate, by the names of transformers' ``hidden_act``.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "linear": lambda x: x,
    "mish": functional.mish,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "tanh": torch.tanh,
}
#: Functions of torch that compute one of these of their first argument, by the others, and ask
#: ``__torch_function__`` first: functional.tanh and functional.sigmoid do not.
FUNCTIONS = (
    functional.gelu, functional.mish, functional.relu, functional.silu,
    torch.relu, torch.sigmoid, torch.tanh,
)  # fmt: skip
#: gpt-oss: gate * sigmoid(alpha * gate) * (up + 1).
SWIGLU_OAI = "swigluoai"
#: Rows of the gate, and of up, that lie side by side in weights of both (csrc/expr/gating.h).
ROWS_IN_TURN = 8


@dataclass(frozen=True)
class Gating:
    """``activation(gate) * up`` of the two halves of the first product, or gpt-oss's form of it.

    Attributes:
        activation: a name of :data:`ACTIVATIONS`, or "swigluoai".
        limit: the gate is clamped to at most ``limit`` and up to [-limit, limit] first; None: as
            they are.
        alpha: read by "swigluoai" alone.
    Raises:
        InvalidArgument: another activation, a limit that is not positive, or an alpha that is no
            number.
    """

    activation: str = "silu"
    limit: float | None = None
    alpha: float = 1.702
    #: Rows of the weight for each column of y.
    rows = 2

    def __post_init__(self) -> None:
        if self.activation not in (*ACTIVATIONS, SWIGLU_OAI):
            known = ", ".join((*ACTIVATIONS, SWIGLU_OAI))
            raise InvalidArgument(f'activation is "{self.activation}", not one of {known}')
        if not isinstance(self.alpha, (int, float)):
            raise InvalidArgument(f"alpha is {self.alpha!r}, not a number")
        if self.limit is None:
            return
        if not isinstance(self.limit, (int, float)) or not self.limit > 0:
            raise InvalidArgument(f"limit is {self.limit!r}, not positive")

    @property
    def least_limit(self) -> float:
        """The limit, infinite where there is none."""
        return math.inf if self.limit is None else self.limit

    def __call__(self, gate_up: Tensor) -> Tensor:
        """[..., 2I], the I columns of the gate first, to [..., I] in the same dtype."""
        return self.product(*gate_up.chunk(2, -1))

    def of_sums(self, sums: Tensor) -> Tensor:
        """The same of columns that alternate, eight of the gate and eight of up."""
        gate, up = sums.unflatten(-1, (-1, 2, ROWS_IN_TURN)).unbind(-2)
        return self.product(gate.flatten(-2), up.flatten(-2))

    def product(self, gate: Tensor, up: Tensor) -> Tensor:
        """Of the gate and of up, [..., I] each, in their dtype."""
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        if self.activation == SWIGLU_OAI:
            return gate * torch.sigmoid(gate * self.alpha) * (up + 1)
        return ACTIVATIONS[self.activation](gate) * up

    def __str__(self) -> str:
        text = f"activation={self.activation}"
        if self.limit is not None:
            text += f", limit={self.limit:g}"
        return text + (f", alpha={self.alpha:g}" if self.activation == SWIGLU_OAI else "")


@dataclass(frozen=True)
class Activation:
    """An activation function of a layer's sums.

    Attributes:
        name: of :data:`ACTIVATIONS`, and not "linear", which is none.
    Raises:
        InvalidArgument: another name.
    """

    name: str
    #: Rows of the weight for each column of y.
    rows = 1

    def __post_init__(self) -> None:
        if self.name not in ACTIVATIONS or self.name == "linear":
            known = ", ".join(name for name in ACTIVATIONS if name != "linear")
            raise InvalidArgument(f'activation is "{self.name}", not one of {known}')

    def of_sums(self, sums: Tensor) -> Tensor:
        """Of any shape, in their dtype."""
        return ACTIVATIONS[self.name](sums)

    def __str__(self) -> str:
        return f"activation={self.name}"


def recognised(
    product: Callable[[Tensor], Tensor],
    limit: float | None = None,
    alpha: float | None = None,
    columns: int = 32,
) -> Gating | None:
    """The gating that gives what ``product`` gives; None where ladder has none.

    Args:
        product: of numbers [R, 2I] in float64, the gate first, to [R, I]. What it raises goes on.
        limit, alpha: what a limit or alpha would be, where it has one.
        columns: I.
    """
    gate_up = _numbers(limit, columns)
    with torch.no_grad():
        wanted = product(gate_up.clone())  # which may write into its argument
    for gating in _candidates(limit, alpha):
        made = gating(gate_up)
        # Formulas of one function differ by roundings; any two functions by much more.
        if made.shape == wanted.shape and torch.allclose(made, wanted.double(), 1e-6, 1e-6):
            return gating
    return None


def recognised_activation(function: Callable[[Tensor], Tensor]) -> str | None:
    """The name in :data:`ACTIVATIONS` of what gives what ``function`` gives of numbers [R, I] in
    float64; None where there is none. What it raises goes on."""

    def product(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return function(gate) * up

    found = recognised(product)
    return None if found is None else found.activation


def _numbers(limit: float | None, columns: int) -> Tensor:
    """[R, 2I] to try functions with: a gate and an up for each of 256 columns or more."""
    drawn = -(-max(256, columns) // columns) * columns - 4 * 32
    at = torch.arange(64 * -(-drawn // 32), dtype=torch.float64, device="cpu")
    # Numbers of both signs, at all distances and beyond the limit, no two of a kind.
    reach = 2 * max(limit or 0.0, 8.0)
    gate, up = (reach * torch.sin(at * at * 0.37) * (at % 16 + 1) / 16).view(-1, 2, 32).unbind(1)
    # And of all sizes, for functions that differ near zero or far from it, as thresholds do.
    size = torch.logspace(-8, 2.7, 32, dtype=torch.float64, device="cpu")
    one = torch.ones_like(size)
    gate = torch.cat((gate.flatten()[:drawn], size, -size, one, one)).view(-1, columns)
    up = torch.cat((up.flatten()[:drawn], one, one, size, -size)).view(-1, columns)
    return torch.cat((gate, up), -1)


def _candidates(limit: float | None, alpha: float | None) -> Iterator[Gating]:
    for clamp in dict.fromkeys((None, limit)):
        for activation in ACTIVATIONS:
            yield Gating(activation, clamp)
        if alpha is not None:
            yield Gating(SWIGLU_OAI, clamp, alpha)
