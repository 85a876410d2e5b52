# SPDX-License-Identifier: Apache-2.0
"""Convolutions on weight images: kernels read the windows of x as they copy it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input

from ladder import _library
from ladder.cuda import kernels
from ladder.cuda.windows import Axis, Windows
from ladder.ops.transforms import check_residual, plus
from ladder.types import _checked

_ops = torch.ops.ladder


class Geometry(NamedTuple):
    """Along y and x, as ``torch.nn.Conv2d`` calls its numbers; the padding is of zeros."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def windows(self, height: int, width: int, channels: int) -> Windows:
        """Of images of that size."""
        y, x = (
            Axis(size, self.kernel[i], self.stride[i], self.padding[i], self.dilation[i])
            for i, size in enumerate((height, width))
        )
        return Windows(y, x, channels)


_NUMBERS = "int[] kernel, int[] stride, int[] padding, int[] dilation, int groups=1"
torch.library.define(
    "ladder::conv2d",
    f"(Tensor x, Tensor image, Tensor? bias, int weight, int n, {_NUMBERS}, "
    "Tensor? residual=None) -> Tensor",
)
# An op, so that a trace of the backward asks for no kernels.
torch.library.define(
    "ladder::conv2d_gradient",
    f"(Tensor grad, Tensor image, int weight, SymInt[] shape, {_NUMBERS}) -> Tensor",
)


def conv2d(
    x: Tensor,
    image: Tensor,
    bias: Tensor | None,
    weight: int,
    n: int,
    geometry: Geometry,
    groups: int = 1,
    residual: Tensor | None = None,
) -> Tensor:
    """A convolution, channels last: [N, H, W, C] to [N, H', W', F], in the dtype of ``x``. No call
    waits for the device.

    Args:
        x: float32, float16 or bfloat16, any strides.
        image: of the weight [F, Y X C / groups] with the columns of a window in this order.
        bias: [F] in the dtype of ``x``.
        weight: from :func:`ladder.cuda.image.open_weight`.
        n: F.
        residual: as the result, to which kernels add it in float32, before it is rounded.
    Error:
        As :func:`ladder.cuda.linear.linear_image`. float32, several groups, and what no kernel
        serves (weights of no more than 64 columns, say), are torch's convolution by weights that
        are dequantised in the dtype of ``x``.
    """
    return _checked(_ops.conv2d, x, image, bias, weight, n, *geometry, groups, residual)


def _values(image: Tensor, weight: int, n: int, c: int, like: Tensor, kernel: list[int]) -> Tensor:
    """[F, C / groups, Y, X], channels last, where ``c`` is C / groups."""
    values = _ops.dequantize_image(image, weight, n, kernel[0] * kernel[1] * c, like.dtype)
    return values.view(n, *kernel, c).permute(0, 3, 1, 2)


def _conv2d(
    x: Tensor,
    image: Tensor,
    bias: Tensor | None,
    weight: int,
    n: int,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int = 1,
    residual: Tensor | None = None,
) -> Tensor:
    c = x.shape[3]
    if x.dtype in kernels.HALVES and groups == 1:
        numbers = (tuple(kernel), tuple(stride), tuple(padding), tuple(dilation))
        windows = Geometry(*numbers).windows(*x.shape[1:])  # type: ignore[arg-type]
        row = None if bias is None else bias.detach().contiguous()[None]
        made = _ops.convolution(
            x.contiguous(), image[None], row, weight, n, windows.spelled, residual
        )
        _library.log_notices()
        if made:
            return made[0]
    values = _values(image, weight, n, c // groups, x, kernel)
    y = torch.conv2d(x.permute(0, 3, 1, 2), values, bias, stride, padding, dilation, groups)
    return plus(y.permute(0, 2, 3, 1).contiguous(), residual)


torch.library.impl("ladder::conv2d", "CUDA", _conv2d)


@torch.library.register_fake("ladder::conv2d")
def _(
    x: Tensor,
    image: Tensor,
    bias: Tensor | None,
    weight: int,
    n: int,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int = 1,
    residual: Tensor | None = None,
) -> Tensor:
    y, x_ = (
        Axis(x.shape[1 + i], kernel[i], stride[i], padding[i], dilation[i]).positions
        for i in range(2)
    )
    out = x.new_empty((x.shape[0], y, x_, n))
    if residual is not None:
        check_residual(residual, out)
    return out


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, image, _bias, weight, _n, *geometry = inputs  # and, where it is given, the residual
    ctx.save_for_backward(image)
    ctx.weight, ctx.shape, ctx.geometry = weight, list(x.shape), geometry[:5]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad_x = grad_bias = None
    if ctx.needs_input_grad[0]:
        (image,) = ctx.saved_tensors
        grad_x = _ops.conv2d_gradient(grad, image, ctx.weight, ctx.shape, *ctx.geometry)
    if ctx.needs_input_grad[2]:
        grad_bias = grad.sum((0, 1, 2))
    wanted = any(ctx.needs_input_grad[10:])  # of arguments that are given
    return grad_x, None, grad_bias, *([None] * 7), grad if wanted else None


torch.library.register_autograd("ladder::conv2d", _backward, setup_context=_setup_context)


def _gradient(
    grad: Tensor,
    image: Tensor,
    weight: int,
    shape: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int = 1,
) -> Tensor:
    count, height, width, c = shape
    values = _values(image, weight, grad.shape[3], c // groups, grad, kernel)
    size = [count, c, height, width]
    grads = grad.permute(0, 3, 1, 2)
    made = conv2d_input(size, values, grads, stride, padding, dilation, groups)
    return made.permute(0, 2, 3, 1).contiguous()


torch.library.impl("ladder::conv2d_gradient", "CUDA", _gradient)


@torch.library.register_fake("ladder::conv2d_gradient")
def _(
    grad: Tensor,
    image: Tensor,
    weight: int,
    shape: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int = 1,
) -> Tensor:
    return grad.new_empty(shape)
