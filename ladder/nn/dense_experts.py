# SPDX-License-Identifier: Apache-2.0
"""Experts as transformers keeps them: two parameters of three dimensions, in one of four layouts.

transformers' decorator ``use_experts_implementation`` says what such a module computes: attributes
of the module name the layout and the biases, ``_apply_gate`` is what lies between the two products,
and every implementation that users can choose computes just that. So no class is known by name
here: shapes give the layout, and ``_apply_gate`` is called with a few numbers to see which function
it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ladder.ops.gating import Gating, recognised

#: Parameters of the two stacks, and their biases, in transformers' modules.
GATE_UP, DOWN = "gate_up_proj", "down_proj"
GATE_UP_BIAS, DOWN_BIAS = "gate_up_proj_bias", "down_proj_bias"
#: What packed experts call the two stacks. Not as the parameters, because transformers merges and
#: splits whatever has a parameter's name in its own.
STACKS = {GATE_UP: "gate_up", DOWN: "down"}
#: The module in which the decorator is; it may be imported or not.
_CONTRACT = "transformers.integrations.moe"
_LIMITS, _ALPHAS = ("limit", "swiglu_limit"), ("alpha", "swiglu_alpha")


@dataclass(frozen=True)
class Layout:
    """How a module keeps what :class:`ladder.Experts` has as [E, 2I, H] and [E, H, I].

    Attributes:
        shape: (E, H, I).
        transposed: both parameters have their last two dimensions exchanged.
        interleaved: row 2i of the first stack is row i of the gate, row 2i + 1 that of up.
        bias: whether both stacks have a bias.
        gating: what lies between the products.
    """

    shape: tuple[int, int, int]
    transposed: bool
    interleaved: bool
    bias: bool
    gating: Gating

    def dense_shape(self, name: str) -> tuple[int, int, int]:
        """Of parameter ``name``."""
        e, h, i = self.shape
        n, k = (2 * i, h) if name == GATE_UP else (h, i)
        return (e, k, n) if self.transposed else (e, n, k)

    def rows(self, name: str, dense: Tensor) -> Tensor:
        """The weight [N, K] of one expert, the gate's rows first, of its part of parameter
        ``name``."""
        weight = dense.transpose(-2, -1) if self.transposed else dense
        return self.gate_first(weight, -2) if name == GATE_UP else weight

    def gate_first(self, tensor: Tensor, dimension: int) -> Tensor:
        """``tensor``, whose ``dimension`` is the 2I rows of the first stack, gate first."""
        if not self.interleaved:
            return tensor
        pairs = tensor.unflatten(dimension, (-1, 2))
        return torch.cat(pairs.unbind(dimension), dimension)

    def as_dense(self, name: str, tensor: Tensor) -> Tensor:
        """A stack [E, N, K] or bias [E, N] as the module keeps parameter ``name``."""
        dimension = 1
        if self.interleaved and name in (GATE_UP, GATE_UP_BIAS):
            tensor = torch.stack(tensor.chunk(2, dimension), dimension + 1).flatten(1, 2)
        if self.transposed and name in (GATE_UP, DOWN):
            tensor = tensor.transpose(1, 2)
        return tensor.contiguous()


def has_stacks(module: nn.Module) -> bool:
    """Whether ``module`` has the two parameters of three dimensions."""
    stacks = (module._parameters.get(name) for name in (GATE_UP, DOWN))
    return all(stack is not None and stack.dim() == 3 for stack in stacks)


def layout_of(module: nn.Module) -> Layout | str:
    """The layout of a module that :func:`has_stacks`, or why ladder cannot know what it computes.
    Reads no weight."""
    names = {name for name, parameter in module.named_parameters() if parameter is not None}
    bias = {GATE_UP_BIAS, DOWN_BIAS} <= names
    more = names - {GATE_UP, DOWN} - ({GATE_UP_BIAS, DOWN_BIAS} if bias else set())
    more |= {name for name, _ in module.named_buffers()}
    if more:
        return f"{type(module).__name__} has {', '.join(sorted(more))} as well"
    forward: Any = type(module).forward
    if getattr(forward, "__globals__", {}).get("__name__") != _CONTRACT:
        return f"{type(module).__name__} does not say what it computes as transformers' experts do"
    if not getattr(module, "has_gate", True) or getattr(module, "has_post_expert_norm", False):
        return f"{type(module).__name__} has no gate, or norms after its experts"
    (e, *first), (other, *second) = (module._parameters[name].shape for name in (GATE_UP, DOWN))  # type: ignore[union-attr]
    if e != other:
        return f"{GATE_UP} has {e} experts and {DOWN} {other}"
    if first == [2 * second[1], second[0]]:
        transposed, (h, i) = False, second
    elif first == [second[1], 2 * second[0]]:
        transposed, (i, h) = True, second
    else:
        return f"{GATE_UP} is {[e, *first]} and {DOWN} {[e, *second]}, no two products in a row"
    found = _gating(module)
    if isinstance(found, str):
        return found
    return Layout((e, h, i), transposed, found[0], bias, found[1])


def _gating(module: Any) -> tuple[bool, Gating] | str:
    """Whether gate and up are interleaved, and the function, by what ``_apply_gate`` gives."""
    limit, alpha = _number(module, _LIMITS), _number(module, _ALPHAS)

    def interleaved(gate_up: Tensor) -> Tensor:
        return module._apply_gate(torch.stack(gate_up.chunk(2, -1), -1).flatten(-2))

    try:
        for product in (module._apply_gate, interleaved):
            if gating := recognised(product, limit, alpha):
                return product is interleaved, gating
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        return f"the function between its products cannot be called: {error}"
    return "the function between its products is none that ladder knows"


def _number(module: nn.Module, names: tuple[str, ...]) -> float | None:
    """A positive number that is an attribute of ``module`` under one of ``names``."""
    found = (getattr(module, name, None) for name in names)
    return next((float(v) for v in found if isinstance(v, (int, float)) and v > 0), None)


def shell_of(module: nn.Module) -> nn.Module:
    """``module`` without its weights: the same class and attributes, parameters on the meta device,
    no hooks. What a dense module is made of again."""
    shell: nn.Module = type(module).__new__(type(module))
    shell.__dict__.update(module.__dict__)
    fresh = nn.Module().__dict__
    shell.__dict__.update({key: value for key, value in fresh.items() if "hook" in key})
    for of_accelerate in ("_hf_hook", "_old_forward", "forward"):
        shell.__dict__.pop(of_accelerate, None)
    shell._parameters = {
        name: None if p is None else nn.Parameter(torch.empty_like(p, device="meta"), False)
        for name, p in module._parameters.items()
    }
    return shell
