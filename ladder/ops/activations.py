# SPDX-License-Identifier: Apache-2.0
"""Activations of 8 bits: what ``activation_type`` may say of which weights and devices, and the
rounding of x in torch's own ops."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass

import torch
from torch import Tensor

from ladder import _library
from ladder.errors import InvalidArgument, Unsupported
from ladder.types import TType

#: What x may be rounded to. "float8_e4m3" is for GPUs alone.
FORMATS_OF_X = ("int8", "float8_e4m3")
#: "float8_e4m3" whose sums are those of tensor cores (:attr:`ladder.Linear.activation_type`).
FAST_ACCUM = "float8_e4m3,fast_accum"
#: What ``activation_type`` may be, beside None: x as it comes.
ACTIVATION_TYPES = (*FORMATS_OF_X, FAST_ACCUM)
#: Of GPUs, the number that the largest magnitude of a token becomes.
_LARGEST = {"int8": 127.0, "float8_e4m3": 448.0}
#: What codes of given scales may be.
_RANGE = {"int8": (-128.0, 127.0), "float8_e4m3": (-448.0, 448.0)}
#: GPUs multiply so many tokens as they come: csrc/runtime/session.h, kMostTokensAsTheyCome.
MOST_TOKENS_AS_THEY_COME = 48
#: Likewise calls of experts, whose rows each have some of the tokens.
MOST_EXPERT_TOKENS_AS_THEY_COME = 64
#: Devices that have products of rounded x, as torch calls them, for each of FORMATS_OF_X.
_DEVICES = {"int8": ("cpu", "cuda"), "float8_e4m3": ("cuda",)}

#: Wider codes take a product of their own for the zero point: csrc/layout/digits.h.
_MOST_SUBTRACTED_BITS = 7

#: Blocks of x, or tokens, whose largest magnitude is below this count as zeros.
_LEAST = 2.0**-100


def format_of_x(activation_type: str) -> str:
    """What ``activation_type`` rounds x to, one of :data:`FORMATS_OF_X`."""
    return activation_type.partition(",")[0]


def with_fast_accum(activation_type: str | None, fast: bool = True) -> str | None:
    """The same with fast sums or, not ``fast``, without, where x is rounded to float8_e4m3."""
    if activation_type not in ("float8_e4m3", FAST_ACCUM):
        return activation_type
    return FAST_ACCUM if fast else "float8_e4m3"


def no_g_idx(activation_type: str) -> str:
    """What is wrong with act-order."""
    return (
        f"activation_type {activation_type} does not take a weight with g_idx: the columns of a "
        "group are no neighbours, so their products have no common scale"
    )


def device_objection(activation_type: str, device: str) -> str:
    """Why devices of type ``device`` have no products of such x; "" when they may, and for "meta",
    which stands for any."""
    kinds = _DEVICES[format_of_x(activation_type)]
    if device in (*kinds, "meta"):
        return ""
    return (
        f"activation_type {activation_type} has kernels for devices of type "
        f"{' and '.join(kinds)}, and none for {device}"
    )


@dataclass(frozen=True)
class Int8:
    """How weights of one type meet x of 8 bits.

    Attributes:
        block: columns of x that share a scale.
        exact: codes keep their values; else each has the nearest multiple of one step.
        values: by code, what codes mean in such products, without scale and zero.
    """

    block: int
    exact: bool
    values: tuple[float, ...]


def objection(activation_type: str | None, ttype: TType, k: int, device: str = "cpu") -> str:
    """Why weights of ``ttype`` with ``k`` columns take no such activations on devices of type
    ``device``; "" when they do. Of "cuda", and of types that are for GPUs alone, it is "" when some
    GPU that ladder knows does; :func:`ladder.cuda.kernels.objection` asks one GPU.

    Raises:
        InvalidArgument: ``activation_type`` is none that ladder knows.
    """
    if activation_type is None:
        return ""
    if activation_type not in ACTIVATION_TYPES:
        known = ", ".join(f'"{name}"' for name in ACTIVATION_TYPES)
        raise InvalidArgument(f'activation_type is "{activation_type}", not {known} or None')
    if activation_type == "int8" and device != "cuda":
        return _info(str(ttype), k)[0]
    return _objection_of_gpus(activation_type, str(ttype), k)


def objection_of_all(activation_type: str | None, ttype: TType, k: int, *, act_order: bool) -> str:
    """Why weights of ``ttype`` with ``k`` columns take no such activations on any device that
    ladder knows; "" when they do on some. Raises as :func:`objection`.

    Args:
        act_order: the weight has a ``g_idx``.
    """
    if activation_type is None:
        return ""
    why = objection(activation_type, ttype, k, "cuda")
    if why and activation_type == "int8":
        why = objection(activation_type, ttype, k, "cpu")
    return why or (no_g_idx(activation_type) if act_order else "")


@functools.cache
def _objection_of_gpus(activation_type: str, type: str, k: int) -> str:
    why = torch.ops.ladder.rounding_objection(type, k, activation_type)
    return why and f"activation_type {activation_type} does not take {type} on GPUs: {why}"


@functools.cache
def gpu_objection(activation_type: str, type: str, n: int, k: int, device: int) -> str:
    """Why CUDA device ``device`` has no products of such x by weights [n, k] of ``type``; "" when
    it has, and where its compiler or driver fails: torch's own ops give the same there."""
    _library.find_compiler()
    why = torch.ops.ladder.image_objection(type, n, k, False, device, activation_type)
    _library.log_notices()
    if not why or torch.ops.ladder.device_failure(device):
        return ""
    return f"activation_type {activation_type} does not take {type} on cuda:{device}: {why}"


def zeros_objection(activation_type: str, ttype: TType, zeros: Tensor | None) -> str:
    """Why kernels of GPUs do not take a weight of ``ttype`` with these stored ``zeros``; "" when
    they do. Waits for the device of ``zeros``.

    Codes of up to 7 bits less their zero points are bytes with a sign, or numbers of float8_e4m3,
    for which csrc/layout/digits.h takes zero points of at most 2**bits.
    """
    if not activation_type or ttype.zero != "integer" or ttype.bits > _MOST_SUBTRACTED_BITS:
        return ""
    if zeros is None or zeros.is_meta or not zeros.numel():
        return ""
    most, allowed = int(zeros.max()), 1 << ttype.bits
    if most <= allowed:
        return ""
    return (
        f"activation_type {activation_type} does not take {ttype} with a zero point of {most} on "
        f"GPUs: zero points of {ttype.bits} bits are at most {allowed} there"
    )


def check(activation_type: str | None, ttype: TType, k: int, device: str = "cpu") -> None:
    """Raise Unsupported where there is an :func:`objection`, InvalidArgument as that does."""
    if why := objection(activation_type, ttype, k, device):
        raise Unsupported(why)


def int8(ttype: TType, k: int) -> Int8:
    """What becomes of x and of weights [N, k] of ``ttype`` on the CPU. Raises Unsupported as
    :func:`check`."""
    check("int8", ttype, k)
    return _info(str(ttype), k)[1]


@functools.cache
def _info(type: str, k: int) -> tuple[str, Int8]:
    info = json.loads(torch.ops.ladder.int8_info(type, k))
    return info["objection"], Int8(info["block"], info["exact"], tuple(info["values"]))


def round_activations(x: Tensor, ttype: TType) -> Tensor:
    """What products of ``activation_type`` "int8" see of x on the CPU: [..., K] float32, the same
    bits. On GPUs they see :func:`round_tokens`.

    Each block of :attr:`Int8.block` columns has one scale, its largest magnitude / 127; a number is
    the nearest multiple, ties to even, so at most half a scale away. A block below 2**-100 is
    zeros; one with a number that is not finite is NaN.

    Gradients go straight through: that of the result is that of ``x``.
    """
    k = x.shape[-1]
    block = int8(ttype, k).block
    wide = x.to(torch.float32)
    fixed = wide.detach()
    blocks = torch.nn.functional.pad(fixed, (0, -k % block)).unflatten(-1, (-1, block))
    most = blocks.abs().amax(-1, keepdim=True)
    small = most < _LEAST
    # Not 127 / most, which torch takes for 127 times a reciprocal.
    all_of = torch.full_like(most, 127)
    inverse, scale = torch.where(small, 0.0, all_of / most), torch.where(small, 0.0, most / all_of)
    rounded = ((blocks * inverse).round() * scale).flatten(-2)[..., :k]
    return rounded + (wide - fixed)


def static_scale_objection(scale: Tensor, name: str = "input_scale") -> str:
    """Why ``scale`` is no static scale; "" where it is one: a positive number whose inverse float32
    holds, too."""
    if scale.numel() != 1 or not scale.is_floating_point():
        return f"{name} is {list(scale.shape)} {scale.dtype}, not one float"
    if scale.is_meta:
        return ""
    value = float(scale)
    inverse = 1 / scale.detach().to("cpu", torch.float32)
    if 0 < value < float("inf") and inverse.isfinite():
        return ""
    return f"{name} is {value}, not positive and finite, or its inverse is not"


def pre_scale_objection(scale: Tensor, k: int) -> str:
    """Why ``scale`` is none of x's K columns; "" where it is: K finite floats."""
    if tuple(scale.shape) != (k,) or not scale.is_floating_point():
        return f"pre_scale is {list(scale.shape)} {scale.dtype}, not [{k}] floats"
    if not scale.is_meta and not torch.isfinite(scale).all():
        return "pre_scale is not finite"
    return ""


def round_tokens(x: Tensor, activation_type: str, x_scale: Tensor | None = None) -> Tensor:
    """What products of more than 48 tokens see of x on GPUs: [..., K] float32, the numbers that the
    codes and scales of the kernel stand for, rounded once.

    With ``x_scale``, float32 of one number or [..., 1], the scale is that one, and not of a token's
    own: a number is x times the inverse of the scale, rounded to float32, then to the nearest code,
    ties to even, and the nearest of -128 to 127 or of -448 to 448 where it is outside. A token with
    a NaN is NaN.

    Each token has one scale, its largest magnitude / 127 ("int8") or / 448 ("float8_e4m3"); a
    number is the nearest multiple, or the nearest float8_e4m3 times the scale, ties to even: at
    most half a scale away, or 2**-4 of itself (and 2**-10 of a scale where it is small). A token
    below 2**-100 is zeros; one with a number that is not finite is NaN.

    Gradients go straight through: that of the result is that of ``x``.
    """
    fixed = x.detach().to(torch.float32)
    if x_scale is not None:
        return _round_by(x_scale, x, fixed, activation_type)
    most = fixed.abs().amax(-1, keepdim=True)
    small = most < _LEAST
    # Not a number / most, which torch takes for the number times a reciprocal.
    top = torch.full_like(most, _LARGEST[format_of_x(activation_type)])
    inverse, scale = torch.where(small, 0.0, top / most), torch.where(small, 0.0, most / top)
    codes = fixed * inverse
    if activation_type == "int8":
        codes = codes.round()
    else:
        codes = codes.to(torch.float8_e4m3fn).to(torch.float32)
    # Where most is infinite, inverse is 0 and infinite numbers alone are NaN.
    rounded = torch.where(most.isfinite(), codes * scale, torch.nan)
    return rounded + (x.to(torch.float32) - fixed)


def nearest_codes(y: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Codes of 8 bits of ``y``, float32, by one ``scale``: ``y`` times the inverse of the scale,
    each rounded to float32, then the nearest code, ties to even; -128, 127, -448 or 448 beyond
    these. NaN stays NaN in float8_e4m3fn and is 0 in int8."""
    one = scale.detach().reshape(())
    codes = y * (torch.ones_like(one) / one)
    if dtype == torch.int8:
        return codes.clamp(*_RANGE["int8"]).round().nan_to_num(0.0).to(dtype)
    return codes.clamp(*_RANGE["float8_e4m3"]).to(dtype)


def _round_by(x_scale: Tensor, x: Tensor, fixed: Tensor, activation_type: str) -> Tensor:
    one = x_scale.numel() == 1
    scale = (x_scale.reshape(()) if one else x_scale.view(*x.shape[:-1], 1)).detach()
    low, high = _RANGE[format_of_x(activation_type)]
    codes = (fixed * (torch.ones_like(scale) / scale)).clamp(low, high)
    if activation_type == "int8":
        codes = codes.round()
    else:
        codes = codes.to(torch.float8_e4m3fn).to(torch.float32)
    rounded = torch.where(fixed.isnan().any(-1, keepdim=True), torch.nan, codes * scale)
    # An infinite number is saturated, and has no gradient.
    return rounded + torch.where(fixed.isfinite(), x.to(torch.float32) - fixed, 0.0)


def _round_tokens(x: Tensor, activation_type: str, x_scale: Tensor | None = None) -> Tensor:
    """As ``ladder::round_tokens`` in the dtype of ``x``: of the library, for products of float32
    and where a compiler fails."""
    return round_tokens(x, activation_type, x_scale).to(x.dtype)


_fragment = torch.library.Library("ladder", "FRAGMENT")
_fragment.define("round_tokens(Tensor x, str activation_type, Tensor? x_scale=None) -> Tensor")
_fragment.impl("round_tokens", _round_tokens, "CompositeExplicitAutograd")
