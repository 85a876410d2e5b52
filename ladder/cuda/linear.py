# SPDX-License-Identifier: Apache-2.0
"""The linear layer on weight images (ladder/cuda/image.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ladder import _library  # noqa: F401  (registers torch.ops.ladder)
from ladder._torch import direct_apply, direct_call
from ladder.cuda.image import activation_type_of
from ladder.errors import InvalidArgument
from ladder.ops.activations import MOST_TOKENS_AS_THEY_COME, round_tokens
from ladder.ops.transforms import check_activations, linear_by_values, transformed
from ladder.types import _checked

_ops = torch.ops.ladder
_differentiable = torch.ops.ladder.linear_image.default
#: :func:`linear_image` where nothing asks for a gradient: torch's autograd of Python ops would cost
#: more than the kernel, in compiled code too.
_no_grad = torch.ops.ladder.linear_image_no_grad.default
#: Raises ValueError. Nothing that torch.compile traces.
linear_no_grad = direct_call(_no_grad)


#: The same for graphs that outlive the process, as those in vLLM's compile cache do: the arguments
#: (x, image, bias, type, n, dependent_launch=False, activation_type="", x_scale=None, gate="",
#: limit=0, alpha=0) say all that there is to know of the weight, where a number means something
#: only to a process that has opened it. The type is looked up in each call; no gradients.
#: ``dependent_launch`` and ``activation_type`` as :func:`ladder.cuda.image.open_weight` has them,
#: ``x_scale`` as :func:`linear_image_scaled`. ``gate``, ``limit`` and ``alpha`` are the activation,
#: least_limit and alpha of a :class:`ladder.ops.gating.Gating`, where there is one: then ``n`` is
#: that of the product, the bias is in turn, and x is float16 or bfloat16. The image is [1, words]
#: then, and [words] elsewhere, so that a compiled graph from before the weight was gated, or not,
#: is refused.
linear_prepacked = torch.ops.ladder.linear_prepacked


def linear_image(x: Tensor, image: Tensor, bias: Tensor | None, weight: int, n: int) -> Tensor:
    """:func:`ladder.ops.linear` on an image.

    Args:
        x: [..., K] float32, float16 or bfloat16 on the device of ``image``, any strides.
        image: from :func:`ladder.cuda.image.pack`.
        bias: [n] in the dtype of ``x``.
        weight: from :func:`ladder.cuda.image.open_weight`.
    Raises:
        InvalidArgument: ``x`` has no dimension or another dtype, or it, ``bias`` or ``image`` do
            not fit the weight; the message has both values.
    Error:
        Up to 64 tokens of float16 or bfloat16: within :func:`ladder.testing.bound` of the values
        of the weight, which are not rounded, the bias one of the terms; exact when every partial
        sum is an integer below 2**24. Codes of integers and their zero points may be summed apart,
        which counts where ``x`` is large just where weights are small: there |w| is up to
        ``scale * (code + |zero point| + 16)``, the 16 with bfloat16 only. One token of bfloat16 may
        lose what is 2**54 times smaller than its largest element. Where ``x`` is not finite, rows
        of y are infinite or NaN, not always as torch's. Values of tables (nf4, a user's own) are
        rounded to the dtype of ``x`` before they are scaled, which adds 2**-11 (float16) or 2**-8
        (bfloat16) of ``sum |x| |w|``. More tokens, and float32: all values of the weight may first
        be rounded to the dtype of ``x``, scaled, which adds the same.

        Of weights opened with an ``activation_type``, more than 48 tokens are rounded first, as
        :func:`ladder.ops.linear` says of GPUs.
    """
    if transformed():
        check_activations(x)
        values = _checked(_ops.dequantize_image, image, weight, n, x.shape[-1], x.dtype)
        activation_type = activation_type_of(weight)
        if activation_type and x.shape[:-1].numel() > MOST_TOKENS_AS_THEY_COME:
            x = round_tokens(x, activation_type).to(x.dtype)
        return linear_by_values(x, values, bias)
    wanted = x.requires_grad or (bias is not None and bias.requires_grad)
    wanted = wanted and torch.is_grad_enabled()
    if torch.compiler.is_compiling():
        return _checked(_differentiable if wanted else _no_grad, x, image, bias, weight, n)
    run = linear_with_grad if wanted else linear_no_grad
    try:
        return run(x, image, bias, weight, n)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


def linear_image_scaled(
    x: Tensor, x_scale: Tensor, image: Tensor, bias: Tensor | None, weight: int, n: int
) -> Tensor:
    """:func:`linear_image` of a weight opened with an ``activation_type``, whose x is rounded by
    scales that are given: :func:`ladder.ops.activations.round_tokens`. No gradient flows to them.

    Args:
        x_scale: float32, one number, or one for each token.
    """
    if transformed():
        check_activations(x)
        values = _checked(_ops.dequantize_image, image, weight, n, x.shape[-1], x.dtype)
        if x.shape[:-1].numel() > MOST_TOKENS_AS_THEY_COME:
            x = round_tokens(x, activation_type_of(weight), x_scale).to(x.dtype)
        return linear_by_values(x, values, bias)
    return _checked(_ops.linear_image_scaled, x, x_scale, image, bias, weight, n)


@torch.library.register_fake("ladder::linear_image_scaled")
def _(
    x: Tensor, x_scale: Tensor, image: Tensor, bias: Tensor | None, weight: int, n: int
) -> Tensor:
    check_activations(x)
    return x.new_empty((*x.shape[:-1], n))


@torch.library.register_fake("ladder::linear_image_no_grad")
@torch.library.register_fake("ladder::linear_image")
def _(x: Tensor, image: Tensor, bias: Tensor | None, weight: int, n: int) -> Tensor:
    check_activations(x)
    return x.new_empty((*x.shape[:-1], n))


@torch.library.register_fake("ladder::linear_prepacked")
def _(
    x: Tensor,
    image: Tensor,
    bias: Tensor | None,
    type: str,
    n: int,
    dependent_launch: bool = False,
    activation_type: str = "",
    x_scale: Tensor | None = None,
    gate: str = "",
    limit: float = 0.0,
    alpha: float = 0.0,
) -> Tensor:
    check_activations(x)
    return x.new_empty((*x.shape[:-1], n))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, image, _bias, weight, n = inputs
    ctx.save_for_backward(image)
    ctx.weight, ctx.n, ctx.k = weight, n, x.shape[-1]


def weight_gradients(ctx: Any, grad: Tensor, bias_at: int) -> tuple[Tensor | None, Tensor | None]:
    """Of x, the first input, and of the bias, which is the input number ``bias_at``; the first
    saved tensor is the image."""
    grad_x = grad_bias = None
    if ctx.needs_input_grad[0]:
        image = ctx.saved_tensors[0]
        values = _ops.dequantize_image(image, ctx.weight, ctx.n, ctx.k, grad.dtype)
        grad_x = grad @ values
    if ctx.needs_input_grad[bias_at]:
        grad_bias = grad.sum(tuple(range(grad.dim() - 1))) if grad.dim() > 1 else grad
    return grad_x, grad_bias


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad_x, grad_bias = weight_gradients(ctx, grad, bias_at=2)
    return grad_x, None, grad_bias, None, None


torch.library.register_autograd("ladder::linear_image", _backward, setup_context=_setup_context)


def _setup_scaled(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, _, *rest = inputs
    _setup_context(ctx, (x, *rest), output)


def _backward_scaled(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad_x, grad_bias = weight_gradients(ctx, grad, bias_at=3)
    return grad_x, None, None, grad_bias, None, None


torch.library.register_autograd(
    "ladder::linear_image_scaled", _backward_scaled, setup_context=_setup_scaled
)


class _LinearImage(torch.autograd.Function):
    """The gradients of the registered op, which finds them through the dispatcher, Python code and
    the dispatcher again: 30 us of host time more than the kernel's, where these are 4."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, image: Tensor, bias: Tensor | None, weight: int, n: int
    ) -> Tensor:
        if x.requires_grad:
            ctx.save_for_backward(image)
            ctx.weight, ctx.n, ctx.k = weight, n, x.shape[-1]
        return linear_no_grad(x, image, bias, weight, n)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, *grads)


#: :func:`linear_image` where gradients are asked for, outside ``torch.func`` and ``torch.compile``,
#: which see the registered op. Raises ValueError.
linear_with_grad = direct_apply(_LinearImage)
