# SPDX-License-Identifier: Apache-2.0
"""What BitBLAS' users hold, values or codes, to packed words and back."""

from __future__ import annotations

import torch
from torch import Tensor

from ladder import ops
from ladder.bitblas.config import MatmulConfig
from ladder.errors import InvalidArgument
from ladder.types import dtype_name, element, parse


def packed_shape(n: int, k: int, bits: int) -> list[int]:
    """[N, bytes of a row]: K * bits / 8, rounded up to whole 32-bit words."""
    return [n, -(-k * bits // 32) * 4]


def codes_of_values(weight: Tensor, config: MatmulConfig) -> Tensor:
    """[N, K] stored codes, uint8, of what ``transform_weight`` is given.

    Signed integers are values, clamped to their range; int1 is -1 and 1; floats of 8 bits are
    float8 tensors or their bit patterns; everything else is codes already.
    """
    name, ttype = config.W_dtype, parse(config.W_dtype)
    if weight.is_floating_point() and weight.dtype.itemsize == 1:
        given = dtype_name(weight.dtype)
        if element(given) != ttype.element:
            raise InvalidArgument(f"weight has dtype {given}, but W_dtype is {name}")
        return weight.view(torch.uint8)
    if weight.is_floating_point():
        whole = weight.round()
        if not bool((whole == weight).all()):
            raise InvalidArgument(
                f"weight has dtype {weight.dtype} and fractions, not codes of {name}: "
                "ladder.quantize makes them"
            )
        weight = whole
    bits = ttype.bits
    if ttype.element.name == "int1":
        return _binary(weight)
    if ttype.element.encoding == "signed_integer":
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        # Not of uint8, which has no low end; not after int32, in which 2**32 is 0.
        is_wide = weight.is_floating_point() or weight.dtype == torch.int64
        wide = weight if is_wide else weight.to(torch.int32)
        clamped = wide.clamp(low, high).to(torch.int32)
        # As stored: two's complement where A is the same format or has 8 bits, else offset.
        offset = 0 if bits == 8 or config.is_native else 1 << (bits - 1)
        return ((clamped + offset) & ((1 << bits) - 1)).to(torch.uint8)
    return checked_codes(weight, bits)


def _binary(weight: Tensor) -> Tensor:
    wrong = (weight != 1) & (weight != -1)
    if bool(wrong.any()):
        raise InvalidArgument(f"weight has value {weight[wrong][0].item():g}; int1 has -1 and 1")
    return (weight > 0).to(torch.uint8)


def checked_codes(codes: Tensor, bits: int) -> Tensor:
    """``codes`` as uint8. Bit patterns of 8 bits may come as int8."""
    if codes.dtype == torch.int8 and bits == 8:
        return codes.view(torch.uint8)
    if codes.numel():
        low, high = int(codes.min()), int(codes.max())
        if low < 0 or high >= 1 << bits:
            raise InvalidArgument(f"weight has codes from {low} to {high}, not 0 to {2**bits - 1}")
    return codes.to(torch.uint8)


def pack_bytes(codes: Tensor, bits: int) -> Tensor:
    """[N, K] codes to int8 [N, bytes]: BitBLAS' order, low bits first along K."""
    return ops.pack(codes.contiguous(), bits).view(torch.int8)


def words(packed: Tensor, n: int, k: int, bits: int, name: str = "W") -> Tensor:
    """int32 words of a packed weight given as int8, uint8, float8 or int32.

    Rows of exactly K * bits / 8 bytes are padded to whole words, as BitBLAS does not pad.
    """
    shape = packed_shape(n, k, bits)
    data = packed if packed.dtype == torch.int32 else packed.view(torch.int8)
    if packed.dtype == torch.int32:
        data = packed.contiguous().view(torch.int8)
    if data.dim() == 2 and data.shape[0] == n and data.shape[1] == -(-k * bits // 8):
        data = torch.nn.functional.pad(data, (0, shape[1] - data.shape[1]))
    if list(data.shape) != shape:
        raise InvalidArgument(
            f"{name} is {list(data.shape)} bytes, not {shape}: is it transform_weight's result?"
        )
    return data.contiguous().view(torch.int32)


def pack_zeros(zeros: Tensor, bits: int) -> Tensor:
    """[N, G] integer zeros to BitBLAS' "quantized" form: int8 [G, ceil(N * bits / 8)]."""
    stream = pack_bytes(zeros.t().to(torch.uint8), bits)
    return stream[:, : -(-zeros.shape[0] * bits // 8)].contiguous()


def unpack_zeros(packed: Tensor, n: int, groups: int, bits: int) -> Tensor:
    """The inverse: uint8 [N, G]."""
    if list(packed.shape) == [n, groups] and packed.dtype == torch.uint8:
        return packed
    width = -(-n * bits // 8)
    if list(packed.shape) != [groups, width]:
        raise InvalidArgument(f"zeros have shape {list(packed.shape)}, not {[groups, width]}")
    data = torch.nn.functional.pad(packed.view(torch.int8), (0, -width % 4)).contiguous()
    return ops.unpack(data.view(torch.int32), n, bits).t().contiguous()
