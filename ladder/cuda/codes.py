# SPDX-License-Identifier: Apache-2.0
"""The linear layer on weight images of activations that are codes of 8 bits already
(ladder/ops/codes.py)."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ladder import _library  # noqa: F401  (registers torch.ops.ladder)
from ladder.cuda import image as images
from ladder.errors import InvalidArgument
from ladder.ops import activations
from ladder.ops.codes import (
    CODE_DTYPES,
    are_exact_in_float32,
    check_codes,
    multiply_codes,
    require_whole,
    whole_sums,
)
from ladder.ops.transforms import transformed
from ladder.types import TType, _checked, parse

_ops = torch.ops.ladder


@functools.cache
def number_for_codes(
    type: str, n: int, k: int, device: int, dtype: torch.dtype, fast_accum: bool = False
) -> int | None:
    """The number (:func:`ladder.cuda.image.open_weight`) under which kernels of CUDA device
    ``device`` multiply codes of ``dtype`` by weights [n, k] of ``type`` whose columns are in their
    order; None where it has none. ``fast_accum``: as ``activation_type`` may say, of
    float8_e4m3fn."""
    activation_type = CODE_DTYPES[dtype]
    if fast_accum:
        activation_type = activations.with_fast_accum(activation_type) or ""
    if activations.objection(activation_type, parse(type), k, "cuda"):
        return None
    if activations.gpu_objection(activation_type, type, n, k, device):
        return None
    return images.open_weight(type, n, k, activation_type=activation_type)


def takes_codes(
    ttype: TType, zeros: Tensor | None, g_idx: Tensor | None, dtype: torch.dtype
) -> bool:
    """Whether kernels take codes of ``dtype`` by what a weight of ``ttype`` stores beside its
    codes. Waits for the device of ``zeros``."""
    return not activations.zeros_objection(CODE_DTYPES[dtype], ttype, zeros) and g_idx is None


def linear_codes_image(
    x: Tensor,
    x_scale: Tensor | None,
    image: Tensor,
    bias: Tensor | None,
    ttype: TType,
    n: int,
    *,
    plain: int,
    number: int | None,
    out_dtype: torch.dtype = torch.float16,
    out_scale: Tensor | None = None,
) -> Tensor:
    """:func:`ladder.ops.codes.linear_codes` on an image.

    Kernels of bytes multiply any number of tokens, from one on, and write ``out_dtype``. int32 is
    float32 of theirs as far as float32 holds all sums (K up to 16384 of ``int4``, 65536 of
    ``int2``), else torch's integer product of the decoded weight.

    Args:
        image: from :func:`ladder.cuda.image.pack`, [n, K] of ``ttype``.
        plain: the number of the image for activations as they come.
        number: from :func:`number_for_codes`; None has the weight decoded in each call.
    Error:
        int8: sums are exact within a group of the weight, then float32. float8_e4m3: as
        :func:`ladder.ops.linear` says of ``activation_type`` "float8_e4m3" on GPUs.
    """
    k = int(x.shape[-1]) if x.dim() else 0
    check_codes(x, x_scale, bias, k, n, out_dtype, out_scale)
    whole = out_dtype == torch.int32
    if whole:
        require_whole(x, x_scale, bias, ttype, k)
    by_kernels = number is not None and not transformed()
    if whole and not (by_kernels and are_exact_in_float32(ttype, k)):
        return whole_sums(x, _values(image, plain, n, k, torch.float32), ttype)
    if not by_kernels:
        return multiply_codes(
            x, x_scale, _values(image, plain, n, k, torch.float32), bias, out_dtype, out_scale
        )
    if x_scale is not None:
        x_scale = x_scale.contiguous()
    kind = torch.float32 if whole else out_dtype
    y = _checked(_ops.linear_codes, x, x_scale, image, bias, number, n, kind, out_scale)
    return y.to(out_dtype)


def _values(image: Tensor, number: int, n: int, k: int, dtype: torch.dtype) -> Tensor:
    return _checked(_ops.dequantize_image, image, number, n, k, dtype)


@torch.library.register_fake("ladder::linear_codes")
def _(
    x: Tensor,
    x_scale: Tensor | None,
    image: Tensor,
    bias: Tensor | None,
    weight: int,
    n: int,
    dtype: torch.dtype,
    out_scale: Tensor | None = None,
) -> Tensor:
    if x.dtype not in CODE_DTYPES or x.dim() == 0:
        raise InvalidArgument(f"x is {list(x.shape)} {x.dtype}, not [..., K] codes")
    return x.new_empty((*x.shape[:-1], n), dtype=dtype)
