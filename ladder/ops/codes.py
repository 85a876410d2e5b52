# SPDX-License-Identifier: Apache-2.0
"""Activations that are codes of 8 bits already, with the scales that their producer gave them."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ladder import _library  # noqa: F401  (registers torch.ops.ladder)
from ladder.errors import InvalidArgument, Unsupported
from ladder.ops.activations import nearest_codes, static_scale_objection
from ladder.ops.transforms import (
    ACTIVATION_DTYPES,
    check_bias_dtype,
    check_same_device,
    transformed,
)
from ladder.types import TType, _checked, dtype_name, parse

_ops = torch.ops.ladder

#: dtype of codes -> the activation_type whose kernels multiply them.
CODE_DTYPES = {torch.int8: "int8", torch.float8_e4m3fn: "float8_e4m3"}
#: What ``out_dtype`` may be; int32 of integers without scales alone, 8 bits with ``out_scale``.
OUT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int32, *CODE_DTYPES)
#: Whole numbers up to this are float32, in whatever order they are added up.
_FLOAT32_WHOLE = 2.0**24
_INT32_WHOLE = 2.0**31
_LARGEST_INT8 = 128
# Of torch._int_mm on CUDA devices: more rows than this, and multiples of that.
_FEWEST_ROWS, _MULTIPLE = 17, 8


def linear_codes(
    x: Tensor,
    qweight: Tensor,
    type: str | TType,
    *,
    x_scale: Tensor | None = None,
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    scale2: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.float16,
    out_scale: Tensor | None = None,
) -> Tensor:
    """``y[..., n] = x_scale * sum_k x[..., k] * value(w)[n, k] + bias[n]`` of codes ``x``.

    ``out_dtype`` int8 or float8_e4m3fn gives codes of y by ``out_scale``: the ``x`` and the
    ``x_scale`` of the next layer.

    This function decodes the weight in each call, but on the CPU.
    :meth:`ladder.Linear.forward_codes` multiplies by the tensor cores of a GPU.

    Args:
        x: [..., K] int8 or float8_e4m3fn.
        qweight: [N, ceil(K * bits / 32)] int32; other parts as :func:`ladder.ops.linear`.
        x_scale: float32, one number, or one for each token: [..., 1] of the shape of ``x``. None
            is 1.
        bias: [N] in ``out_dtype``; float16, bfloat16 or float32 beside codes of y.
        out_dtype: float16, bfloat16, float32, int32, int8 or float8_e4m3fn.
        out_scale: float32, one number, on the device of ``x``, where ``out_dtype`` has 8 bits, and
            nowhere else. It is to be positive and finite, as its inverse: looked at on a CPU only,
            since a GPU would be waited for; there others give codes that mean nothing.
    Returns:
        [..., N] in ``out_dtype``. int32 are the exact sums of int8 ``x`` and a weight of whole
        numbers without scales; ``x_scale`` and ``bias`` are then None. Codes are those of
        :func:`ladder.ops.activations.nearest_codes` of y in float32.
    Raises:
        InvalidArgument: a dtype or shape that does not fit; int32 of anything else; ``out_scale``
            without codes of y, or codes without it.
        Unsupported: ``x``, a scale or ``bias`` asks for a gradient: codes have none, and what
            trains takes :attr:`ladder.Linear.activation_type`.
    Error:
        Sums are float32: within :func:`ladder.testing.bound` of the product of codes and values,
        times ``x_scale``, whose product is rounded to float32 once more.
    """
    n, k, ttype = int(qweight.shape[0]), int(x.shape[-1]) if x.dim() else 0, parse(type)
    check_codes(x, x_scale, bias, k, n, out_dtype, out_scale)
    parts = (qweight, scales, zeros, scale2, g_idx)

    def values() -> Tensor:
        return _checked(_ops.dequantize, *parts, str(ttype), k)

    if out_dtype == torch.int32:
        require_whole(x, x_scale, bias, ttype, k)
        if x.device.type != "cpu" or not are_exact_in_float32(ttype, k):
            return whole_sums(x, values(), ttype)
        return _checked(_ops.linear, x.to(torch.float32), *parts, None, str(ttype)).to(out_dtype)
    check_same_device(x, qweight)
    if x.device.type != "cpu":
        return multiply_codes(x, x_scale, values(), bias, out_dtype, out_scale)
    y = _checked(_ops.linear, x.to(torch.float32), *parts, None, str(ttype))
    return _finished(y, x_scale, bias, out_dtype, out_scale)


def check_codes(
    x: Tensor,
    x_scale: Tensor | None,
    bias: Tensor | None,
    k: int,
    n: int,
    out_dtype: torch.dtype,
    out_scale: Tensor | None = None,
) -> None:
    """Raise InvalidArgument or Unsupported unless the arguments are as :func:`linear_codes` says,
    for a weight [n, k]."""
    for name, given in (("x_scale", x_scale), ("out_scale", out_scale)):
        if given is not None and not isinstance(given, Tensor):
            # A number would be copied to a GPU, and waited for, in each call.
            raise InvalidArgument(f"{name} is {given!r}, not a float32 tensor")
    if x.dtype not in CODE_DTYPES:
        raise InvalidArgument(f"x has dtype {dtype_name(x.dtype)}, not int8 or float8_e4m3fn")
    if x.dim() == 0:
        raise InvalidArgument("x has no dimension; its last one must be in_features")
    if x.shape[-1] != k:
        raise InvalidArgument(f"x has {x.shape[-1]} columns; the weight has {k}")
    if out_dtype not in OUT_DTYPES:
        known = ", ".join(map(dtype_name, OUT_DTYPES))
        raise InvalidArgument(f"out_dtype is {dtype_name(out_dtype)}, not one of {known}")
    _check_out_scale(x, out_dtype, out_scale)
    of_call = (("x", x), ("x_scale", x_scale), ("out_scale", out_scale), ("bias", bias))
    for name, given in of_call:
        if given is not None and given.requires_grad and torch.is_grad_enabled():
            raise Unsupported(
                f"{name} asks for a gradient, which products of codes have not: detach it, or "
                "train with activation_type"
            )
    if x_scale is not None:
        each = (*x.shape[:-1], 1)
        if x_scale.dtype != torch.float32 or (x_scale.numel() != 1 and x_scale.shape != each):
            raise InvalidArgument(
                f"x_scale is {list(x_scale.shape)} {dtype_name(x_scale.dtype)}, not one float32 "
                f"or {list(each)} of them"
            )
    if bias is not None and out_dtype != torch.int32:
        own = out_dtype in CODE_DTYPES and bias.dtype in ACTIVATION_DTYPES
        check_bias_dtype(bias, bias.dtype if own else bias_dtype(out_dtype), n)


def bias_dtype(out_dtype: torch.dtype) -> torch.dtype:
    """What a bias is rounded to: codes of y are made of float32."""
    return torch.float32 if out_dtype in CODE_DTYPES else out_dtype


def _check_out_scale(x: Tensor, out_dtype: torch.dtype, out_scale: Tensor | None) -> None:
    if (out_dtype in CODE_DTYPES) != (out_scale is not None):
        raise InvalidArgument(
            f"out_dtype is {dtype_name(out_dtype)}, and out_scale is "
            f"{'missing' if out_scale is None else 'given'}: codes of 8 bits have one, others none"
        )
    if out_scale is None:
        return
    if out_scale.dtype != torch.float32 or out_scale.numel() != 1:
        raise InvalidArgument(
            f"out_scale is {list(out_scale.shape)} {dtype_name(out_scale.dtype)}, not one float32"
        )
    if out_scale.device != x.device:
        raise InvalidArgument(f"out_scale is on {out_scale.device}, and x on {x.device}")
    # Numbers of a GPU would be waited for, and those of a trace are not there.
    there = out_scale.device.type == "cpu" and not torch.compiler.is_compiling()
    plain = type(out_scale) in (Tensor, torch.nn.Parameter) and not transformed()
    if there and plain and (why := static_scale_objection(out_scale, "out_scale")):
        raise InvalidArgument(why)


def require_whole(
    x: Tensor, x_scale: Tensor | None, bias: Tensor | None, ttype: TType, k: int
) -> None:
    """Raise InvalidArgument unless sums are whole numbers that int32 holds."""
    if x.dtype != torch.int8:
        raise InvalidArgument(f"out_dtype is int32, and x has dtype {dtype_name(x.dtype)}")
    for name, given in (("x_scale", x_scale), ("bias", bias)):
        if given is not None:
            raise InvalidArgument(f"out_dtype is int32, and {name} is given: sums are as they are")
    if not has_whole_values(ttype):
        raise InvalidArgument(f"out_dtype is int32, and {ttype} has scales or fractions")
    if largest_sum(ttype, k) >= _INT32_WHOLE:
        raise InvalidArgument(f"sums of {k} products of int8 and {ttype} need not fit int32")


def _bounds(type: str) -> tuple[bool, float, float]:
    """Whether values are whole and have no scales, the least of them and the largest."""
    return _found_bounds(type)


# Asked when a graph is traced, not by it.
_bounds._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _found_bounds(type: str) -> tuple[bool, float, float]:
    ttype = parse(type)
    if ttype.scale is not None or ttype.scale2 is not None or ttype.bits > 8:
        return False, 0.0, 0.0
    values = ttype.element.values
    whole = bool(values.isfinite().all()) and bool((values == values.round()).all())
    low, high = (float(values.min()), float(values.max())) if whole else (0.0, 0.0)
    if ttype.zero == "midpoint":
        middle = float(1 << (ttype.bits - 1))
        low, high = low - middle, high - middle
    elif ttype.zero in ("integer", "quantized"):
        low -= 255.0
    return whole and ttype.zero not in ("original", "rescale"), low, high


def has_whole_values(ttype: TType) -> bool:
    """Whether the values of weights are whole numbers without scales."""
    return _bounds(str(ttype))[0]


def largest_sum(ttype: TType, k: int) -> float:
    """The largest magnitude of a sum of ``k`` products of int8 and such values."""
    _, low, high = _bounds(str(ttype))
    return k * _LARGEST_INT8 * max(abs(low), abs(high))


def are_exact_in_float32(ttype: TType, k: int) -> bool:
    """Whether float32 holds all sums of int8 ``x``, and of parts of them."""
    return has_whole_values(ttype) and largest_sum(ttype, k) <= _FLOAT32_WHOLE


def whole_sums(x: Tensor, values: Tensor, ttype: TType) -> Tensor:
    """The exact product of int8 ``x`` and the whole ``values`` [N, K] of a weight of ``ttype``,
    int32."""
    _, low, high = _bounds(str(ttype))
    if low >= -128 and high <= 127:
        return int8_product(x, values.to(torch.int8))
    if low >= 0 and high <= 255:
        # Less 128, whose products add up to that times the sum of x.
        more = x.to(torch.int32).sum(-1, keepdim=True, dtype=torch.int32) * 128
        return int8_product(x, (values - 128).to(torch.int8)) + more
    return (x.double() @ values.double().t()).to(torch.int32)


def int8_product(x: Tensor, w: Tensor) -> Tensor:
    """``x @ w.T`` of int8 [..., K] and [N, K], exactly, int32: by torch's integer product, which on
    CUDA devices has sizes that it takes, to which both are filled with zeros."""
    k, n = int(x.shape[-1]), int(w.shape[0])
    rows = x.reshape(-1, k)
    m = rows.shape[0]
    if x.device.type == "cpu":
        if m == 0:
            return x.new_zeros((*x.shape[:-1], n), dtype=torch.int32)
        return torch._int_mm(rows.contiguous(), w.t()).view(*x.shape[:-1], n)
    if x.device.type != "cuda" or not _has_int_mm(x.device.index or 0):
        return (rows.double() @ w.double().t()).to(torch.int32).view(*x.shape[:-1], n)
    columns = -k % _MULTIPLE
    rows = _filled(rows, columns, max(_FEWEST_ROWS - m, 0)).contiguous()
    y = torch._int_mm(rows, _filled(w, columns, -n % _MULTIPLE).contiguous().t())
    return y[:m, :n].reshape(*x.shape[:-1], n)


def _has_int_mm(device: int) -> bool:
    """Whether torch's integer product runs on a CUDA device: from Turing on, and AMD's."""
    return bool(torch.version.hip) or torch.cuda.get_device_capability(device) >= (7, 5)


_has_int_mm._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _filled(matrix: Tensor, columns: int, rows: int) -> Tensor:
    if columns == rows == 0:
        return matrix  # pad would copy it
    return torch.nn.functional.pad(matrix, (0, columns, 0, rows))


def multiply_codes(
    x: Tensor,
    x_scale: Tensor | None,
    values: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    out_scale: Tensor | None = None,
) -> Tensor:
    """:func:`linear_codes` of the weight's values [N, K], by torch's own ops."""
    y = torch.nn.functional.linear(x.to(torch.float32), values.to(torch.float32))
    return _finished(y, x_scale, bias, dtype, out_scale)


def _finished(
    y: Tensor,
    x_scale: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    out_scale: Tensor | None,
) -> Tensor:
    if x_scale is not None:
        y = y * (x_scale.reshape(()) if x_scale.numel() == 1 else x_scale.view(*y.shape[:-1], 1))
    if bias is not None:
        y = y + bias.to(torch.float32)
    return y.to(dtype) if out_scale is None else nearest_codes(y, out_scale, dtype)


# The library calls it where a compiler or driver fails: csrc/binding/torch/cuda_codes.cpp.
_fragment = torch.library.Library("ladder", "FRAGMENT")
_fragment.define(
    "multiply_codes(Tensor x, Tensor? x_scale, Tensor values, Tensor? bias, ScalarType dtype, "
    "Tensor? out_scale=None) -> Tensor"
)
_fragment.impl("multiply_codes", multiply_codes, "CompositeExplicitAutograd")
