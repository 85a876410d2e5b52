# SPDX-License-Identifier: Apache-2.0
"""Where a :class:`ladder.Linear` comes from, dense layers and checkpoints, and its dense form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.metadata import metadata
from ladder.nn.packed import PackedModule
from ladder.nn.pre_scale import ScalesColumns
from ladder.nn.select import dense_weight, is_conv1d, is_linear
from ladder.quantization import quantize
from ladder.types import TType
from ladder.weight import Weight

if TYPE_CHECKING:
    from typing_extensions import Self


class LinearForms(ScalesColumns):
    """Makers of a layer, and what it is unpacked."""

    bias: Any
    _conv1d = False  #: whether the dense form is a Conv1D of transformers, its weight [K, N]

    @classmethod
    def from_weight(
        cls, weight: Weight, bias: Tensor | None = None, *, activation_type: str | None = None
    ) -> Self:
        """A module that holds ``weight`` (not a copy) and ``bias`` [N]."""
        n, k = weight.shape
        dtype = bias.dtype if bias is not None else None
        kind: Any = cls
        module: Self = kind(
            k,
            n,
            bias is not None,
            weight.type,
            act_order=weight.g_idx is not None,
            activation_type=activation_type,
            device="meta",
            dtype=dtype,
        )
        module.set_weight(weight)
        if bias is not None:
            if tuple(bias.shape) != (n,):
                raise InvalidArgument(f"bias has shape {list(bias.shape)}, not [{n}]")
            module.bias = nn.Parameter(bias.detach(), requires_grad=bias.requires_grad)
        return module

    @classmethod
    def from_linear(
        cls,
        linear: nn.Module,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        method: str = "search",
        activation_type: str | None = None,
    ) -> Self:
        """Quantise an ``nn.Linear``, or a Conv1D of transformers; arguments as
        :func:`ladder.quantize`. The bias shares the memory of ``linear``'s.

        Raises:
            InvalidArgument: ``linear`` is something else, a packed layer included.
            Unsupported: ``activation_type`` does not take such weights.
        """
        if isinstance(linear, PackedModule):
            raise InvalidArgument(
                f"linear is packed already, as {linear.weight_type}: quantise linear.dequantize()"
            )
        if not is_linear(linear):
            raise InvalidArgument(f"linear is of {type(linear).__name__}, not nn.Linear")
        weight = quantize(
            dense_weight(linear),
            weight_type,
            group_size=group_size,
            symmetric=symmetric,
            method=method,
        )
        return cls.in_place_of(linear, weight, activation_type=activation_type)

    @classmethod
    def in_place_of(
        cls, linear: nn.Module, weight: Weight, *, activation_type: str | None = None
    ) -> Self:
        """A module that holds ``weight``, made of that of ``linear``, an ``nn.Linear`` or a Conv1D
        of transformers, whose bias it shares."""
        bias = cast("Tensor | None", linear.bias)
        module = cls.from_weight(weight, bias, activation_type=activation_type)
        module.dtype, module._conv1d = dense_weight(linear).dtype, is_conv1d(linear)
        return module.train(linear.training)

    def dequantize(self, dtype: torch.dtype | None = None) -> nn.Module:
        """An ``nn.Linear`` with the weight's values, in ``self.dtype`` unless given; a Conv1D of
        transformers where this module replaced one. A :attr:`pre_scale` is multiplied into its
        columns, rounded once with them."""
        if self._function is not None:
            raise Unsupported(
                f"the layer ends with its activation, {self.activation}, which nn.Linear has not: "
                "set layer.activation to None, and call the function behind it"
            )
        dtype = dtype or self.dtype
        if self.pre_scale is None:
            values = self.packed_weight.dequantize(dtype)
        else:
            values = (self.packed_weight.dequantize() * self.pre_scale).to(dtype)
        with torch.device("meta"):
            dense: Any = nn.Linear(self.in_features, self.out_features, self.bias is not None)
            if self._conv1d:
                from transformers.pytorch_utils import Conv1D

                dense, values = Conv1D(self.out_features, self.in_features), values.T.contiguous()
        dense.weight = nn.Parameter(values)
        if self.bias is not None:
            dense.bias = nn.Parameter(self.bias.detach().to(dtype))
        return dense.train(self.training)

    @property
    def weight(self) -> Tensor:
        """Shape [N, K], dtype and device of the dense weight, for code that asks a Linear for
        them. It has no elements: arithmetic with it raises Unsupported, and :meth:`dequantize`
        gives values."""
        like = self.qweight if self.image is None else self.image
        return metadata(like, self.out_features, self.in_features, self.dtype)

    def repack_from_gptq(self, module: nn.Module) -> None:
        """Take the weight of a GPTQ v1 layer (``qweight``, ``qzeros``, ``scales``, ``g_idx``),
        whose stored zeros are one less than the zeros. The type becomes what the layer holds."""
        self._repack(module, "gptq", "gptq")

    def repack_from_gptq_v2(self, module: nn.Module) -> None:
        """The same for GPTQ v2, whose stored zeros are the zeros."""
        self._repack(module, "gptq", "gptq_v2")

    def repack_from_awq(self, module: nn.Module) -> None:
        """Take the weight of an AWQ (gemm) layer."""
        self._repack(module, "awq", "gemm")

    def _repack(self, module: nn.Module, family: str, variant: str) -> None:
        from ladder.checkpoints.modules import weight_from_module

        weight = weight_from_module(module, family, variant, bits=self.weight_type.bits)
        self.weight_type, self._type_text = weight.type, str(weight.type)
        self.set_weight(weight)
        bias = getattr(module, "bias", None)
        if bias is not None:
            self.bias = nn.Parameter(bias.detach().to(self.dtype))
