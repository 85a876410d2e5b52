# SPDX-License-Identifier: Apache-2.0
"""``ladder.Conv2d``: a drop-in for ``torch.nn.Conv2d`` whose weight is packed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ladder.cuda.convolution import Geometry, conv2d
from ladder.cuda.experts import Stack
from ladder.cuda.linear import linear_image
from ladder.cuda.request import check_mode
from ladder.cuda.residual import linear_residual
from ladder.cuda.tune_items import ItemsProblem
from ladder.cuda.tune_items import tune as tune_items
from ladder.errors import InvalidArgument
from ladder.nn.arguments import check_integers, named_input
from ladder.nn.conv_products import by_columns, by_values, filters, padded, pair, sides
from ladder.nn.metadata import WeightMetadata
from ladder.nn.packed import PackedModule
from ladder.nn.select_conv import filter_rows
from ladder.ops.transforms import (
    autocast,
    check_activations,
    check_residual,
    check_tensor,
    plus,
)
from ladder.quantization import quantize
from ladder.types import TType, with_defaults
from ladder.weight import Weight

if TYPE_CHECKING:
    from typing_extensions import Self

_MODES = ("zeros", "reflect", "replicate", "circular")


class Conv2d(PackedModule):
    """``torch.nn.Conv2d`` with the weight stored as its tType says.

    The weight is [F, Y X C / groups]: row f has what filter f multiplies, y and x outside, channels
    inside, so that a group of a scale has neighbouring channels of one place. With ``groups`` the
    filters of a group are rows side by side. Its parts are buffers as those of
    :class:`ladder.Linear`. x is [N, C, H, W] in any memory format. Kernels read
    channels-last images, which is how ``x.to(memory_format=torch.channels_last)`` has them and what
    this module gives; other x are copied first.

    On a CUDA device windows are read as they are copied to shared memory: no matrix of them is
    written. Windows of one number with strides of one are a linear layer. The CPU writes such a
    matrix, of one image where it is large (``torch.nn.functional.unfold``); other devices, GPUs
    without kernels for the type, and convolutions of several groups everywhere, convolve with
    weights that each call dequantises.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode: as ``torch.nn.Conv2d``.
        weight_type, group_size, symmetric: as :class:`ladder.Linear`, of rows of Y X C / groups
            columns. Depthwise filters have few (9 of 3 x 3), which share one scale, padded to whole
            words of 32 bits.
        dtype: as :class:`ladder.Linear`.
    Raises:
        InvalidArgument: a size that is not positive, ``groups`` that do not divide the channels, an
            unknown type or padding.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_integers(in_channels=in_channels, out_channels=out_channels, groups=groups)
        kernel, step = pair("kernel_size", kernel_size), pair("stride", stride)
        apart = pair("dilation", dilation)
        if min(in_channels, out_channels, groups, *kernel, *step, *apart) < 1:
            raise InvalidArgument(
                f"in_channels is {in_channels}, out_channels {out_channels}, kernel_size {kernel}, "
                f"stride {step}, dilation {apart} and groups {groups}, not all positive"
            )
        if in_channels % groups or out_channels % groups:
            raise InvalidArgument(
                f"groups is {groups}, which does not divide in_channels {in_channels} and "
                f"out_channels {out_channels}"
            )
        if padding_mode not in _MODES:
            raise InvalidArgument(f'padding_mode is "{padding_mode}", not one of {_MODES}')
        ttype = with_defaults(weight_type, group_size=group_size, symmetric=symmetric)
        dtype = dtype or torch.get_default_dtype()
        k = kernel[0] * kernel[1] * (in_channels // groups)
        super().__init__(k, out_channels, ttype, False, device, dtype)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride, self.dilation = kernel, step, apart
        self.padding: str | tuple[int, int] = (
            padding if isinstance(padding, str) else pair("padding", padding)
        )
        self.padding_mode = padding_mode
        sides(self)  # raises where the padding is none
        zeros = torch.zeros(out_channels, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if zeros is None else nn.Parameter(zeros))

    @classmethod
    def from_float(
        cls,
        conv: nn.Module,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        method: str = "search",
    ) -> Conv2d:
        """Quantise an ``nn.Conv2d``; arguments as :func:`ladder.quantize`. The bias is the very
        parameter that it was.

        Raises:
            InvalidArgument: ``conv`` is something else, or its weight is not finite.
        """
        if not isinstance(conv, nn.Conv2d):
            raise InvalidArgument(f"conv is of {type(conv).__name__}, not nn.Conv2d")
        ttype = with_defaults(weight_type, group_size=group_size, symmetric=symmetric)
        rows = filter_rows(conv.weight.detach())
        return cls.in_place_of(conv, quantize(rows, ttype, method=method))

    @classmethod
    def in_place_of(cls, conv: nn.Conv2d, weight: Weight) -> Self:
        """A module that holds ``weight`` (not a copy), else as ``conv``, whose very bias it has.

        Raises:
            InvalidArgument: ``weight`` has another shape than the filters of ``conv``.
        """
        options: Any = {
            name: getattr(conv, name)
            for name in (
                "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation",
                "groups", "padding_mode",
            )
        }  # fmt: skip
        module = cls(
            **options, bias=False, weight_type=weight.type, device="meta", dtype=conv.weight.dtype
        )
        module.set_weight(weight)
        module._parameters["bias"] = cast("nn.Parameter | None", conv.bias)
        return module.train(conv.training)

    @classmethod
    def from_weight(cls, weight: Weight, in_channels: int, *args: Any, **options: Any) -> Conv2d:
        """A module that holds ``weight`` [F, Y X C / groups] (not a copy), with a bias of zeros
        unless ``bias=False``; further arguments as the class's from ``kernel_size`` on."""
        options |= {"weight_type": weight.type, "device": weight.qweight.device}
        module = cls(in_channels, weight.shape[0], *args, **options)
        module.set_weight(weight)
        return module

    def dequantize(self, dtype: torch.dtype | None = None) -> nn.Conv2d:
        """An ``nn.Conv2d`` with the weight's values, in ``self.dtype`` unless given."""
        dtype = dtype or self.dtype
        with torch.device("meta"):
            dense = nn.Conv2d(
                self.in_channels, self.out_channels, self.kernel_size, self.stride, self.padding,
                self.dilation, self.groups, self.bias is not None,
                padding_mode=cast(Any, self.padding_mode),
            )  # fmt: skip
        values = self.packed_weight.dequantize(dtype)
        dense.weight = nn.Parameter(filters(self, values).contiguous())
        if self.bias is not None:
            dense.bias = nn.Parameter(self.bias.detach().to(dtype))
        return dense.train(self.training)

    @property
    def weight(self) -> Tensor:
        """Shape [F, C / groups, Y, X], dtype and device of the dense weight; no elements, as
        :attr:`ladder.Linear.weight`."""
        shape = (self.out_channels, self.in_channels // self.groups, *self.kernel_size)
        return WeightMetadata(shape, self.dtype, self.device)

    def forward(
        self, x: Tensor | None = None, residual: Tensor | None = None, *, input: Any = None
    ) -> Tensor:
        """Multiply windows.

        Args:
            x: [N, C, H, W] or [C, H, W], float32, float16 or bfloat16, any memory format.
            residual: of the shape and dtype of the result, to which kernels add it in float32
                before rounding; elsewhere torch adds it to the rounded result. A residual that is
                channels last in memory is read where it lies, others are copied.
            input: another name of ``x``, which it has in ``nn.Conv2d``.
        Returns:
            [N, F, H', W'] or [F, H', W'], channels last in memory, in the dtype of ``x``, or of
            autocast where that is on. Gradients flow to ``x``, residual and bias.
        Raises:
            InvalidArgument: another number of dimensions or channels, images smaller than a window,
                or a residual of another shape, dtype or device; the message has both values.
        Error:
            As :func:`ladder.ops.linear` of the windows. With several groups a CPU sums in float32
            and rounds once; GPUs multiply by weights in the dtype of ``x``.
        """
        x = named_input(x, input)
        check_tensor(x)
        if x.dim() not in (3, 4) or x.shape[-3] != self.in_channels:
            raise InvalidArgument(
                f"x has shape {list(x.shape)}, not [N, {self.in_channels}, H, W] or "
                f"[{self.in_channels}, H, W]"
            )
        x = autocast(x)
        check_activations(x)
        if residual is not None:
            check_tensor(residual, "residual")
        if x.dim() == 3:
            return self._images(x[None], None if residual is None else residual[None])[0]
        return self._images(x, residual)

    def _images(self, x: Tensor, residual: Tensor | None) -> Tensor:
        x, geometry = padded(self, x)
        windows = geometry.windows(x.shape[2], x.shape[3], self.in_channels)
        if min(windows.y.positions, windows.x.positions) < 1:
            raise InvalidArgument(
                f"x has images of {list(x.shape[2:])}, smaller than windows of "
                f"{list(self.kernel_size)} with padding {self.padding} and dilation {self.dilation}"
            )
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if residual is not None:
            shape = (x.shape[0], self.out_channels, windows.y.positions, windows.x.positions)
            check_residual(residual, x.new_empty(shape, device="meta"), on=x.device)
        y = self._by_kernels(x, bias, geometry, residual) if x.is_cuda else None
        if y is None:
            written = x.device.type in ("cpu", "meta") and self.groups == 1
            y = (by_columns if written else by_values)(self, x, bias, geometry)
            return plus(y.permute(0, 3, 1, 2), residual)
        return y.permute(0, 3, 1, 2)

    def _by_kernels(
        self, x: Tensor, bias: Tensor | None, geometry: Geometry, residual: Tensor | None
    ) -> Tensor | None:
        """[N, H', W', F]; None where this device has no kernels for the type, or has failed."""
        if torch.compiler.is_compiling():
            self._prepare_for_trace()
        else:
            self.prepare()
        if self.image is None:
            return None
        rows, number, n = x.permute(0, 2, 3, 1), self._weight_number, self.out_channels
        added = None if residual is None else residual.permute(0, 2, 3, 1)
        try:
            if geometry == Geometry((1, 1)) and self.groups == 1:
                if added is None:
                    return linear_image(rows, self.image, bias, number, n)
                return linear_residual(rows, added, self.image, bias, number, n)
            return conv2d(rows, self.image, bias, number, n, geometry, self.groups, added)
        except RuntimeError:
            if torch.compiler.is_compiling() or not self._leave_kernels():
                raise
            return None

    def _prepare_for_trace(self) -> None:
        """As :class:`ladder.Linear` has it."""
        if not torch.compiler.is_exporting() and type(self.qweight) is Tensor:
            self.prepare()

    _prepare_for_trace._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def warmup(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.float16,
        *,
        tune: str = "fast",
        budget: float = 20.0,
    ) -> str:
        """Compile and time the kernel for x of ``shape`` [N, C, H, W], as :func:`ladder.warmup`
        does for tokens: kernels know the size of images, and are the same for all N up to a power
        of two of windows. Elsewhere than on a CUDA device it does nothing; of several groups it
        gives the weight the form of kernels alone.

        Args:
            tune, budget: as :func:`ladder.warmup`.
        Returns:
            The schedule that was chosen by timing now, or "".
        """
        mode = check_mode(tune)
        if len(shape) != 4 or shape[1] != self.in_channels:
            raise InvalidArgument(f"shape is {list(shape)}, not [N, {self.in_channels}, H, W]")
        if self.device.type != "cuda" or not self.prepare() or self.image is None:
            return ""
        if self.groups > 1:  # there are no kernels to choose from
            return ""
        x, geometry = padded(self, torch.empty(shape, device="meta"))
        count, channels, height, width = x.shape
        windows = geometry.windows(height, width, channels)
        rows = count * windows.y.positions * windows.x.positions
        if geometry == Geometry((1, 1)):
            self.compile_for(dtype, rows)
            return ""
        stack = Stack(
            self.image[None], self._weight_number, (self.out_features, self.in_features),
            self._type_text,
        )  # fmt: skip
        of_x = (count, height, width, channels)
        problem = ItemsProblem(stack, rows, windows.spelled, of_x, dtype)
        return tune_items(problem, mode, time.monotonic() + budget)

    def extra_repr(self) -> str:
        more = "" if self.groups == 1 else f", groups={self.groups}"
        more += "" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode}"
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"bias={self.bias is not None}{more}, weight_type={self._type_text}"
        )
