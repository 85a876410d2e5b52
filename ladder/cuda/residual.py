# SPDX-License-Identifier: Apache-2.0
"""The linear layer on images with a residual that kernels add where they make the sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ladder._torch import direct_call
from ladder.cuda.epilogue import seen
from ladder.cuda.linear import weight_gradients
from ladder.ops.gating import Activation
from ladder.ops.transforms import (
    check_activations,
    check_residual,
    linear_by_values,
    plus,
    transformed,
)
from ladder.types import _checked

_ops = torch.ops.ladder
#: (x, residual, image, bias, weight, n, x_scale): :func:`linear_residual` where nothing asks for a
#: gradient, outside ``torch.func`` and ``torch.compile``. Raises ValueError.
linear_residual_no_grad = direct_call(_ops.linear_residual.default)


def linear_residual(
    x: Tensor,
    residual: Tensor,
    image: Tensor,
    bias: Tensor | None,
    weight: int,
    n: int,
    function: Activation | None = None,
    x_scale: Tensor | None = None,
) -> Tensor:
    """``function(x @ value(weight).T + bias) + residual``: :func:`ladder.cuda.linear.linear_image`
    with a residual.

    Args:
        residual: [..., n] in the dtype of ``x``, of the shape of the result. It is not written to,
            and the result has memory of its own.
        weight: from :func:`ladder.cuda.image.open_weight`, opened with ``function``, not with a
            gating.
        x_scale: as :func:`ladder.cuda.linear.linear_image_scaled`.
    Returns:
        [..., n] in the dtype of ``x``. The gradient of ``residual`` is that of the result; with a
        ``function`` the gradient computes the sums anew.
    Raises:
        InvalidArgument: as :func:`ladder.cuda.linear.linear_image`; ``residual`` has another shape,
            dtype or device than the result; the message has both values.
        Unsupported: a weight of gate and up in turn.
    Error:
        Sums as :func:`ladder.cuda.linear.linear_image`; bias, function and residual follow in
        float32, and y is rounded once. Where the weight is dequantised for a dense product
        (float32, many tokens, ``torch.func``), y is rounded to the dtype of ``x`` before the
        residual is added, as by two ops.
    """
    if transformed():
        check_activations(x)
        values = _checked(_ops.dequantize_image, image, weight, n, x.shape[-1], x.dtype)
        sums = linear_by_values(seen(x, weight, x_scale), values, bias)
        return plus(sums if function is None else function.of_sums(sums), residual)
    wanted = any(part is not None and part.requires_grad for part in (x, residual, bias))
    given = x, residual, image, bias, weight, n, x_scale
    if wanted and torch.is_grad_enabled():
        name = "" if function is None else function.name
        return _checked(_ops.linear_residual_with_grad, *given, name)
    return _checked(_ops.linear_residual, *given)


# The library calls it where the weight is dequantised: csrc/binding/torch/cuda_linear.cpp.
torch.library.define("ladder::plus", "(Tensor y, Tensor residual) -> Tensor")
torch.library.impl("ladder::plus", "CUDA", lambda y, residual: y + residual)


@torch.library.register_fake("ladder::linear_residual")
def _(
    x: Tensor, residual: Tensor, image: Tensor, bias: Tensor | None, weight: int, n: int,
    x_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    check_activations(x)
    y = x.new_empty((*x.shape[:-1], n))
    check_residual(residual, y)
    return y


# --- the op that has gradients --------------------------------------------------------------------

torch.library.define(
    "ladder::linear_residual_with_grad",
    "(Tensor x, Tensor residual, Tensor image, Tensor? bias, int weight, int n, Tensor? x_scale, "
    "str function) -> Tensor",
)
torch.library.impl(
    "ladder::linear_residual_with_grad",
    "CUDA",
    lambda *arguments: _ops.linear_residual(*arguments[:-1]),  # the weight says its function
)


@torch.library.register_fake("ladder::linear_residual_with_grad")
def _(
    x: Tensor, residual: Tensor, image: Tensor, bias: Tensor | None, weight: int, n: int,
    x_scale: Tensor | None, function: str,
) -> Tensor:  # fmt: skip
    check_activations(x)
    y = x.new_empty((*x.shape[:-1], n))
    check_residual(residual, y)
    return y


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, _residual, image, bias, weight, n, x_scale, function = inputs
    # Only a function has sums, whose gradient needs them.
    ctx.save_for_backward(image, *((x, x_scale, bias) if function else ()))
    ctx.weight, ctx.n, ctx.k = weight, n, x.shape[-1]
    ctx.function = Activation(function) if function else None


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    of_sums = grad
    if ctx.function is not None:
        image, x, x_scale, bias = ctx.saved_tensors
        values = _ops.dequantize_image(image, ctx.weight, ctx.n, ctx.k, x.dtype)
        sums = linear_by_values(seen(x, ctx.weight, x_scale), values, bias).detach()
        with torch.enable_grad():
            leaf = sums.requires_grad_()
            (of_sums,) = torch.autograd.grad(ctx.function.of_sums(leaf), leaf, grad)
    grad_x, grad_bias = weight_gradients(ctx, of_sums, bias_at=3)
    return grad_x, grad, None, grad_bias, None, None, None, None


torch.library.register_autograd(
    "ladder::linear_residual_with_grad", _backward, setup_context=_setup_context
)
