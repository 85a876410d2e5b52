# SPDX-License-Identifier: Apache-2.0
"""quant_method "torchao": weights that are tensor subclasses, saved in their parts.

    kind                      _weight_qdata               _weight_scale    _weight_zero_point
    Int8Tensor                int8 [N, K]                 float blocks     int8 blocks, optional
    IntxUnpackedToInt8Tensor  int8 [N, K] of 1 to 8 bits  float blocks     int8 or float blocks
    Float8Tensor              float8 [N, K]               float blocks
    Int4Tensor                8 bits [N, K/2]: two        float [K/g, N]   float [K/g, N]
                              signed codes in a byte,
                              the first below
    MXTensor                  float8 [N, K], or two       e8m0 [N, K/32]
                              codes in a byte as above
    NVFP4Tensor               uint8 [N, K/2], likewise    float8 [N, K/16]
    Int4TilePackedTo4dTensor  int32 [N/8, K/128, 32, 4]

    _weight_scale_and_zero    bfloat16 [K/g, N, 2], of Int4TilePackedTo4dTensor
    _weight_per_tensor_scale  float32 [], of NVFP4Tensor
    _weight_act_pre_scale     float [K]: columns of x are multiplied by it
    _weight_act_quant_scale   float [1, 1] and others: of x, where it is static

    Int8Tensor, Intx...       weight[n, k] = (code - zero_point) * scale
    Float8Tensor, MXTensor    weight[n, k] = code * scale
    Int4Tensor                weight[n, k] = code * scale + zero_point
    Int4TilePackedTo4dTensor  weight[n, k] = (code - 8) * scale + zero, of codes from 0 to 15; N and
                              K are padded, and codes are in the order of tinygemm
    NVFP4Tensor               weight[n, k] = code * (scale * per_tensor_scale)

``blocks`` are [N / rows, K / columns] of block_size. Scales of MXTensor and NVFP4Tensor may be in
the order of cuBLAS. Which kind a tensor is, its block_size and what x is rounded to is said in the
metadata of the files (ladder.checkpoints.torchao_described).

Integers with integer zero points become unsigned codes with a zero point of 2**(b-1) more. In
float32 values are torchao's, bit by bit, but for NVFP4Tensor, whose scales torchao multiplies
first: three roundings of 2**-24 of the weight lie between. torchao decodes to the dtype of the
model, to which it rounds once more; its kernel of Int4TilePackedTo4dTensor rounds the sum to
bfloat16.

Source: torchao 0.18, quantization/quantize_/workflows and prototype/mx_formats.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from ladder import ops
from ladder.checkpoints import torchao_pickles
from ladder.checkpoints.layer import (
    BYTES,
    Layer,
    Side,
    check_scales,
    fail,
    side_of,
    words_of_bytes,
)
from ladder.checkpoints.torchao_config import Config
from ladder.checkpoints.torchao_described import CODES, INT4, INTX, TILES, Module
from ladder.checkpoints.torchao_headers import BOTH, PRE, SCALE, WHOLE, ZERO, measure
from ladder.checkpoints.torchao_orders import TILE_ROWS, tiles_to_rows, unswizzled
from ladder.types import FLOAT_DTYPES

_OF_X = "_weight_act_quant_scale"
INPUT_SCALES, PRE_SCALES = (_OF_X,), (PRE,)
PARTS = (CODES, SCALE, ZERO, BOTH, WHOLE, PRE, _OF_X, "_weight_act_quant_zero_point",
         "_weight_act_per_tensor_scale")  # fmt: skip
PICKLES = torchao_pickles.PICKLES
#: Why engines cannot load such folders as they are.
NOT_SERVED = "what their tensors mean is in the metadata of the files, which is not read there"


def codes_part(parts: Collection[str]) -> str | None:
    """See ladder.checkpoints.layer."""
    return None if set(PARTS).isdisjoint(parts) else CODES


def decoded_dtype(layer: Layer) -> torch.dtype:
    """What torchao decodes a tensor to: the dtype of the weight that it was made of.

    Raises CheckpointError for a name that is no float of torch.
    """
    config: Module = layer.config
    found = FLOAT_DTYPES.get(config.dtype)
    if found is None:
        fail(f"{layer.name}.weight", " is of dtype ", repr(config.dtype), ", not ",
             ", ".join(FLOAT_DTYPES))  # fmt: skip
    return found


def canonical(part: str, tensor: Tensor, layer: Layer) -> tuple[str, Tensor]:
    """The canonical tensor that a stored one becomes, and its name: ladder.checkpoints.layer. Of
    ``_weight_scale_and_zero`` the scales."""
    config: Module = layer.config
    if part == CODES:
        return "qweight", _codes(tensor, layer)
    if part == BOTH:
        return "scales", _of_both(tensor, layer, 0)
    if part == SCALE and config.kind == INT4:
        return "scales", tensor.t().contiguous()
    if part == SCALE and config.swizzled:
        return "scales", unswizzled(tensor.view(torch.uint8), layer.n, layer.groups)
    if part == SCALE:
        blocks = tensor.reshape(-1, layer.groups).contiguous()
        return "scales", blocks if layer.scale is None else blocks.view(torch.uint8)
    if part == ZERO and config.kind == INT4:
        return "zeros", -tensor.t().contiguous()
    if part == ZERO and tensor.dtype == torch.int8:
        zeros = tensor.reshape(-1, layer.groups).contiguous()
        return "zeros", zeros.view(torch.uint8) + layer.midpoint
    if part == ZERO:
        return "zeros", tensor.reshape(-1, layer.groups).contiguous()
    if part == WHOLE:
        return "scale2", tensor.reshape(1)
    if part == PRE:
        return "pre_scale", tensor.reshape(-1).to(torch.float32)
    if part == _OF_X and layer.is_static:
        return "input_scale", tensor.reshape(-1).to(torch.float32)
    return "", tensor


def _of_both(tensor: Tensor, layer: Layer, which: int) -> Tensor:
    return tensor[: layer.groups, : layer.n, which].t().contiguous()


def _codes(tensor: Tensor, layer: Layer) -> Tensor:
    if layer.config.kind == TILES:
        codes = tiles_to_rows(tensor, layer.k)[: layer.n] ^ 8  # less 8, as two's complement
        return ops.pack(codes, 4)
    if tensor.dtype != torch.int8 or layer.config.kind == INT4:
        return words_of_bytes(tensor)
    octets = tensor.contiguous().view(torch.uint8)
    if layer.element is None:
        octets = octets + layer.midpoint
    elif layer.bits < 8:
        octets = octets & ((1 << layer.bits) - 1)
    return words_of_bytes(octets) if layer.bits == 8 else ops.pack(octets, layer.bits)


def side(tensors: Mapping[str, Tensor], layer: Layer) -> Side:
    """Return scales, zeros and scale2 of a layer, canonical.

    Raises:
        CheckpointError: a scale or zero point is NaN or infinite, or a zero point is no code.
    """
    name = layer.name
    small = {part: tensor for part, tensor in tensors.items() if part != CODES}
    for part, tensor in small.items():
        if part == SCALE and layer.scale is not None:
            tensor = tensor.view(BYTES[layer.scale][-1]).float()
        if tensor.is_floating_point():
            check_scales(tensor.float(), f"{name}.{part}")
        elif part == ZERO:
            _check_codes(tensor, layer, part)
    parts = dict(canonical(part, tensor, layer) for part, tensor in small.items())
    if BOTH in tensors:
        parts["zeros"] = -_of_both(tensors[BOTH], layer, 1)
    return side_of(parts, layer)


def _check_codes(codes: Tensor, layer: Layer, part: str) -> None:
    """Raise CheckpointError at the first integer that is no signed code of the layer's bits."""
    if layer.bits == 8:
        return
    outside = (codes < -layer.midpoint) | (codes >= layer.midpoint)
    if outside.any():
        at = torch.nonzero(outside)[0].tolist()
        fail(f"{layer.name}.{part}{at}", " is ", int(codes[tuple(at)]), ", no int", layer.bits)


def words(qweight: Tensor, layer: Layer, rows: slice) -> Tensor:
    """Return the codes of some rows as int32 [rows, ceil(K*b/32)], canonical.

    Raises CheckpointError for a code that is beyond the bits of the layer.
    """
    first, last, _ = rows.indices(layer.n)
    if layer.config.kind == TILES:
        tiles = qweight[first // TILE_ROWS : -(-last // TILE_ROWS)]
        return canonical(CODES, tiles, layer)[1][: last - first]
    if layer.config.kind == INTX:
        _check_codes(qweight[first:last], layer, CODES)
    return canonical(CODES, qweight[first:last], layer)[1]


__all__ = [
    "INPUT_SCALES", "NOT_SERVED", "PARTS", "PICKLES", "PRE_SCALES", "Config", "canonical",
    "codes_part", "decoded_dtype", "measure", "side", "words",
]  # fmt: skip
