# SPDX-License-Identifier: Apache-2.0
"""Floating-point weights to packed ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from ladder import _library
from ladder.compensation import Compensated, check_hessian, compensated, corrected
from ladder.errors import InvalidArgument, Unsupported
from ladder.quantization_range import (
    check_cast,
    check_ends,
    check_float32,
    check_least,
    check_range,
    check_unscaled,
    check_zeros,
)
from ladder.two_levels import in_superblocks
from ladder.types import (
    FLOAT_DTYPES,
    TType,
    _checked,
    dtype_name,
    element,
    type_names,
    with_defaults,
)
from ladder.weight import Weight

_whose: ContextVar[tuple[str, ...]] = ContextVar("names of what is being quantised", default=())
#: How scales are chosen.
METHODS = ("nearest", "search")


@contextmanager
def weights_of(name: str) -> Iterator[None]:
    """Put the name of a module in front of errors and warnings about weights quantised inside."""
    token = _whose.set((*_whose.get(), name))
    try:
        yield
    except (InvalidArgument, Unsupported) as error:
        raise type(error)(f"{name}: {error}") from None
    finally:
        _whose.reset(token)


def quantize(
    weight: Tensor,
    weight_type: str | TType = "uint4",
    *,
    group_size: int | None = None,
    symmetric: bool | None = None,
    method: str = "search",
    scale_dtype: torch.dtype = torch.float16,
    hessian: Tensor | None = None,
) -> Weight:
    """Quantise a weight matrix to any type, each code the one nearest to its weight, or by a
    ``hessian`` so that outputs of the layer move least.

    With ``zero=rescale`` it is the nearest before products of zero points and scales are rounded.

    Args:
        weight: [N, K], any float dtype, finite.
        weight_type: an element name ("uint4", "nf4", "float6_e3m2", your own) completed by
            ``group_size`` and ``symmetric``, a full spelling, a block type ("mxfp4", "nvfp4"), or a
            k-quant of llama.cpp ("q4_k"): then both levels of its scales and minima are searched
            together, whatever ``method`` says.
        group_size: elements along K that share a scale, 128 where not given; -1 for all of K (per
            channel). The last group may be shorter.
        symmetric: unsigned integers only: True fixes the zero point at 2**(bits - 1).
        method: "nearest" takes the scale from the largest magnitude of the block; "search" tries 24
            others and keeps the one with the least squared error. Of scales that are powers of two
            (e8m0) the one above may be twice too large for a narrow type, so that "nearest" is
            "search" there, but for MX blocks ("mxfp4", ...).
        scale_dtype: float16, bfloat16 or float32, when ``weight_type`` does not name one.
        hessian: [K, K], ``x.T @ x`` of inputs x [tokens, K] that the layer is to serve; or
            [P, K, K], for P equal parts of the rows. Scales and zero points are those without it;
            codes make up for what others lose, as in GPTQ, and are kept for each row where they
            do. :func:`ladder.convert` collects it.
    Returns:
        The packed weight, on the device of ``weight``. On CUDA devices it is quantised by kernels,
        to the bit as on the CPU, and waited for; a device that has none (no NVRTC) borrows the CPU
        and says so in the log once.
    Raises:
        InvalidArgument: a weight of another dtype, not finite (with its place), beyond what its
            scales can reach or so small that all of it would be zero, or an argument out of range.
            Where single blocks are so small, a warning in the log says how many.
    """
    if not isinstance(weight, Tensor):
        raise InvalidArgument(f"weight is of {type(weight).__name__}, not a tensor")
    if weight.dim() != 2:
        raise InvalidArgument(f"weight has {weight.dim()} dimensions, not 2")
    if not weight.is_floating_point():
        given = dtype_name(weight.dtype)
        raise InvalidArgument(f"weight has dtype {given}, not a floating-point one")
    if weight.layout != torch.strided:
        raise InvalidArgument(f"weight has layout {weight.layout}, not torch.strided")
    if method not in METHODS:
        raise InvalidArgument(f'method is "{method}", not one of {", ".join(METHODS)}')
    ttype = with_defaults(
        weight_type, group_size=group_size, symmetric=symmetric, scale_dtype=scale_dtype
    )
    if not weight.numel():
        raise InvalidArgument(f"weight has shape {list(weight.shape)}: nothing to quantise")
    if hessian is not None:
        return quantize_calibrated(weight, ttype, hessian, method=method).weight
    search = method == "search" or _has_free_powers(ttype)
    with torch.inference_mode(False), torch.no_grad():  # training may follow inference
        return _convert(weight, ttype) if ttype.bits > 8 else _quantize(weight, ttype, search)


def quantize_calibrated(
    weight: Tensor,
    ttype: TType,
    hessian: Tensor,
    cross: Tensor | None = None,
    *,
    method: str = "search",
) -> Compensated:
    """As :func:`quantize` with a ``hessian``, and what outputs lose. With ``cross`` it is what
    :func:`ladder.compensation.corrected` makes of the weight that is quantised."""
    if ttype.bits > 8:
        raise InvalidArgument(
            f'type "{ttype}" has {ttype.bits} bits; a hessian chooses codes of 1 to 8'
        )
    check_hessian(hessian, *weight.shape)
    exact = torch.autocast(weight.device.type, enabled=False)
    with torch.inference_mode(False), torch.no_grad(), exact:
        source = weight.detach().to(torch.float32).contiguous()
        if cross is None or not bool(source.isfinite().all()):  # which quantize refuses by name
            return compensated(source, quantize(weight, ttype, method=method), hessian)
        source = corrected(source, hessian, cross)
        return compensated(source, quantize(source, ttype, method=method), hessian)


def _quantize(weight: Tensor, ttype: TType, search: bool) -> Weight:
    n, k = weight.shape
    source = weight.detach().to(torch.float32).contiguous()
    if weight.dtype == torch.float64:
        check_float32(weight, source)
    whose = "".join(f"{name}: " for name in _whose.get())
    if ttype.superblock:
        return in_superblocks(source, ttype, whose)
    if weight.is_cuda:
        _library.find_compiler()
    parts = _checked(torch.ops.ladder.quantize, source, str(ttype), search)
    if weight.is_cuda:
        _library.log_notices()
    qweight, scales, zeros, scale2 = parts
    if ttype.scale is not None:
        check_range(source, scales, ttype)
    packed = Weight(
        ttype,
        (n, k),
        qweight,
        scales=None if ttype.scale is None else scales,
        zeros=None if ttype.zeros_dtype is None else zeros,
        scale2=None if ttype.scale2 is None else scale2,
    )
    if ttype.scale is None:
        check_unscaled(source, packed)
    else:
        check_zeros(source, packed, whose)
        check_ends(source, packed)
        check_least(source, packed, whose)
    return packed


def _has_free_powers(ttype: TType) -> bool:
    """Whether scales are powers of two, and no standard says which ones, as for named types."""
    powers = ttype.scale is not None and element(ttype.scale).encoding == "exponent"
    return powers and str(ttype) not in type_names()


def _convert(weight: Tensor, ttype: TType) -> Weight:
    """float16, bfloat16 and float32 "types": a cast, packed like any other."""
    if str(ttype) != ttype.element.name:
        raise InvalidArgument(f'type "{ttype}" has scales; weights of {ttype.bits} bits take none')
    n, k = weight.shape
    cast = weight.detach().to(FLOAT_DTYPES[ttype.element.name])
    check_cast(weight.detach(), cast, ttype)
    padded = torch.nn.functional.pad(cast, (0, ttype.words(k) * 32 // ttype.bits - k))
    return Weight(ttype, (n, k), padded.contiguous().view(torch.int32))
