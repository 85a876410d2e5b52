# SPDX-License-Identifier: Apache-2.0
"""``ladder.BatchedLinear``: linear layers side by side, their weights packed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ladder.cuda.batched import batched
from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.arguments import check_integers
from ladder.nn.stack import PackedStack
from ladder.nn.stack_image import prepared
from ladder.ops.transforms import autocast, check_residual, check_tensor, plus
from ladder.quantization import quantize, weights_of
from ladder.types import TType, with_defaults


class BatchedLinear(PackedStack):
    """``y[..., b, :] = x[..., b, :] @ value(weight[b]).T + bias[b]``: B linear layers, each of its
    own part of x, as ``einsum("...bk,bnk->...bn")`` has them: projections of attention heads that
    were absorbed, of output groups.

    The weights are a :class:`ladder.nn.stack.PackedStack`: ``state_dict`` has ``qweight``
    [B, N, words], ``scales``, ... and ``bias`` [B, N]. On a CUDA device one launch multiplies all.
    ``ladder.warmup(model, m=...)`` compiles and times its kernels for m tokens, those of x without
    its last two dimensions.

    Args:
        batch: B.
        in_features, out_features: K and N, of each.
        bias: adds a bias [B, N] of ``dtype``.
        weight_type, group_size, symmetric: as :class:`ladder.Linear`.
        dtype: of the bias, and of the dense form.
    Raises:
        InvalidArgument: a size that is not positive, an unknown type.
    """

    def __init__(
        self,
        batch: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_integers(batch=batch, in_features=in_features, out_features=out_features)
        if min(batch, in_features, out_features) < 1:
            raise InvalidArgument(
                f"batch is {batch}, in_features {in_features} and out_features {out_features}, not "
                "all positive"
            )
        ttype = with_defaults(weight_type, group_size=group_size, symmetric=symmetric)
        super().__init__(batch, out_features, in_features, ttype, bias, device=device, dtype=dtype)

    @property
    def activation_type(self) -> str | None:
        """None: x is multiplied as it comes. Setting another raises Unsupported."""
        return None

    @activation_type.setter
    def activation_type(self, wanted: str | None) -> None:
        if wanted is not None:
            raise Unsupported(f'batches multiply x as it comes, not rounded to "{wanted}"')

    @property
    def batch(self) -> int:
        """B, as the stack calls it: experts."""
        return self.experts

    @classmethod
    def from_tensor(
        cls,
        weight: Tensor,
        bias: Tensor | None = None,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        method: str = "search",
    ) -> BatchedLinear:
        """Quantise weights, each as :func:`ladder.quantize` does.

        Args:
            weight: [B, N, K], any float dtype.
            bias: [B, N]; the very parameter where it is one.
            method: as :func:`ladder.quantize`.
        Raises:
            InvalidArgument: shapes that do not fit each other, or a weight that is not finite,
                naming it.
        """
        check_tensor(weight, "weight")
        if bias is not None:
            check_tensor(bias, "bias")
        if weight.dim() != 3:
            raise InvalidArgument(f"weight has shape {list(weight.shape)}, not [B, N, K]")
        batch, n, k = weight.shape
        if bias is not None and tuple(bias.shape) != (batch, n):
            raise InvalidArgument(f"bias has shape {list(bias.shape)}, not {[batch, n]}")
        module = cls(
            batch, k, n, False, weight_type, group_size, symmetric, device="meta",
            dtype=weight.dtype,
        )  # fmt: skip

        def quantized(b: int) -> object:
            with weights_of(f"weight[{b}]"):
                return quantize(weight[b].detach(), module.weight_type, method=method)

        module.set_weights(quantized(b) for b in range(batch))  # type: ignore[misc]
        if bias is not None:
            wanted = bias.requires_grad
            module.bias = (
                bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias.detach(), wanted)
            )
        return module

    def forward(  # type: ignore[override]
        self, x: Tensor, residual: Tensor | None = None
    ) -> Tensor:
        """Multiply each part of x by its own weight.

        Args:
            x: [..., B, K] float32, float16 or bfloat16, any strides. A batch in front,
                [B, M, K], is ``x.transpose(0, 1)``; that is how kernels read it, so it costs
                nothing, where other x are copied.
            residual: of the shape and dtype of the result, to which kernels add it in float32
                before rounding; elsewhere torch adds it to the rounded result. Its order in memory
                costs what that of ``x`` does.
        Returns:
            [..., B, N] in the dtype of ``x``, or of autocast where that is on; of more than one
            token not contiguous: the parts lie one behind the other. Gradients flow to ``x``,
            residual and bias.
        Raises:
            InvalidArgument: the last two dimensions are not B and K, or a residual of another
                shape, dtype or device; the message has both.
        Error:
            As :func:`ladder.ops.linear`, part by part.
        """
        check_tensor(x)
        wanted = (self.batch, self.in_features)
        if x.dim() < 2 or tuple(x.shape[-2:]) != wanted:
            raise InvalidArgument(
                f"x has shape {list(x.shape)}, not [..., {wanted[0]}, {wanted[1]}]"
            )
        x = autocast(x)
        parts = x.reshape(-1, *wanted).transpose(0, 1)
        added = None
        if residual is not None:
            check_tensor(residual, "residual")
            of_y = (*x.shape[:-1], self.out_features)
            check_residual(residual, x.new_empty(of_y, device="meta"), on=x.device)
            added = residual.reshape(-1, self.batch, self.out_features).transpose(0, 1)
        y = self._by_kernels(parts, added) if x.is_cuda else None
        if y is None:
            y = torch.stack([self._product(parts[b], b) for b in range(self.batch)])
            y = plus(y, added)
        return y.transpose(0, 1).unflatten(0, x.shape[:-2]) if x.dim() > 2 else y[:, 0]

    def _by_kernels(self, parts: Tensor, residual: Tensor | None) -> Tensor | None:
        """None where this device has no kernels for the type, or has failed."""
        if torch.compiler.is_compiling():
            self._prepare_for_trace()
        else:
            prepared(self)
        if self.images is None:
            return None
        bias = None if self.bias is None else self.bias.to(parts.dtype)
        if torch.compiler.is_compiling():
            return batched(parts, self.stack(), bias, residual)
        try:
            return batched(parts, self.stack(), bias, residual)
        except RuntimeError:
            if not self._leave_kernels():
                raise
            return None

    def _prepare_for_trace(self) -> None:
        """As :class:`ladder.Linear` has it."""
        if not torch.compiler.is_exporting() and type(self.qweight) is Tensor:
            prepared(self)

    _prepare_for_trace._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def extra_repr(self) -> str:
        return (
            f"batch={self.batch}, in_features={self.in_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}, "
            f"weight_type={self._type_text}"
        )
