# SPDX-License-Identifier: Apache-2.0
"""The linear layer on images with a step behind the sums, which kernels take where they make them:
the product of gate and up, whose rows lie in turn, or an activation function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ladder.cuda.image import activation_type_of
from ladder.cuda.linear import linear_no_grad
from ladder.errors import InvalidArgument
from ladder.ops.activations import MOST_TOKENS_AS_THEY_COME, round_tokens
from ladder.ops.gating import ROWS_IN_TURN, Activation, Gating
from ladder.ops.transforms import check_activations, linear_by_values, transformed
from ladder.types import _checked

_ops = torch.ops.ladder


def in_turn(bias: Tensor, up_first: bool = False) -> Tensor:
    """[2N], the gate in front of up, or behind it, in the order of
    :func:`ladder.cuda.image.gate_rows`."""
    halves = bias.view(2, -1, ROWS_IN_TURN)
    return (halves.flip(0) if up_first else halves).transpose(0, 1).reshape(-1)


def linear_then(
    x: Tensor,
    image: Tensor,
    bias: Tensor | None,
    weight: int,
    n: int,
    step: Gating | Activation,
    x_scale: Tensor | None = None,
) -> Tensor:
    """``step`` of :func:`ladder.cuda.linear.linear_image`.

    Args:
        x: [..., K] float32, float16 or bfloat16 on the device of ``image``, any strides.
        image: from :func:`ladder.cuda.image.pack`, of a gating with its rows in turn.
        bias: of the rows of the weight, in their order, in the dtype of ``x``.
        weight: from :func:`ladder.cuda.image.open_weight`, opened with ``step``.
        n: columns of the result, of a gating half of the rows of the weight.
        x_scale: as :func:`ladder.cuda.linear.linear_image_scaled`.
    Returns:
        [..., n] in the dtype of ``x``. The gradient computes the sums anew, from x and the
        values of the weight, which are rounded to the dtype of ``x`` there.
    Raises:
        InvalidArgument: as :func:`ladder.cuda.linear.linear_image`.
    Error:
        Sums as :func:`ladder.cuda.linear.linear_image`; the step is taken in float32, and y is
        rounded once. Where the weight is dequantised for a dense product
        (float32, many tokens, ``torch.func``), the sums are rounded to the dtype of ``x`` first.
    """
    if transformed() or x.dtype == torch.float32:
        check_activations(x)
        return step.of_sums(_sums(x, image, bias, weight, step.rows * n, x_scale))
    wanted = x.requires_grad or (bias is not None and bias.requires_grad)
    if wanted and torch.is_grad_enabled():
        how = _told(step)
        return _checked(_ops.linear_then, x, x_scale, image, bias, weight, n, *how)
    if torch.compiler.is_compiling():
        return _multiplied(x, x_scale, image, bias, weight, n)
    if x_scale is not None:
        return _checked(_ops.linear_image_scaled, x, x_scale, image, bias, weight, n)
    try:
        return linear_no_grad(x, image, bias, weight, n)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


def _sums(
    x: Tensor, image: Tensor, bias: Tensor | None, weight: int, rows: int, x_scale: Tensor | None
) -> Tensor:
    """[..., rows] by torch's own ops on the values of the weight."""
    values = _checked(_ops.dequantize_image, image, weight, rows, x.shape[-1], x.dtype)
    return linear_by_values(seen(x, weight, x_scale), values, bias)


def seen(x: Tensor, weight: int, x_scale: Tensor | None) -> Tensor:
    """What kernels multiply in place of ``x``."""
    activation_type = activation_type_of(weight)
    if not activation_type or x.shape[:-1].numel() <= MOST_TOKENS_AS_THEY_COME:
        return x
    return round_tokens(x, activation_type, x_scale).to(x.dtype)


# The library calls it where the weight is dequantised: csrc/binding/torch/cuda_linear.cpp.
torch.library.define("ladder::activate", "(Tensor y, str function) -> Tensor")
torch.library.impl("ladder::activate", "CUDA", lambda y, function: Activation(function).of_sums(y))


# --- the op that has gradients --------------------------------------------------------------------

torch.library.define(
    "ladder::linear_then",
    "(Tensor x, Tensor? x_scale, Tensor image, Tensor? bias, int weight, int n, str step, "
    "str function, float limit, float alpha) -> Tensor",
)


def _told(step: Gating | Activation) -> tuple[str, str, float, float]:
    if isinstance(step, Gating):
        return "gate", step.activation, step.least_limit, step.alpha
    return "activation", step.name, 0.0, 0.0


def _step(kind: str, function: str, limit: float, alpha: float) -> Gating | Activation:
    return Gating(function, limit, alpha) if kind == "gate" else Activation(function)


def _multiplied(
    x: Tensor, x_scale: Tensor | None, image: Tensor, bias: Tensor | None, weight: int, n: int,
    *how: Any,
) -> Tensor:  # fmt: skip
    """``how`` is a part of the weight."""
    if x_scale is not None:
        return _checked(_ops.linear_image_scaled, x, x_scale, image, bias, weight, n)
    return _checked(_ops.linear_image_no_grad, x, image, bias, weight, n)


torch.library.impl("ladder::linear_then", "CUDA", _multiplied)


@torch.library.register_fake("ladder::linear_then")
def _(
    x: Tensor, x_scale: Tensor | None, image: Tensor, bias: Tensor | None, weight: int, n: int,
    step: str, function: str, limit: float, alpha: float,
) -> Tensor:  # fmt: skip
    check_activations(x)
    return x.new_empty((*x.shape[:-1], n))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, x_scale, image, bias, weight, n, *step = inputs
    ctx.save_for_backward(x, x_scale, image, bias)
    ctx.weight, ctx.n = weight, n
    ctx.step = _step(*step)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, x_scale, image, bias = ctx.saved_tensors
    rows, k = ctx.step.rows * ctx.n, x.shape[-1]
    values = _ops.dequantize_image(image, ctx.weight, rows, k, x.dtype)
    sums = linear_by_values(seen(x, ctx.weight, x_scale), values, bias).detach()
    with torch.enable_grad():
        leaf = sums.requires_grad_()
        (of_sums,) = torch.autograd.grad(ctx.step.of_sums(leaf), leaf, grad)
    grad_x = of_sums @ values if ctx.needs_input_grad[0] else None
    grad_bias = None
    if ctx.needs_input_grad[3]:
        grad_bias = of_sums.sum(tuple(range(of_sums.dim() - 1))) if of_sums.dim() > 1 else of_sums
    return grad_x, None, None, grad_bias, None, None, None, None, None, None


torch.library.register_autograd("ladder::linear_then", _backward, setup_context=_setup_context)
