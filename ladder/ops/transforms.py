# SPDX-License-Identifier: Apache-2.0
"""Layers under ``torch.func`` and forward-mode differentiation, which ops of Python's autograd know
nothing of: tangents would be dropped without a word, and gradients refused with an error about
``torch.autograd.Function``. There torch's own ops run, so what the kernels refuse is refused
here."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.nn import functional

from ladder._torch import transformed as transformed
from ladder.errors import InvalidArgument, Unsupported
from ladder.types import dtype_name

#: Dtypes of activations.
ACTIVATION_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_tensor(x: object, name: str = "x", *, jagged: bool = False) -> None:
    """Raise InvalidArgument unless it is a tensor whose numbers all are there, in rows of one
    length, or of several where ``jagged``; Unsupported for what torch.fx traces with."""
    if not isinstance(x, Tensor):
        if isinstance(x, fx.Proxy):
            raise Unsupported(
                "torch.fx.symbolic_trace cannot look into ladder's modules: give a Tracer whose "
                "is_leaf_module is true of them, or use torch.export.export"
            )
        raise InvalidArgument(f"{name} is of {type(x).__name__}, not a tensor")
    layout = x.layout
    if layout is torch.strided and x.is_nested:
        raise InvalidArgument(
            f"{name} is a nested tensor of layout torch.strided: torch.nested.nested_tensor(..., "
            "layout=torch.jagged) makes one that layers take"
        )
    if layout is torch.jagged and not jagged:
        raise InvalidArgument(
            f"{name} is a nested tensor, which this module does not take: {name}.values() are its "
            "rows"
        )
    if layout is not torch.strided and layout is not torch.jagged:
        raise InvalidArgument(f"{name} has layout {layout}, not torch.strided: {name}.to_dense()")


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """What autocast would have layers take ``x`` in; None where it is off for its device, or ``x``
    is no activation: as with torch's own layers that stays so, refused and not rounded."""
    device = x.device.type
    # meta has no autocast, and the compiler of torch 2.11 cannot trace the question whether.
    if x.dtype not in ACTIVATION_DTYPES or device == "meta":
        return None
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def autocast(x: Tensor) -> Tensor:
    """``x`` in :func:`autocast_dtype`, where there is one."""
    dtype = autocast_dtype(x)
    return x if dtype is None else x.to(dtype)


def check_activations(x: Tensor) -> None:
    """Raise InvalidArgument, as the kernels do, unless ``x`` is [..., K] and has one of
    :data:`ACTIVATION_DTYPES`."""
    if x.dim() == 0:
        raise InvalidArgument("x has no dimension; its last one must be in_features")
    if x.dtype not in ACTIVATION_DTYPES:
        given = dtype_name(x.dtype)
        raise InvalidArgument(f"x has dtype {given}, not float32, float16 or bfloat16")


def check_same_device(x: Tensor, qweight: Tensor) -> None:
    """Raise InvalidArgument, as the kernels do, unless both are on one device."""
    if x.device != qweight.device:
        raise InvalidArgument(f"x is on {x.device}, qweight on {qweight.device}")


def check_bias(bias: Tensor | None, x: Tensor, n: int) -> None:
    """Raise InvalidArgument, as the kernels do, unless ``bias`` is [n] in the dtype of ``x``."""
    if bias is not None:
        check_bias_dtype(bias, x.dtype, n)


def check_bias_dtype(bias: Tensor, dtype: torch.dtype, n: int) -> None:
    """Raise InvalidArgument unless ``bias`` is [n] of ``dtype``."""
    if bias.dtype != dtype:
        given, wanted = dtype_name(bias.dtype), dtype_name(dtype)
        raise InvalidArgument(f"bias has dtype {given}, not {wanted}")
    if tuple(bias.shape) != (n,):
        raise InvalidArgument(f"bias has shape {list(bias.shape)}, not [{n}]")


def check_residual(residual: Tensor, y: Tensor, on: torch.device | None = None) -> None:
    """Raise InvalidArgument, as the kernels do, unless ``residual`` has the shape and the dtype of
    ``y`` and is on the device ``on``, by default that of ``y``."""
    if residual.shape != y.shape:
        raise InvalidArgument(f"residual has shape {list(residual.shape)}, and y {list(y.shape)}")
    if residual.dtype != y.dtype:
        given, wanted = dtype_name(residual.dtype), dtype_name(y.dtype)
        raise InvalidArgument(f"residual has dtype {given}, and y {wanted}")
    on = on or y.device
    if residual.device != on:
        raise InvalidArgument(f"residual is on {residual.device}, and y on {on}")


def plus(y: Tensor, residual: Tensor | None) -> Tensor:
    """``y``, which is rounded, plus a residual by torch's own op; ``y`` itself where there is none.
    Raises InvalidArgument as :func:`check_residual`."""
    if residual is None:
        return y
    check_residual(residual, y)
    return y + residual


def linear_by_values(x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """``linear`` of the weight's values [N, K], rounded to the dtype of ``x``: torch's own ops
    only, which every transform goes through. Raises InvalidArgument for a bias that is not [N] in
    the dtype of ``x``."""
    check_bias(bias, x, values.shape[0])
    return functional.linear(x, values.to(x.dtype), bias)
