# SPDX-License-Identifier: Apache-2.0
"""Products of a batch on weight images: one launch multiplies each part of x by its own weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ladder import _library
from ladder.cuda import kernels
from ladder.cuda.experts import Stack, padded_bias
from ladder.ops.transforms import check_residual, plus
from ladder.types import _checked

_ops = torch.ops.ladder

torch.library.define(
    "ladder::batched",
    "(Tensor x, Tensor images, Tensor? bias, int weight, int n, Tensor? residual=None) -> Tensor",
)


def batched(x: Tensor, stack: Stack, bias: Tensor | None, residual: Tensor | None = None) -> Tensor:
    """``y[b] = x[b] @ value(stack[b]).T + bias[b] + residual[b]``, [B, M, N] in the dtype of ``x``.
    No call waits for the device.

    Args:
        x: [B, M, K] float32, float16 or bfloat16, any strides.
        bias: [B, N], in the dtype of ``x``.
        residual: as the result, to which kernels add it in float32, before it is rounded.
    Error:
        As :func:`ladder.cuda.linear.linear_image`. float32, and types or sizes without kernels, go
        through weights that are dequantised in the dtype of ``x``.
    """
    return _checked(_ops.batched, x, stack.images, bias, stack.number, stack.shape[0], residual)


def _values(images: Tensor, weight: int, n: int, k: int, dtype: torch.dtype) -> Tensor:
    """[B, N, K]."""
    return torch.stack([_ops.dequantize_image(each, weight, n, k, dtype) for each in images])


def _batched(
    x: Tensor,
    images: Tensor,
    bias: Tensor | None,
    weight: int,
    n: int,
    residual: Tensor | None = None,
) -> Tensor:
    if x.dtype in kernels.HALVES:
        padded = None if bias is None else padded_bias(bias, x.dtype)
        made = _ops.batched_linear(x.contiguous(), images, padded, weight, n, residual)
        _library.log_notices()
        if made:
            return made[0]
    values = _values(images, weight, n, x.shape[-1], x.dtype).mT
    y = torch.bmm(x, values) if bias is None else torch.baddbmm(bias[:, None], x, values)
    return plus(y.contiguous(), residual)


torch.library.impl("ladder::batched", "CUDA", _batched)


@torch.library.register_fake("ladder::batched")
def _(
    x: Tensor,
    images: Tensor,
    bias: Tensor | None,
    weight: int,
    n: int,
    residual: Tensor | None = None,
) -> Tensor:
    y = x.new_empty((x.shape[0], x.shape[1], n))
    if residual is not None:
        check_residual(residual, y)
    return y


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, images, _bias, weight, n, *_residual = inputs
    ctx.save_for_backward(images)
    ctx.weight, ctx.n, ctx.k = weight, n, x.shape[-1]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad_x = grad_bias = None
    if ctx.needs_input_grad[0]:
        (images,) = ctx.saved_tensors
        grad_x = _ops.batched_gradient(grad, images, ctx.weight, ctx.k)
    if ctx.needs_input_grad[2]:
        grad_bias = grad.sum(1)
    wanted = any(ctx.needs_input_grad[5:])  # of arguments that are given
    return grad_x, None, grad_bias, None, None, grad if wanted else None


torch.library.register_autograd("ladder::batched", _backward, setup_context=_setup_context)

# An op, so that a trace of the backward sees no loop over images.
torch.library.define(
    "ladder::batched_gradient", "(Tensor grad, Tensor images, int weight, int k) -> Tensor"
)


def _gradient(grad: Tensor, images: Tensor, weight: int, k: int) -> Tensor:
    return torch.bmm(grad, _values(images, weight, grad.shape[-1], k, grad.dtype))


torch.library.impl("ladder::batched_gradient", "CUDA", _gradient)


@torch.library.register_fake("ladder::batched_gradient")
def _(grad: Tensor, images: Tensor, weight: int, k: int) -> Tensor:
    return grad.new_empty((grad.shape[0], grad.shape[1], k))
