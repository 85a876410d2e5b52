# SPDX-License-Identifier: Apache-2.0
"""``ladder.Experts``: the experts of one layer of a mixture, their weights packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ladder._torch import mapped, recording
from ladder.cuda import expert_layer, kernels
from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.dense_experts import DOWN, GATE_UP, STACKS
from ladder.nn.packed_experts import PackedExperts, set_bias
from ladder.nn.stack import PackedStack
from ladder.nn.stack_image import prepared
from ladder.ops import activations
from ladder.ops.transforms import autocast, check_tensor, transformed
from ladder.types import TType, with_defaults
from ladder.weight import Weight, check_columns

#: Why a program of torch's cannot hold a layer of experts.
_NO_TRACE = (
    "how many tokens each expert of ladder.Experts gets is known only when it runs: "
    "torch.compile needs fullgraph=False, and torch.export and torch.jit.trace need the "
    "dense module, Experts.dense()"
)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Experts(PackedExperts):
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
            (:data:`ladder.ops.gating.ACTIVATIONS`), or "swigluoai", as gpt-oss has it.
        limit, alpha: as :class:`ladder.ops.gating.Gating`.
        activation_type: see the property.
        dtype: of the biases, and of the dense form.
    Raises:
        InvalidArgument: a size that is not positive, an unknown type or activation.
        Unsupported: ``activation_type`` does not take such weights.
    """

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
        weights: Mapping[str, Sequence[Weight]] | None = None,
    ) -> Experts:
        """Quantise an experts module of transformers (Mixtral, Qwen MoE, OLMoE, DeepSeek, gpt-oss,
        ...), each weight of each expert as :func:`ladder.quantize` does. Biases share the memory of
        the module's unless they change their order (gpt-oss).

        Args:
            weights: what ``gate_up_proj`` and ``down_proj`` were quantised to already, E each, the
                gate's rows first.

        Raises:
            InvalidArgument: ``module`` is something else, packed experts included; or a weight is
                not finite, naming the expert.
            Unsupported: ``activation_type`` does not take such weights.
        """
        if isinstance(module, PackedExperts):
            raise InvalidArgument("module is packed already: quantise module.dense()")
        first = with_defaults(weight_type, group_size=group_size, symmetric=symmetric)
        second = first
        if down_type is not None:
            second = with_defaults(down_type, group_size=group_size, symmetric=symmetric)
        packed = cls.in_place_of(
            module, first, second, activation_type=activation_type, device="meta"
        )
        for name, stack in STACKS.items():
            if weights is not None:
                getattr(packed, stack).set_weights(weights[name])
            else:
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
        check_tensor(gate_up, "gate_up")
        check_tensor(down, "down")
        for name, bias in (("gate_up_bias", gate_up_bias), ("down_bias", down_bias)):
            if bias is not None:
                check_tensor(bias, name)
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
                set_bias(stack, bias)
        return packed

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
                range; the message has both values. Kernels of a GPU, for which nothing waits, take
                such an index for nobody's.
            Unsupported: ``torch.func.vmap`` over ``top_k_index``.
        Error:
            Each product is as :func:`ladder.ops.linear` in the dtype of ``hidden_states`` (of
            autocast where that is on). The function between them is computed in float32 and
            rounded to that dtype once. The weighted sum is in float32 and rounded once.
        """
        check_tensor(hidden_states, "hidden_states")
        check_tensor(top_k_index, "top_k_index")
        check_tensor(top_k_weights, "top_k_weights")
        check_columns(hidden_states, self.hidden_size)
        x = hidden_states.reshape(-1, self.hidden_size)
        if top_k_index.dim() != 2 or top_k_index.shape[0] != x.shape[0]:
            raise InvalidArgument(
                f"top_k_index has shape {list(top_k_index.shape)}, not [{x.shape[0]}, k] for "
                f"{x.shape[0]} tokens"
            )
        if top_k_index.dtype not in _INTEGERS:
            raise InvalidArgument(f"top_k_index is {top_k_index.dtype}, not of integers")
        if top_k_weights.shape != top_k_index.shape:
            raise InvalidArgument(
                f"top_k_weights has shape {list(top_k_weights.shape)}, and top_k_index "
                f"{list(top_k_index.shape)}"
            )
        if not torch.compiler.is_compiling() and transformed() and mapped(top_k_index):
            raise Unsupported(
                "ladder.Experts knows no torch.func.vmap over top_k_index: how many tokens an "
                "expert gets decides shapes. Call it with all tokens at once"
            )
        x = autocast(x)
        self._check_activations(x)
        y = None
        if x.is_cuda and self._has_images(x, top_k_weights):
            y = self._forward_images(x, top_k_index, top_k_weights)
        if y is None:
            y = self._forward_canonical(x, top_k_index, top_k_weights)
        return y.to(hidden_states.dtype).view(hidden_states.shape)

    def _check_activations(self, x: Tensor) -> None:
        """Raises Unsupported where this device has no products of such activations by the weights:
        asked until these are in the form of its kernels."""
        wanted = self.activation_type
        if wanted is None:
            return
        why = activations.device_objection(wanted, x.device.type)
        asked = all(stack._has_kernels is not None for stack in (self.gate_up, self.down))
        if not why and x.is_cuda and not asked and not torch.compiler.is_compiling():
            why = self.activation_objection(wanted)
        if why:
            raise Unsupported(why)

    def _has_images(self, x: Tensor, weights: Tensor) -> bool:
        """Whether kernels take this call: of float16 or bfloat16, and without gradients."""
        if x.dtype not in kernels.HALVES:
            return False
        wanted = (x, weights, self.gate_up.bias, self.down.bias)
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in wanted):
            return False
        return prepared(self.gate_up, self.down)

    def _forward_images(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor | None:
        """[T, H] to [T, H] in the dtype of ``x`` by kernels, which wait for nothing; None where
        there are none for such activations, or the device has failed."""
        gating = self.gating
        try:
            return expert_layer.forward(
                x,
                index if index.dtype in (torch.int32, torch.int64) else index.long(),
                weights if weights.dtype in (x.dtype, torch.float32) else weights.float(),
                self.gate_up.stack(),
                self.down.stack(),
                gating.activation,
                gate_up_bias=self.gate_up.placed_bias(x.dtype),
                down_bias=self.down.placed_bias(x.dtype),
                limit=gating.least_limit,
                alpha=gating.alpha,
                activation_type=self.activation_type or "",
                gate_up_scale=self.gate_up.static_scale(),
                down_scale=self.down.static_scale(),
            )
        except Unsupported:
            return None
        except RuntimeError:
            if not all([stack._leave_kernels() for stack in (self.gate_up, self.down)]):
                raise
            return None

    def _forward_canonical(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """[T, H] to [T, H] float32 on the stored form, one expert after the other: all that knows
        of routing."""
        if recording():
            raise Unsupported(_NO_TRACE)
        e, (tokens, k) = self.num_experts, index.shape
        if not index.numel():
            return torch.zeros_like(x, dtype=torch.float32)
        places = index.reshape(-1).long()
        hits = places.new_zeros(e + 1).index_add(0, places.clamp(0, e), torch.ones_like(places))
        # At once, because a GPU is waited for.
        *counts, low, high = torch.cat((hits, torch.stack(places.aminmax()))).tolist()
        if low < 0 or high > e:
            raise InvalidArgument(
                f"top_k_index has values from {low} to {high}; there are {e} experts"
            )
        order = torch.argsort(places, stable=True)
        order = order[: places.numel() - counts[e]]  # those of nobody are the last
        y = self.gate_up(self._rounded(x, tokens, self.gate_up)[order // k], counts[:e])
        y = self.gating(y.to(torch.float32)).to(x.dtype)
        y = self.down(self._rounded(y, tokens, self.down), counts[:e])
        terms = y.to(torch.float32) * weights.reshape(-1)[order].to(torch.float32)[:, None]
        # Not index_add_, whose order of sums is another in each call on a GPU.
        every = terms.new_zeros(tokens * k, self.hidden_size).index_copy(0, order, terms)
        return every.view(tokens, k, self.hidden_size).sum(1)

    def _rounded(self, x: Tensor, tokens: int, stack: PackedStack) -> Tensor:
        """Rows of a call of so many tokens as products by ``stack`` on a GPU see them, in their
        dtype. The CPU rounds within its products."""
        wanted = self.activation_type
        if wanted is None or not x.is_cuda or tokens <= activations.MOST_EXPERT_TOKENS_AS_THEY_COME:
            return x
        return activations.round_tokens(x, wanted, stack.static_scale()).to(x.dtype)

    # What torch.compiler.disable does, without importing the compiler: how often each expert is
    # hit decides the shapes here, so a trace of it would be compiled anew for each batch.
    _forward_canonical._torchdynamo_disable = True  # type: ignore[attr-defined]
    _forward_canonical._torchdynamo_disable_msg = _NO_TRACE  # type: ignore[attr-defined]
