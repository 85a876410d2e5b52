# SPDX-License-Identifier: Apache-2.0
"""Calls of a packed layer with a residual, which is added where the sums are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch import is_autocast_enabled as _autocasting
from torch import is_grad_enabled as _grad_enabled
from torch.compiler import is_compiling as _is_compiling

from ladder._torch import forward_levels as _forward_levels
from ladder._torch import func_level as _func_level
from ladder.cuda.residual import linear_residual, linear_residual_no_grad
from ladder.errors import InvalidArgument
from ladder.ops.transforms import check_tensor, plus

if TYPE_CHECKING:
    from ladder.nn.linear import Linear

_absent = object()


def with_residual(layer: Linear, x: Tensor, residual: Tensor) -> Tensor:
    """:meth:`ladder.nn.linear.Linear.forward` with a residual."""
    check_tensor(residual, "residual", jagged=True)
    check_tensor(x, jagged=True)
    if x.is_nested:
        return plus(layer(x), residual)
    if _is_compiling():
        layer._prepare_for_trace()
    elif (image := image_of_plain_call(layer, x, residual)) is not None:
        try:
            return linear_residual_no_grad(
                x, residual, image, layer.bias, layer._weight_number, layer.out_features, None
            )
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        except RuntimeError:
            if not layer._leave_kernels():
                raise

    def by_image(x: Tensor, bias: Tensor | None) -> Tensor:
        assert layer.image is not None
        return linear_residual(
            x, residual, layer.image, bias, layer._weight_number, layer.out_features,
            layer._function, layer._scale_of_x(),
        )  # fmt: skip

    def by_codes(x: Tensor, bias: Tensor | None) -> Tensor:
        if layer._function is None:
            return layer._sums_by_codes(x, bias, residual)
        return plus(layer._by_codes(x, bias), residual)

    return layer._multiplied(x, layer.bias, by_image, by_codes)


def added_to(residual: Tensor | None, layer: nn.Module, x: Tensor) -> Tensor:
    """``layer(x)``, plus the residual where there is one: in the same launch if ``layer`` is a
    one that adds it, as :class:`ladder.Linear`."""
    if residual is None:
        y: Tensor = layer(x)
        return y
    check_tensor(residual, "residual", jagged=True)
    if getattr(layer, "adds_residual", False):
        y = layer(x, residual)
        return y
    return plus(layer(x), residual)


def image_of_plain_call(layer: Linear, x: Tensor, residual: Tensor) -> Tensor | None:
    """The image, where a call has nothing to do but to start kernels, as ``Linear.forward`` asks:
    half of the host time of the other way."""
    state = layer.__dict__
    buffers, bias = state["_buffers"], state["_parameters"].get("bias", _absent)
    image: Tensor | None = buffers.get("image")
    if (
        image is None
        or bias is _absent
        or not (type(x) is type(residual) is Tensor)
        or "input_scale" in buffers
        or "pre_scale" in buffers
        or _autocasting()
        or _func_level() is not None
        or _forward_levels._current_level >= 0
        or (bias is not None and bias.dtype is not x.dtype)
    ):
        return None
    wanted = x.requires_grad or residual.requires_grad
    wanted = wanted or (bias is not None and bias.requires_grad)
    return None if wanted and _grad_enabled() else image
