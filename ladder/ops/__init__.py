# SPDX-License-Identifier: Apache-2.0
"""Typed front of ``torch.ops.ladder``: schemas and CPU kernels are C++ (``csrc/binding/torch``);
fakes, gradients and the fallback for other devices are here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ladder import _library  # noqa: F401  (registers torch.ops.ladder)
from ladder.errors import Unsupported
from ladder.ops import activations
from ladder.ops.codes import linear_codes as linear_codes
from ladder.ops.transforms import ACTIVATION_DTYPES as ACTIVATION_DTYPES
from ladder.ops.transforms import (
    check_activations,
    check_bias,
    check_residual,
    check_same_device,
    linear_by_values,
    plus,
    transformed,
)
from ladder.types import TType, _checked, parse

_ops = torch.ops.ladder


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes along K at exactly ``bits`` bits: a little-endian bit stream, rows padded to
    32 bits.

    Args:
        codes: [N, K] uint8.
        bits: 1 to 8.
    Returns:
        [N, ceil(K * bits / 32)] int32.
    Raises:
        InvalidArgument: a code does not fit ``bits``; wrong dtype or shape.
    """
    return _checked(_ops.pack, codes.contiguous(), bits)


def unpack(qweight: Tensor, k: int, bits: int) -> Tensor:
    """Inverse of :func:`pack`: [N, k] uint8."""
    return _checked(_ops.unpack, qweight.contiguous(), k, bits)


def encode(values: Tensor, element: str) -> Tensor:
    """Codes of the values of ``element`` nearest to ``values`` (any shape, float32), ties to even,
    saturating. Returns uint8 of that shape."""
    flat = values.to(torch.float32).contiguous().view(-1)
    return _checked(_ops.encode, flat, element).view(values.shape)


def linear(
    x: Tensor,
    qweight: Tensor,
    type: str | TType,
    *,
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    scale2: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation_type: str | None = None,
    input_scale: Tensor | None = None,
) -> Tensor:
    """``y[..., n] = sum_k x[..., k] * value(w)[n, k] + bias[n] + residual[..., n]``, accumulated in
    float32.

    Args:
        x: [..., K] float32, float16 or bfloat16, any strides; may be empty.
        qweight: [N, ceil(K * bits / 32)] int32, from :func:`pack`.
        type: tType of the weight; the other parts are as :class:`ladder.Weight` says.
        bias: [N] in the dtype of ``x``.
        residual: of the shape and dtype of the result, any strides. A CPU adds it in float32 before
            y is rounded; this function on other devices, and under ``torch.func``, to y rounded.
        activation_type: "int8" rounds ``x`` to 8 bits first, and "float8_e4m3" and
            "float8_e4m3,fast_accum" too, on a GPU: see Error.
        input_scale: float32 of one number, the scale by which a GPU rounds all tokens to
            ``activation_type``; None has each token have one of its own. A CPU does not ask for it.
    Returns:
        [..., N] in the dtype of ``x``, in memory of its own. Gradients and tangents flow to ``x``,
        ``bias`` and ``residual``; under ``torch.func`` and forward-mode differentiation by torch's
        own ops on :func:`dequantize`. Gradients go through the rounding of ``x`` as if it were not
        there.
    Raises:
        InvalidArgument: ``x`` has no dimension or another dtype; a part does not fit ``type``, K or
            N, or the residual the result; the message has both values; an ``activation_type``
            that is not known.
        Unsupported: ``activation_type`` on a device that has no kernels for it, or with a type or
            ``g_idx`` that it does not take: :func:`ladder.ops.activations.objection` says why.
    Error:
        Within :func:`ladder.testing.bound`; exact when every partial sum is an integer below 2**24.

        With "int8" on the CPU, x is :func:`ladder.ops.activations.round_activations`, at most
        s = max |x| / 254 (1 + 2**-22) away in each block of 32 or 128 columns; and each value of
        a code is the one that :func:`ladder.ops.activations.int8` gives, v8 for v: that of the
        format for integers and all formats whose values are whole multiples of a power of two
        within 255 of each other, else at most max |v| / 254 away. Products of rounded numbers are
        summed exactly within a block and a group, their float32 sums as above. So

        ``|y - y64| <= sum_k s |w| + sum_k |x8| |v8 - v| scale + bound(x8, w8)``

        where zeros that are no integers ("original", "rescale") are subtracted from sums, so that
        w8 of the bound is larger than the weight by 2 scale |v|. A result is exact when the
        largest magnitude of each block is 127 times a power of two of which all x are multiples,
        and scales are such powers.

        On a GPU up to 48 tokens are multiplied as they come. Of more, x is
        :func:`ladder.ops.activations.round_tokens`, with one scale for each token, at most
        s = max |x| / 254 (1 + 2**-22) away with "int8", and 2**-4 |x| + 2**-18 max |x| with
        "float8_e4m3"; values of codes are not rounded. With ``input_scale`` c, where c times the
        largest code is not exceeded, it is at most c / 2 (1 + 2**-15) away, and
        2**-4 |x| + 2**-10 c. Kernels sum products exactly within a group
        with "int8", and with "float8_e4m3" by the instruction, whose sums of 128 columns at most
        (with "float8_e4m3,fast_accum" of a group or a row) have 14 significant bits on NVIDIA's
        GPUs, then in float32. This function, which decodes the weight in
        each call, and products where a compiler or driver fails, round x once more to its dtype.
    """
    parts = (qweight, scales, zeros, scale2, g_idx)
    if activation_type is None:
        op = _ops.linear
    else:
        if not torch.compiler.is_compiling():  # else the op's fake does
            _check_rounded(x, qweight, g_idx, str(type), activation_type)
        op = _ops.linear_int8 if activation_type == "int8" else _ops.linear_float8_e4m3
    if transformed():
        check_activations(x)
        values = _checked(_ops.dequantize, *parts, str(type), x.shape[-1])
        if activation_type is None:
            return plus(linear_by_values(x, values, bias), residual)
        check_bias(bias, x, values.shape[0])
        y = linear_by_values(rounded(x, str(type), activation_type, input_scale), values, None)
        return plus((y if bias is None else y + bias).to(x.dtype), residual)
    if activation_type is not None and input_scale is not None and x.device.type == "cuda":
        x, op = rounded(x, str(type), activation_type, input_scale).to(x.dtype), _ops.linear
    given = () if residual is None else (residual,)
    return _checked(op, x, *parts, bias, str(type), *given)


def rounded(
    x: Tensor, type: str, activation_type: str, input_scale: Tensor | None = None
) -> Tensor:
    """What products by weights of ``type`` see of ``x``: float32, or ``x`` itself where its device
    multiplies so few tokens as they come."""
    if x.device.type != "cuda":
        return activations.round_activations(x, parse(type))
    if x.dim() == 0 or x.shape[:-1].numel() <= activations.MOST_TOKENS_AS_THEY_COME:
        return x
    return activations.round_tokens(x, activation_type, input_scale)


def _check_rounded(
    x: Tensor, qweight: Tensor, g_idx: Tensor | None, type: str, activation_type: str
) -> None:
    device, ttype, k = x.device, parse(type), int(x.shape[-1]) if x.dim() else 0
    activations.check(activation_type, ttype, k, device.type)
    if g_idx is not None:
        raise Unsupported(activations.no_g_idx(activation_type))
    if why := activations.device_objection(activation_type, device.type):
        raise Unsupported(why)
    if device.type == "cuda" and torch.cuda.is_available():
        n, index = int(qweight.shape[0]), device.index or 0
        if why := activations.gpu_objection(activation_type, type, n, k, index):
            raise Unsupported(why)


def dequantize(
    qweight: Tensor,
    type: str | TType,
    k: int,
    *,
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    scale2: Tensor | None = None,
    g_idx: Tensor | None = None,
) -> Tensor:
    """The weight's values, [N, k] float32, the products rounded once each."""
    return _checked(_ops.dequantize, qweight, scales, zeros, scale2, g_idx, str(type), k)


# --- fakes: shapes and dtypes for torch.compile and torch.export ---------------------------------


@torch.library.register_fake("ladder::pack")
def _(codes: Tensor, bits: int) -> Tensor:
    n, k = codes.shape
    return codes.new_empty((n, (k * bits + 31) // 32), dtype=torch.int32)


@torch.library.register_fake("ladder::unpack")
def _(qweight: Tensor, k: int, bits: int) -> Tensor:
    return qweight.new_empty((qweight.shape[0], k), dtype=torch.uint8)


@torch.library.register_fake("ladder::encode")
def _(values: Tensor, element: str) -> Tensor:
    return values.new_empty(values.shape, dtype=torch.uint8)


@torch.library.register_fake("ladder::dequantize")
def _(
    qweight: Tensor,
    scales: Tensor | None,
    zeros: Tensor | None,
    scale2: Tensor | None,
    g_idx: Tensor | None,
    type: str,
    k: int,
) -> Tensor:
    return qweight.new_empty((qweight.shape[0], k), dtype=torch.float32)


@torch.library.register_fake("ladder::quantize")
def _(weight: Tensor, type: str, search: bool) -> list[Tensor]:
    ttype, (n, k) = parse(type), weight.shape
    shape, dtype = ttype.zeros_shape(n, k), ttype.zeros_dtype

    def part(size: tuple[int, ...] | None, dtype: torch.dtype | None) -> Tensor:
        if size is None or dtype is None:
            return weight.new_empty((0,), dtype=torch.uint8)
        return weight.new_empty(size, dtype=dtype)

    return [
        weight.new_empty((n, ttype.words(k)), dtype=torch.int32),
        part((ttype.block_rows(n), ttype.groups(k)), ttype.scale_dtype),
        part(shape, dtype),
        part(ttype.scale2_shape(n, k), ttype.scale2_dtype),
    ]


def _fake_of(activation_type: str | None) -> Callable[..., Tensor]:
    def fake(
        x: Tensor,
        qweight: Tensor,
        scales: Tensor | None,
        zeros: Tensor | None,
        scale2: Tensor | None,
        g_idx: Tensor | None,
        bias: Tensor | None,
        type: str,
        residual: Tensor | None = None,
    ) -> Tensor:
        check_activations(x)
        if activation_type is not None:
            _check_rounded(x, qweight, g_idx, type, activation_type)
        check_same_device(x, qweight)
        y = x.new_empty((*x.shape[:-1], qweight.shape[0]))
        if residual is not None:
            check_residual(residual, y)
        return y

    return fake


torch.library.register_fake("ladder::linear", _fake_of(None))
for _type in activations.FORMATS_OF_X:
    torch.library.register_fake(f"ladder::linear_{_type}", _fake_of(_type))


# --- gradients: the weight is frozen; x, bias and residual are not --------------------------------


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, qweight, scales, zeros, scale2, g_idx, _bias, type, residual = inputs
    for name, wanted in zip(("scales", "zeros", "scale2"), ctx.needs_input_grad[2:5], strict=True):
        if wanted:
            raise Unsupported(
                f"{name} requires a gradient, and parts of packed weights have none: train "
                "adapters, biases or the dequantised layer"
            )
    ctx.save_for_backward(qweight, scales, zeros, scale2, g_idx)
    ctx.type, ctx.k, ctx.has_residual = type, x.shape[-1], residual is not None


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    qweight, scales, zeros, scale2, g_idx = ctx.saved_tensors
    grad_x = grad_bias = None
    if ctx.needs_input_grad[0]:
        values = _ops.dequantize(qweight, scales, zeros, scale2, g_idx, ctx.type, ctx.k)
        grad_x = grad @ values.to(grad.dtype)
    if ctx.needs_input_grad[6]:
        grad_bias = grad.sum(tuple(range(grad.dim() - 1))) if grad.dim() > 1 else grad
    grad_residual = grad if ctx.has_residual else None
    return grad_x, None, None, None, None, None, grad_bias, None, grad_residual


for _name in ("linear", "linear_int8", "linear_float8_e4m3"):  # straight through the rounding
    torch.library.register_autograd(f"ladder::{_name}", _backward, setup_context=_setup_context)
