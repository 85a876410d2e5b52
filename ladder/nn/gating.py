# SPDX-License-Identifier: Apache-2.0
"""What an expert computes between its two products."""

from __future__ import annotations

import math
from collections.abc import Callable
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
#: gpt-oss: gate * sigmoid(alpha * gate) * (up + 1).
SWIGLU_OAI = "swigluoai"


@dataclass(frozen=True)
class Gating:
    """``activation(gate) * up`` of the two halves of the first product, or gpt-oss's form of it.

    Attributes:
        activation: a name of :data:`ACTIVATIONS`, or "swigluoai".
        limit: the gate is clamped to at most ``limit`` and up to [-limit, limit] first; None: as
            they are.
        alpha: read by "swigluoai" alone.
    Raises:
        InvalidArgument: another activation, or a limit that is not positive.
    """

    activation: str = "silu"
    limit: float | None = None
    alpha: float = 1.702

    def __post_init__(self) -> None:
        if self.activation not in (*ACTIVATIONS, SWIGLU_OAI):
            known = ", ".join((*ACTIVATIONS, SWIGLU_OAI))
            raise InvalidArgument(f'activation is "{self.activation}", not one of {known}')
        if self.limit is not None and not self.limit > 0:
            raise InvalidArgument(f"limit is {self.limit}, not positive")

    @property
    def least_limit(self) -> float:
        """The limit, infinite where there is none."""
        return math.inf if self.limit is None else self.limit

    def __call__(self, gate_up: Tensor) -> Tensor:
        """[..., 2I], the I columns of the gate first, to [..., I] in the same dtype."""
        gate, up = gate_up.chunk(2, -1)
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
