# SPDX-License-Identifier: Apache-2.0
"""What :class:`ladder.Conv2d` computes where its kernels do not: padding that is none of theirs,
and the products of other devices."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from ladder import ops
from ladder.cuda.convolution import Geometry
from ladder.errors import InvalidArgument
from ladder.ops.transforms import check_activations, transformed

if TYPE_CHECKING:
    from ladder.nn.conv import Conv2d

#: Of windows that are written out at a time, for several images.
_MOST_NUMBERS = 1 << 26


def pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """Of y and x. Raises InvalidArgument for what is neither an integer nor two."""
    both = (value, value) if hasattr(value, "__index__") else value
    try:
        y, x = map(operator.index, both)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} is {value!r}, not an integer or two") from None
    return y, x


def sides(conv: Conv2d) -> tuple[tuple[int, int], tuple[int, int]]:
    """Padding above and below, left and right. Raises InvalidArgument where it is none."""
    padding = conv.padding
    if padding == "valid":
        return (0, 0), (0, 0)
    if padding == "same":
        if conv.stride != (1, 1):
            raise InvalidArgument(f'padding is "same", and stride {conv.stride}, not 1')
        every = [d * (t - 1) for d, t in zip(conv.dilation, conv.kernel_size, strict=True)]
        return (every[0] // 2, every[0] - every[0] // 2), (every[1] // 2, every[1] - every[1] // 2)
    if isinstance(padding, str) or min(padding) < 0:
        raise InvalidArgument(f'padding is {padding!r}, not "same", "valid" or sizes')
    return (padding[0], padding[0]), (padding[1], padding[1])


def padded(conv: Conv2d, x: Tensor) -> tuple[Tensor, Geometry]:
    """x [N, C, H, W] with the padding that is not the same on both sides, or not of zeros, and the
    rest."""
    (top, bottom), (left, right) = sides(conv)
    sizes = (conv.kernel_size, conv.stride)
    if conv.padding_mode == "zeros" and top == bottom and left == right:
        return x, Geometry(*sizes, (top, left), conv.dilation)
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    x = functional.pad(x, (left, right, top, bottom), mode=mode)
    return x, Geometry(*sizes, (0, 0), conv.dilation)


def filters(conv: Conv2d | nn.Conv2d, values: Tensor) -> Tensor:
    """[F, C / groups, Y, X] of the values of the weight, sharing their memory."""
    shape = (conv.out_channels, *conv.kernel_size, conv.in_channels // conv.groups)
    return values.view(shape).permute(0, 3, 1, 2)


def by_values(conv: Conv2d, x: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """[N, H', W', F], by dequantised weights and torch's convolution: on a CPU in float32, in which
    it computes halves anyway, so that weights are not rounded to these."""
    check_activations(x)
    if x.device != conv.device:
        raise InvalidArgument(f"x is on {x.device}, the weight on {conv.device}")
    dtype = x.dtype
    if x.device.type == "cpu":
        x, bias = x.float(), None if bias is None else bias.float()
    if not transformed():  # torch.func.vmap knows no memory formats
        x = x.contiguous(memory_format=torch.channels_last)
    values = filters(conv, conv.packed_weight.dequantize(x.dtype))
    _, stride, padding, dilation = geometry
    y = functional.conv2d(x, values, bias, stride, padding, dilation, conv.groups)
    return y.permute(0, 2, 3, 1).contiguous().to(dtype)


def by_columns(conv: Conv2d, x: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """[N, H', W', F], of windows that are written out: of image after image, where those of all are
    many."""
    kernel, stride, padding, dilation = geometry
    windows = geometry.windows(x.shape[2], x.shape[3], conv.in_channels)
    if not torch.compiler.is_compiling() and x.shape[0] > 1:
        of_image = windows.y.positions * windows.x.positions * conv.in_features
        if x.shape[0] * of_image > _MOST_NUMBERS:
            return torch.cat([by_columns(conv, one, bias, geometry) for one in x.split(1)])
    if geometry == Geometry((1, 1)):
        rows = x.permute(0, 2, 3, 1)
    else:
        columns = functional.unfold(x, kernel, dilation, padding, stride)
        columns = columns.unflatten(1, (conv.in_channels, kernel[0] * kernel[1]))
        rows = columns.permute(0, 3, 2, 1).flatten(2)
    y = ops.linear(
        rows,
        conv.qweight,
        conv._type_text,
        scales=conv.scales,
        zeros=conv.zeros,
        scale2=conv.scale2,
        g_idx=conv.g_idx,
        bias=bias,
    )
    return y.reshape(x.shape[0], windows.y.positions, windows.x.positions, conv.out_channels)
