# SPDX-License-Identifier: Apache-2.0
"""Modules that hold the packed weights of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.arguments import check_integers
from ladder.nn.dense_experts import (
    DOWN,
    DOWN_BIAS,
    GATE_UP,
    GATE_UP_BIAS,
    STACKS,
    Layout,
    has_stacks,
    layout_of,
    shell_of,
)
from ladder.nn.metadata import WeightMetadata
from ladder.nn.offered import TakesActivations
from ladder.nn.quick_call import Unscriptable
from ladder.nn.stack import PackedStack
from ladder.ops import activations
from ladder.ops.gating import Gating
from ladder.quantization import quantize, weights_of
from ladder.types import TType, with_defaults

if TYPE_CHECKING:
    from typing_extensions import Self


class PackedExperts(TakesActivations, Unscriptable):
    """Two stacks of packed weights, ``gate_up`` and ``down``, and how the module that they are in
    place of keeps its own. :class:`ladder.Experts` has the arguments."""

    gate_up: PackedStack
    down: PackedStack

    _instead = "script the dense module, Experts.dense()"

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        down_type: str | TType | None = None,
        activation: str = "silu",
        limit: float | None = None,
        alpha: float = 1.702,
        activation_type: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_integers(
            num_experts=num_experts, hidden_size=hidden_size, intermediate_size=intermediate_size
        )
        if min(num_experts, hidden_size, intermediate_size) < 1:
            raise InvalidArgument(
                f"num_experts is {num_experts}, hidden_size {hidden_size} and intermediate_size "
                f"{intermediate_size}, not all positive"
            )
        e, h, i = num_experts, hidden_size, intermediate_size
        self.num_experts, self.hidden_size, self.intermediate_size = e, h, i
        gating = Gating(activation, limit, alpha)
        first = with_defaults(weight_type, group_size=group_size, symmetric=symmetric)
        second = first
        if down_type is not None:
            second = with_defaults(down_type, group_size=group_size, symmetric=symmetric)
        self.gating = gating
        self.gate_up = PackedStack(e, 2 * i, h, first, bias, device=device, dtype=dtype)
        self.gate_up.gating = gating
        self.down = PackedStack(e, h, i, second, bias, device=device, dtype=dtype)
        # Of the module that this one replaces. Its shell is none of this module's children.
        self._layout = Layout((e, h, i), False, False, bias, gating)
        self.__dict__["_shell"] = None
        self.activation_type = activation_type

    @classmethod
    def in_place_of(
        cls,
        module: nn.Module,
        gate_up_type: str | TType,
        down_type: str | TType,
        *,
        activation_type: str | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Room for the weights of ``module``, an experts module of transformers, in full tTypes.

        Raises:
            InvalidArgument: ``module`` is something else, which the message explains.
        """
        kind = type(module).__name__
        layout: Layout | str = f"{kind} has no {GATE_UP} and {DOWN} of three dimensions"
        if has_stacks(module):
            layout = layout_of(module)
        if isinstance(layout, str):
            raise InvalidArgument(f"module is none of transformers' experts: {layout}")
        gating = layout.gating
        experts = cls(
            *layout.shape,
            layout.bias,
            gate_up_type,
            down_type=down_type,
            activation=gating.activation,
            limit=gating.limit,
            alpha=gating.alpha,
            activation_type=activation_type,
            device=device,
            dtype=module._parameters[GATE_UP].dtype,  # type: ignore[union-attr]
        )
        experts._layout = layout
        experts.__dict__["_shell"] = shell_of(module)
        experts.train(module.training)
        return experts

    def quantize_stack(self, name: str, dense: Tensor, *, method: str = "search") -> None:
        """Fill one stack with quantised weights.

        Args:
            name: "gate_up_proj" or "down_proj".
            dense: that parameter of the module that this one is in place of, in its layout; of the
                class's own stacks as they are.
            method: as :func:`ladder.quantize`.
        Raises:
            InvalidArgument: a weight that cannot be quantised, naming the stack and the expert.
        """
        stack: PackedStack = getattr(self, STACKS[name])
        wanted = self._layout.dense_shape(name)
        if tuple(dense.shape) != wanted:
            raise InvalidArgument(f"{name} has shape {list(dense.shape)}, not {list(wanted)}")

        def quantized(expert: int) -> Any:
            weight = self._layout.rows(name, dense[expert].detach())
            with weights_of(f"{name}[{expert}]"):
                return quantize(weight, stack.weight_type, method=method)

        stack.set_weights(quantized(expert) for expert in range(self.num_experts))

    def take_biases(self, module: nn.Module) -> None:
        """Take the biases of ``module``, which this one is in place of: its very parameters where
        their order is the same."""
        for name, stack in ((GATE_UP_BIAS, self.gate_up), (DOWN_BIAS, self.down)):
            bias = module._parameters.get(name)
            if bias is None:
                continue
            if name == GATE_UP_BIAS and self._layout.interleaved:
                bias = nn.Parameter(self._layout.gate_first(bias.detach(), -1), bias.requires_grad)
            set_bias(stack, bias)

    @property
    def activation_type(self) -> str | None:
        """What x is rounded to before both products: None, "int8", "float8_e4m3" or
        "float8_e4m3,fast_accum", as :attr:`ladder.Linear.activation_type` has them. On a GPU each
        token of a call of more than 64 is rounded once for all of its experts, and what comes out
        of the function between the products once for each of them. Setting it raises Unsupported
        for weights that it does not take, on the device where they are, naming the stack."""
        return self.gate_up.activation_type

    @activation_type.setter
    def activation_type(self, wanted: str | None) -> None:
        if why := self.activation_objection(wanted):
            raise Unsupported(why)
        self._offered_activation_type = None
        self._change_activation_type(wanted)

    def _change_activation_type(self, wanted: str | None) -> None:
        self.gate_up.activation_type = self.down.activation_type = wanted

    def activation_objection(self, wanted: str | None) -> str:
        """Why the weights take no such activations, on the device where they are; "" when they
        do. Raises InvalidArgument for names that ladder does not know."""
        for name in STACKS.values():
            stack: PackedStack = getattr(self, name)
            if why := stack.activation_objection(wanted):
                return f"{name}: {why}"
        return ""

    def call_objection(self, wanted: str | None) -> str:
        return "" if wanted is None else activations.device_objection(wanted, self.device.type)

    @property
    def dtype(self) -> torch.dtype:
        """Of the biases, and of the dense form."""
        return self.gate_up.dtype

    @property
    def device(self) -> torch.device:
        """Where the codes are."""
        return self.gate_up.device

    @property
    def gate_up_proj(self) -> Tensor:
        """Shape, dtype and device of that parameter of the module that this one is in place of, for
        code that asks for them. It has no elements, as :attr:`ladder.Linear.weight`."""
        return WeightMetadata(self._layout.dense_shape(GATE_UP), self.dtype, self.device)

    @property
    def down_proj(self) -> Tensor:
        """The same of the other parameter."""
        return WeightMetadata(self._layout.dense_shape(DOWN), self.dtype, self.device)

    def dequantize(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """The values of both stacks and the biases, in ``self.dtype`` unless given, named and laid
        out as the parameters of the module that this one is in place of: ``gate_up_proj``
        [E, 2I, H] and ``down_proj`` [E, H, I], of gpt-oss [E, H, 2I] with the columns of gate and
        up in turn, and [E, I, H]."""
        dtype = dtype or self.dtype
        made = {GATE_UP: self.gate_up.dequantize(dtype), DOWN: self.down.dequantize(dtype)}
        for name, stack in ((GATE_UP_BIAS, self.gate_up), (DOWN_BIAS, self.down)):
            if stack.bias is not None:
                made[name] = stack.bias.detach().to(dtype)
        return {name: self._layout.as_dense(name, tensor) for name, tensor in made.items()}

    def dense(self, dtype: torch.dtype | None = None) -> nn.Module:
        """A module as the one that this one is in place of, with the values of the weights.

        Raises:
            Unsupported: it is in place of none: see :meth:`dequantize`.
        """
        shell = self.__dict__["_shell"]
        if shell is None:
            raise Unsupported(
                "these experts are in place of no module of transformers: dequantize() gives "
                "tensors"
            )
        module: nn.Module = shell_of(shell)
        for name, values in self.dequantize(dtype).items():
            module._parameters[name] = nn.Parameter(values)
        return module.train(self.training)

    def extra_repr(self) -> str:
        return (
            f"num_experts={self.num_experts}, hidden_size={self.hidden_size}, "
            f"intermediate_size={self.intermediate_size}, {self.gating}"
            + (f", activation_type={self.activation_type}" if self.activation_type else "")
        )


def set_bias(stack: PackedStack, bias: Tensor) -> None:
    """Let ``stack`` have the bias [E, N]: the parameter itself if it is one."""
    wanted = (stack.experts, stack.out_features)
    if tuple(bias.shape) != wanted:
        raise InvalidArgument(f"a bias has shape {list(bias.shape)}, not {list(wanted)}")
    wanted_gradient = bias.requires_grad
    stack.bias = (
        bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias.detach(), wanted_gradient)
    )
