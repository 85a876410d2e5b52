# SPDX-License-Identifier: Apache-2.0
"""numpy in, numpy out, as BitBLAS has it."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ladder.errors import InvalidArgument, Unsupported

_TARGET_BITS = {"float16": 16, "int8": 8}


def general_compress(
    lowprecision_weight: np.ndarray, source_bits: int = 4, storage_dtype: type = np.int8
) -> np.ndarray:
    """Pack codes of 1, 2, 4 or 8 bits along the last axis, low bits first.

    Args:
        lowprecision_weight: [..., K] codes; of a negative number the low ``source_bits`` are kept.
        storage_dtype: an integer dtype; K * source_bits must fill it.
    Returns:
        [..., K * source_bits / bits of storage_dtype].
    """
    storage = np.dtype(storage_dtype)
    k, bits = lowprecision_weight.shape[-1], storage.itemsize * 8
    if source_bits not in (1, 2, 4, 8):
        raise InvalidArgument(f"source_bits is {source_bits}, not 1, 2, 4 or 8")
    if k * source_bits % bits:
        raise InvalidArgument(f"{k} codes of {source_bits} bits do not fill words of {bits} bits")
    per_byte = 8 // source_bits
    rows = lowprecision_weight.shape[:-1]
    fields = lowprecision_weight.astype(np.int64).reshape(*rows, -1, per_byte)
    fields = (fields & ((1 << source_bits) - 1)) << (source_bits * np.arange(per_byte))
    packed = np.ascontiguousarray(fields.sum(-1).astype(np.uint8))
    return packed.view(storage)


def interleave_weight(
    qweight: np.ndarray, nbits: int = 4, target_dtype: str = "float16"
) -> np.ndarray:
    """Reorder the codes of each 32-bit word so that one mask picks a register of targets.

    With targets of T bits, code e of a word goes to bit ``(e % (32 / T)) * T + (e // (32 / T)) *
    nbits``. ladder's own kernels do not want this: it is for code that does.

    Args:
        qweight: codes of :func:`general_compress`, rows of whole 32-bit words.
        nbits: 4 for float16; 2 or 4 for int8. BitBLAS orders narrower codes in ways of their own.
    Returns:
        An array of the shape and dtype of ``qweight``.
    """
    if target_dtype not in _TARGET_BITS:
        raise InvalidArgument(f'target_dtype is "{target_dtype}", not float16 or int8')
    target = _TARGET_BITS[target_dtype]
    if nbits not in ((4,) if target == 16 else (2, 4)):
        raise Unsupported(f"no interleaved order here of codes of {nbits} bits for {target_dtype}")
    words = np.ascontiguousarray(qweight).view(np.uint32)
    lanes = 32 // target
    result = np.zeros_like(words)
    for code in range(32 // nbits):
        field = (words >> np.uint32(nbits * code)) & np.uint32((1 << nbits) - 1)
        result |= field << np.uint32(code % lanes * target + code // lanes * nbits)
    return result.view(qweight.dtype)


def gen_quant4(
    k: int, n: int, groupsize: int = -1
) -> tuple[torch.Tensor, nn.Linear, torch.Tensor, torch.Tensor]:
    """A random symmetric 4-bit weight for tests: codes around a zero of 8.

    Returns:
        original: [k, n] float16, before rounding.
        linear: an ``nn.Linear`` without bias whose weight [n, k] has the rounded values.
        scales: [k / groupsize, n] float16.
        codes: [k, n] float, the signed codes -8 to 7.
    """
    group = k if groupsize == -1 else groupsize
    if k % group:
        raise InvalidArgument(f"k is {k}, not a multiple of groupsize {groupsize}")
    original = torch.randn(k, n).half()
    blocks = original.float().view(k // group, group, n)
    scales = (blocks.abs().amax(1) * 2 / 15).half()
    codes = (blocks / scales[:, None].float()).round().clamp(-8, 7)
    rounded = (codes.half() * scales[:, None]).view(k, n)
    linear = nn.Linear(k, n, bias=False)
    linear.weight = nn.Parameter(rounded.t().contiguous(), requires_grad=False)
    return original, linear, scales, codes.view(k, n)
