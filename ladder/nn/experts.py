# SPDX-License-Identifier: Apache-2.0
"""``ladder.Experts``: the experts of one layer of a mixture, their weights packed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ladder import ops
from ladder.errors import InvalidArgument, Unsupported
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
from ladder.nn.gating import Gating
from ladder.nn.stack import PackedStack
from ladder.ops import activations
from ladder.quantization import quantize
from ladder.types import TType, with_defaults
from ladder.weight import check_columns


class Experts(nn.Module):
    """``y[t] = sum_j weights[t, j] * expert[index[t, j]](x[t])``, called as the experts modules of
    transformers 5 are, with the weights of all experts packed.

    Expert e computes ``down[e] @ gating(gate_up[e] @ x + bias) + bias``. Its two weights lie in the
    stacks ``gate_up`` [E, 2I, H], whose first I rows are the gate's, and ``down`` [E, H, I]: two
    :class:`ladder.nn.stack.PackedStack`, of one tType each, so that ``state_dict`` has
    ``gate_up.qweight`` [E, 2I, words], ``gate_up.scales``, ..., ``gate_up.bias`` [E, 2I], and the
    same of ``down``. It round-trips, ``.to(device)`` moves all of it, and casting the module to
    another float dtype leaves packed parts as they are stored.

    Args:
        num_experts: E.
        hidden_size: H.
        intermediate_size: I.
        bias: both products add a bias of ``dtype``.
        weight_type, group_size, symmetric: as :class:`ladder.Linear`; of both stacks.
        down_type: another type of ``down``, completed by the same two.
        activation: of the gate: "silu", "gelu", "gelu_pytorch_tanh", ...
            (:data:`ladder.nn.gating.ACTIVATIONS`), or "swigluoai", as gpt-oss has it.
        limit, alpha: as :class:`ladder.nn.gating.Gating`.
        activation_type: see the property.
        dtype: of the biases, and of the dense form.
    Raises:
        InvalidArgument: a size that is not positive, an unknown type or activation.
        Unsupported: ``activation_type`` does not take such weights.
    """

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
    ) -> Experts:
        """Room for the weights of ``module``, an experts module of transformers, in full tTypes.

        Raises:
            InvalidArgument: ``module`` is something else, which the message explains.
        """
        layout: Layout | str = f"{type(module).__name__} has no {GATE_UP} and {DOWN} of 3 dimensions"
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
        return experts.train(module.training)

    @classmethod
    def from_dense(
        cls,
        module: nn.Module,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        down_type: str | TType | None = None,
        method: str = "search",
        activation_type: str | None = None,
    ) -> Experts:
        """Quantise an experts module of transformers (Mixtral, Qwen MoE, OLMoE, DeepSeek, gpt-oss,
        ...), each weight of each expert as :func:`ladder.quantize` does. Biases share the memory of
        the module's unless they change their order (gpt-oss).

        Raises:
            InvalidArgument: ``module`` is something else, packed experts included; or a weight is
                not finite, naming the expert.
            Unsupported: ``activation_type`` does not take such weights.
        """
        if isinstance(module, Experts):
            raise InvalidArgument("module is packed already: quantise module.dense()")
        first = with_defaults(weight_type, group_size=group_size, symmetric=symmetric)
        second = first
        if down_type is not None:
            second = with_defaults(down_type, group_size=group_size, symmetric=symmetric)
        packed = cls.in_place_of(
            module, first, second, activation_type=activation_type, device="meta"
        )
        for name in STACKS:
            packed.quantize_stack(name, getattr(module, name), method=method)
        packed.take_biases(module)
        return packed

    @classmethod
    def from_tensors(
        cls,
        gate_up: Tensor,
        down: Tensor,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
        *,
        weight_type: str | TType = "uint4",
        method: str = "search",
        **options: Any,
    ) -> Experts:
        """Quantise experts that are given as tensors.

        Args:
            gate_up: [E, 2I, H], any float dtype, the gate's rows first.
            down: [E, H, I].
            gate_up_bias, down_bias: [E, 2I] and [E, H], both or neither.
            weight_type: of both stacks.
            method: as :func:`ladder.quantize`.
            options: ``group_size``, ``symmetric``, ``down_type``, ``activation``, ``limit``,
                ``alpha``, ``activation_type`` of the class.
        Raises:
            InvalidArgument: shapes that do not fit each other; else as :meth:`from_dense`.
        """
        if gate_up.dim() != 3 or tuple(down.shape) != (
            gate_up.shape[0], gate_up.shape[2], gate_up.shape[1] // 2,
        ) or gate_up.shape[1] % 2:  # fmt: skip
            raise InvalidArgument(
                f"gate_up is {list(gate_up.shape)} and down {list(down.shape)}, not [E, 2I, H] and "
                "[E, H, I]"
            )
        if (gate_up_bias is None) != (down_bias is None):
            missing = "gate_up_bias" if gate_up_bias is None else "down_bias"
            raise InvalidArgument(f"{missing} is None, and the other bias is given")
        e, h, i = down.shape
        has_bias = gate_up_bias is not None
        packed = cls(e, h, i, has_bias, weight_type, device="meta", dtype=gate_up.dtype, **options)
        packed.quantize_stack(GATE_UP, gate_up, method=method)
        packed.quantize_stack(DOWN, down, method=method)
        for stack, bias in ((packed.gate_up, gate_up_bias), (packed.down, down_bias)):
            if bias is not None:
                _set_bias(stack, bias)
        return packed

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
            try:
                return quantize(weight, stack.weight_type, method=method)
            except InvalidArgument as error:
                raise InvalidArgument(f"{name}[{expert}]: {error}") from None

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
            _set_bias(stack, bias)

    @property
    def activation_type(self) -> str | None:
        """What x is rounded to before both products, as :attr:`ladder.Linear.activation_type`.
        Setting it raises Unsupported for weights that it does not take, naming the stack."""
        return self.gate_up.activation_type

    @activation_type.setter
    def activation_type(self, wanted: str | None) -> None:
        if why := self.activation_objection(wanted):
            raise Unsupported(why)
        self.gate_up.activation_type = self.down.activation_type = wanted

    def activation_objection(self, wanted: str | None) -> str:
        """Why the weights take no such activations; "" when they do."""
        for name in STACKS.values():
            stack: PackedStack = getattr(self, name)
            if why := activations.objection(wanted, stack.weight_type, stack.in_features):
                return f"{name}: {why}"
        return ""

    @property
    def dtype(self) -> torch.dtype:
        """Of the biases, and of the dense form."""
        return self.gate_up.dtype

    @property
    def device(self) -> torch.device:
        """Where the codes are."""
        return self.gate_up.device

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Send each token through its experts and add up what they give, weighted.

        Args:
            hidden_states: [..., H], T tokens in all, float32, float16 or bfloat16.
            top_k_index: [T, k] integers: the experts of each token, 0 to E - 1. E is nobody: that
                place gives nothing, as where transformers runs other experts elsewhere.
            top_k_weights: [T, k], any float dtype.
        Returns:
            The shape and dtype of ``hidden_states``. Gradients flow to ``hidden_states``,
            ``top_k_weights`` and the biases.
        Raises:
            InvalidArgument: shapes that do not fit each other or the weights, an index out of
                range; the message has both values.
        Error:
            Each product is as :func:`ladder.ops.linear` in the dtype of ``hidden_states`` (of
            autocast where that is on). The function between them is computed in float32 and
            rounded to that dtype once. The weighted sum is in float32, in the order of k, and
            rounded once.
        """
        check_columns(hidden_states, self.hidden_size)
        x = hidden_states.reshape(-1, self.hidden_size)
        if top_k_index.dim() != 2 or top_k_index.shape[0] != x.shape[0]:
            raise InvalidArgument(
                f"top_k_index has shape {list(top_k_index.shape)}, not [{x.shape[0]}, k] for "
                f"{x.shape[0]} tokens"
            )
        if top_k_weights.shape != top_k_index.shape:
            raise InvalidArgument(
                f"top_k_weights has shape {list(top_k_weights.shape)}, and top_k_index "
                f"{list(top_k_index.shape)}"
            )
        device = x.device.type
        autocast = x.dtype in ops.ACTIVATION_DTYPES and device != "meta"
        if autocast and torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        y = self._forward_canonical(x, top_k_index, top_k_weights)
        return y.to(hidden_states.dtype).view(hidden_states.shape)

    def _forward_canonical(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """[T, H] to [T, H] float32 on the stored form, one expert after the other: all that knows
        of routing."""
        e, (tokens, k) = self.num_experts, index.shape
        places = index.reshape(-1)
        if places.numel():
            low, high = int(places.min()), int(places.max())
            if low < 0 or high > e:
                raise InvalidArgument(
                    f"top_k_index has values from {low} to {high}; there are {e} experts"
                )
        order = torch.argsort(places, stable=True)
        counts: list[int] = torch.bincount(places, minlength=e + 1).tolist()
        order = order[: places.numel() - counts[e]]  # those of nobody are the last
        y = self.gate_up(x[order // k], counts[:e])
        y = self.down(self.gating(y.to(torch.float32)).to(x.dtype), counts[:e])
        terms = y.to(torch.float32) * weights.reshape(-1)[order].to(torch.float32)[:, None]
        # Not index_add_, whose order of sums is another in each call on a GPU.
        every = terms.new_zeros(tokens * k, self.hidden_size).index_copy(0, order, terms)
        return every.view(tokens, k, self.hidden_size).sum(1)

    # What torch.compiler.disable does, without importing the compiler: how often each expert is
    # hit decides the shapes here, so a trace of it would be compiled anew for each batch.
    _forward_canonical._torchdynamo_disable = True  # type: ignore[attr-defined]

    def dequantize(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """The values of both stacks and the biases, in ``self.dtype`` unless given, named and laid
        out as the parameters of the module that this one is in place of: ``gate_up_proj``
        [E, 2I, H] and ``down_proj`` [E, H, I], of gpt-oss [E, H, 2I] with the columns of gate and
        up in turn, and [E, I, H]."""
        dtype = dtype or self.dtype
        made = {name: getattr(self, stack).dequantize(dtype) for name, stack in STACKS.items()}
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
                "these experts are in place of no module of transformers: dequantize() gives tensors"
            )
        module = shell_of(shell)
        for name, values in self.dequantize(dtype).items():
            module._parameters[name] = nn.Parameter(values)
        return module.train(self.training)

    def extra_repr(self) -> str:
        return (
            f"num_experts={self.num_experts}, hidden_size={self.hidden_size}, "
            f"intermediate_size={self.intermediate_size}, {self.gating}"
            + (f", activation_type={self.activation_type}" if self.activation_type else "")
        )


def _set_bias(stack: PackedStack, bias: Tensor) -> None:
    wanted = (stack.experts, stack.out_features)
    if tuple(bias.shape) != wanted:
        raise InvalidArgument(f"a bias has shape {list(bias.shape)}, not {list(wanted)}")
    given = isinstance(bias, nn.Parameter)
    stack.bias = bias if given else nn.Parameter(bias.detach(), requires_grad=bias.requires_grad)
