# SPDX-License-Identifier: Apache-2.0
"""The ops on devices that have no kernels of their own yet, in plain torch.

Correct on every device that torch knows; the weight is decoded anew by each call, so it is slow
and needs memory for the decoded weight. Kernels replace it device by device.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
from torch import Tensor

from ladder.errors import InvalidArgument, Unsupported
from ladder.ops.activations import MOST_TOKENS_AS_THEY_COME, device_objection, round_tokens
from ladder.ops.superblocks import second_scales
from ladder.ops.transforms import check_activations, check_same_device, plus
from ladder.types import FLOAT_DTYPES, Element, element, parse

#: torch device types that the fallback serves.
DEVICES = ("cuda", "xpu", "mps")
#: That are packed at a time: each is 8 bytes meanwhile.
_MOST_BITS = 1 << 26


def pack(codes: Tensor, bits: int) -> Tensor:
    """:func:`ladder.ops.pack` in torch."""
    if codes.dtype != torch.uint8 or codes.dim() != 2:
        raise InvalidArgument(
            f"codes have dtype {codes.dtype} and {codes.dim()} dimensions, not uint8 and 2"
        )
    n, k = codes.shape
    if codes.numel() and int(codes.max()) >= 1 << bits:
        raise InvalidArgument(f"code {int(codes.max())} does not fit {bits} bits")
    some = codes.split(max(1, _MOST_BITS // max(1, k * bits))) if n else [codes]
    return torch.cat([_packed_rows(rows, bits) for rows in some])


def _packed_rows(codes: Tensor, bits: int) -> Tensor:
    n, k = codes.shape
    shifts = torch.arange(bits, device=codes.device, dtype=torch.uint8)
    stream = ((codes.unsqueeze(-1) >> shifts) & 1).view(n, k * bits)
    words = -(-k * bits // 32)
    stream = torch.nn.functional.pad(stream, (0, words * 32 - k * bits)).view(n, words, 32)
    weights = torch.ones(32, dtype=torch.int64, device=codes.device) << torch.arange(
        32, device=codes.device
    )
    # Bit 31 is the sign of an int32: the sum wraps into it.
    return (stream.to(torch.int64) * weights).sum(-1).to(torch.int32)


def unpack(qweight: Tensor, k: int, bits: int) -> Tensor:
    """:func:`ladder.ops.unpack` in torch."""
    return _codes(qweight, k, bits).to(torch.uint8)


def _codes(qweight: Tensor, k: int, bits: int) -> Tensor:
    """Codes [n, k] as int32: of weights of billions this is what a GPU's memory is read for."""
    mask = (1 << bits) - 1
    if 32 % bits == 0:
        shifts = torch.arange(0, 32, bits, device=qweight.device, dtype=torch.int32)
        return ((qweight.unsqueeze(-1) >> shifts) & mask).flatten(1)[:, :k]
    first = torch.arange(k, device=qweight.device) * bits
    word, shift = first // 32, (first % 32).to(torch.int32)
    words = torch.nn.functional.pad(qweight, (0, 1))
    # Shifts to the right repeat the sign: what a code has of the first word is kept, no more.
    kept = (1 << (32 - shift).clamp(max=bits)) - 1
    low = (words[:, word] >> shift) & kept
    return (low | (words[:, word + 1] << 1 << (31 - shift))) & mask


@functools.lru_cache(maxsize=256)
def _table(format: Element, device: torch.device, less: float) -> Tensor:
    """Kept: a copy from the host waits for the device, and no CUDA graph can hold it."""
    with torch.inference_mode(False):
        return (format.values.to(torch.float32) - less).to(device)


def _decoded(format: Element, codes: Tensor, less: float = 0.0) -> Tensor:
    """The numbers of codes of int32, less a number from which integers differ exactly."""
    table = _table(format, codes.device, less)
    return table.index_select(0, codes.reshape(-1)).view(codes.shape)


def _metadata(data: Tensor, format: str) -> Tensor:
    if data.dtype != torch.uint8 or element(format).encoding == "unsigned_integer":
        return data.to(torch.float32)
    return _decoded(element(format), data.to(torch.int32))


def dequantize(
    qweight: Tensor,
    scales: Tensor | None,
    zeros: Tensor | None,
    scale2: Tensor | None,
    g_idx: Tensor | None,
    type: str,
    k: int,
) -> Tensor:
    """:func:`ladder.ops.dequantize` in torch, the same roundings."""
    ttype = parse(type)
    n, groups = qweight.shape[0], ttype.groups(k)
    if ttype.bits <= 8:
        middle = float(1 << (ttype.bits - 1)) if ttype.zero == "midpoint" else 0.0
        values = _decoded(ttype.element, _codes(qweight, k, ttype.bits), middle)
    else:
        flat = qweight.contiguous().view(FLOAT_DTYPES[ttype.element.name])
        values = flat[:, :k].to(torch.float32)
    columns = ttype.columns or max(k, 1)
    whole = g_idx is None and k > 0 and k % columns == 0  # groups of one size, which need no copies
    if whole:
        values = values.view(n, groups, columns)

    def spread(block: Tensor) -> Tensor:
        if ttype.rows > 1:
            block = block.repeat_interleave(ttype.rows, 0)[:n]
        if whole:
            return block.unsqueeze(-1)
        if g_idx is not None:
            return block.index_select(1, g_idx.long()).expand(n, k)
        return block.repeat_interleave(columns, 1)[:, :k].expand(n, k)

    # The op has checked that what the type stores is there.
    zeros, scales = cast(Tensor, zeros), cast(Tensor, scales)
    if ttype.zero in ("integer", "quantized"):
        stored = unpack(zeros, groups, ttype.bits) if ttype.zero == "quantized" else zeros
        values = values - spread(stored.to(torch.float32))
    elif ttype.zero == "original":
        values = values - spread(zeros.to(torch.float32))

    def numbers(stored: Tensor, of_zeros: bool) -> Tensor:
        found = _metadata(stored, str(ttype.scale))
        if not ttype.superblock:
            return found
        of_groups = second_scales(cast(Tensor, scale2), ttype, groups, of_zeros=of_zeros)
        return found * of_groups

    if ttype.scale is not None:
        values = values * spread(numbers(scales, False))
    if ttype.zero == "rescale":
        values = values - spread(numbers(zeros, True))
    values = values.reshape(n, k)
    if scale2 is None or ttype.superblock:
        return values
    return values * (scale2[:, None] if ttype.scale2_of_rows else scale2)


def linear(
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
    """:func:`ladder.ops.linear` in torch: decode, then the device's own matrix product, rounded
    before a residual is added."""
    check_activations(x)
    ttype, k = parse(type), x.shape[-1]
    check_same_device(x, qweight)
    if qweight.shape[1] != ttype.words(k):
        raise InvalidArgument(
            f"qweight has {qweight.shape[1]} words a row; {k} columns of {ttype.element.name} "
            f"need {ttype.words(k)}"
        )
    values = dequantize(qweight, scales, zeros, scale2, g_idx, type, k)
    return plus(torch.nn.functional.linear(x, values.to(x.dtype), bias), residual)


def linear_int8(x: Tensor, *weight: Any) -> Tensor:
    """:func:`linear` with x rounded as GPUs do; refused elsewhere."""
    return _linear_rounded("int8", x, *weight)


def linear_float8_e4m3(x: Tensor, *weight: Any) -> Tensor:
    """The same of x as float8_e4m3."""
    return _linear_rounded("float8_e4m3", x, *weight)


def _linear_rounded(activation_type: str, x: Tensor, *weight: Any) -> Tensor:
    if why := device_objection(activation_type, x.device.type):
        raise Unsupported(why)
    check_activations(x)
    if x.shape[:-1].numel() > MOST_TOKENS_AS_THEY_COME:
        x = round_tokens(x, activation_type).to(x.dtype)
    return linear(x, *weight)


def quantize(weight: Tensor, type: str, search: bool) -> list[Tensor]:
    """Quantises on the CPU, where every type is at home, and brings the parts back."""
    parts = torch.ops.ladder.quantize(weight.cpu(), type, search)
    return [part.to(weight.device) for part in parts]


_ROUNDED = (linear_int8, linear_float8_e4m3)


def _register() -> torch.library.Library:
    """Not by ``torch.library.register_kernel``: the first call of what it registers imports
    ``torch._dynamo``, which takes seconds."""
    library = torch.library.Library("ladder", "IMPL")
    for device in DEVICES:
        for function in (pack, unpack, dequantize, linear, *_ROUNDED, quantize):
            if (function, device) != (quantize, "cuda"):  # csrc/binding/torch/quantize.cpp
                library.impl(function.__name__, function, device.upper())
    return library


_library = _register()
