# SPDX-License-Identifier: Apache-2.0
"""Layers of compressed-tensors.

    weight_packed        int32 [N, ceil(K*b/32)]   pack-quantized: a little-endian bit stream of
                                                   code + 2**(b-1) along K
                         uint8 [N, K*b/8]          nvfp4-, mxfp4-, mxfp6-pack-quantized: a
                                                   little-endian bit stream of codes along K
    weight               int8 or float8 [N, K]     int-, float-, naive-, mxfp8-quantized
    weight_scale         float [1], [N, 1], [N, G] or [N/rows, K/columns] by strategy; codes of
                         float8_e4m3 [N, G] of nvfp4, of e8m0 [N, G] of mx formats
    weight_zero_point    int32 [ceil(N*b/32), G]   zero + 2**(b-1), a bit stream along N: of groups
                                                   and channels of pack-quantized
                         int8, as weight_scale     the zero itself: of all else
    weight_global_scale  float32 [1]               of nvfp4: what scales were multiplied by
    weight_g_idx         int32 [K]                 group of each column, optional
    weight_shape         int64 [2]                 [N, K] of pack-quantized
    input_scale, input_zero_point, input_global_scale
                                                   of static activations: left out
    weight[n, k] = weight_scale[n, g] / weight_global_scale * (code[n, k] - zero[n, g])

So integers are unsigned codes with a zero point of 2**(b-1) more, and every code stream is ladder's
own. Streams of 3, 5, 6 and 7 bits of early versions, which put 32 // b codes in a word, are told by
the number of words. The two numbers may be equal below 160 columns or rows: then the other stream
of the layer tells, codes or zero points, and where both are equal they are dense.

The global scale divides. ladder multiplies by ``scale2``, its reciprocal in float32, and that after
the code and scale: a weight differs from compressed-tensors' own in float32 by 2**-22 of itself at
most, and not at all where the global scale is a power of two. All other weights are equal bit by
bit once rounded to the dtype of the scales, as compressed-tensors rounds them.

Source: compressed-tensors 0.20, the compressors of each format.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ladder import ops
from ladder.checkpoints.activation_schemes import INPUT_PARTS
from ladder.checkpoints.compressed_config import Config, Scheme
from ladder.checkpoints.layer import (
    BYTES,
    SCALE_NAMES,
    Layer,
    Side,
    Stored,
    check_scales,
    column_groups,
    expect,
    expect_input_scale,
    fail,
    group_block,
    require,
    side_of,
    words_of_bytes,
)  # fmt: skip

_OF_WEIGHTS = ("weight_packed", "weight", "weight_scale", "weight_zero_point",
               "weight_global_scale", "weight_g_idx", "weight_shape")  # fmt: skip
PARTS = (*_OF_WEIGHTS, *INPUT_PARTS)
_CODES = ("weight_packed", "weight")


def codes_part(parts: Collection[str]) -> str | None:
    """See ladder.checkpoints.layer. A ``weight`` is quantised where a ``weight_scale`` is."""
    if "weight" in parts and "weight_packed" not in parts:
        return "weight" if "weight_scale" in parts else None
    return None if set(_OF_WEIGHTS).isdisjoint(parts) else "weight_packed"


def _needed(config: Scheme) -> dict[str, bool]:
    """Which parts a layer must have."""
    return {
        "weight_packed": config.packed,
        "weight": not config.packed,
        "weight_scale": True,
        "weight_zero_point": not config.symmetric,
        "weight_global_scale": config.strategy == "tensor_group",
        "weight_g_idx": config.act_order,
    }


def measure(parts: Mapping[str, Stored], config: Scheme, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name`` against each other and ``config``.

    Args:
        k: columns, where the caller knows them, as weight_shape says. Where the words of a row do
            not fit them they are as many as the groups have, or as the words can hold.
    Raises:
        CheckpointError: a part is missing, or has another dtype or shape than the rest asks for.
            The message names the tensor and both values.
    """
    codes, bits, block = _CODES[not config.packed], config.bits, config.block
    require(parts, name, tuple(part for part, is_needed in _needed(config).items() if is_needed))
    for part in _CODES:
        if part != codes and part in parts:
            fail(f"{name}.{part}", " is there, but ", config.format, " stores ", codes)
    shape = parts[codes].shape
    if len(shape) != 2 or 0 in shape:
        fail(f"{name}.{codes}", " has shape ", list(shape), ", not two dimensions above zero")
    n, k = shape[0], _columns(parts, config, codes, k)
    if config.packed and config.element is None:
        expect(parts, name, codes, torch.int32, shape)
        if shape[1] not in _widths(k, bits):
            fail(f"{name}.{codes}", " has ", shape[1], " words a row, but ", k, f" codes of {bits} "
                 "bits need ", _widths(k, bits)[0])  # fmt: skip
    elif config.packed:
        expect(parts, name, codes, torch.uint8, (n, -(-k * bits // 8)))
    else:
        dtypes = (torch.int8,) if config.element is None else BYTES[config.element]
        expect(parts, name, codes, dtypes, (n, k))
    group = block[1] if block else config.group_size
    spelled = f"block={block[0]}x{group}" if block else group_block(group, k)
    group = k if group == -1 else min(group, k)
    rows, groups = -(-n // block[0]) if block else n, -(-k // group)
    if config.strategy == "tensor":
        spelled, rows = "tensor", 1
    _check_side(parts, config, name, n, k, rows, groups)
    if config.packed and config.element is None:
        widths = [(shape[1], k)]
        if config.packs_zeros:
            widths.append((parts["weight_zero_point"].shape[0], n))
        whole = any(width != _widths(count, bits)[0] for width, count in widths)
        config = replace(config, whole_codes=whole)
    static = config.activations is not None and config.activations.is_static
    expect_input_scale(parts, name, static)
    return Layer(name, n, k, bits, group, groups, spelled, config, config.element, config.scale,
                 config.strategy == "tensor_group")  # fmt: skip


def _check_side(parts: Mapping[str, Stored], config: Scheme, name: str, n: int, k: int, rows: int,
                groups: int) -> None:  # fmt: skip
    found = parts["weight_scale"].shape
    flat = {"tensor": ((), (1,)), "channel": ((n,),)}.get(config.strategy, ())
    shape = found if found in flat else (rows, groups)
    dtypes = SCALE_NAMES if config.scale is None else BYTES[config.scale]
    expect(parts, name, "weight_scale", dtypes, shape)
    if "weight_zero_point" in parts and config.packs_zeros:
        words = parts["weight_zero_point"].shape[:1]
        first = words[0] if words and words[0] in _widths(n, config.bits) else 0
        shape = (first or _widths(n, config.bits)[0], groups)
        expect(parts, name, "weight_zero_point", torch.int32, shape)
    elif "weight_zero_point" in parts:
        dtypes = (torch.int8, *BYTES["float8_e4m3"])
        expect(parts, name, "weight_zero_point", dtypes, shape)
    if "weight_global_scale" in parts:
        scalar = parts["weight_global_scale"].shape == ()
        expect(parts, name, "weight_global_scale", torch.float32, () if scalar else (1,))
    if "weight_g_idx" in parts:
        expect(parts, name, "weight_g_idx", torch.int32, (k,))
    if "weight_shape" in parts:
        expect(parts, name, "weight_shape", (torch.int64, torch.int32), (2,))


def _columns(parts: Mapping[str, Stored], config: Scheme, codes: str, k: int | None) -> int:
    width, bits = parts[codes].shape[1], config.bits
    if not config.packed:
        return width
    if config.element is not None:
        return width * 8 // bits
    if k is not None and width in _widths(k, bits):
        return k
    scales = parts["weight_scale"].shape
    if config.strategy == "group" and len(scales) == 2:
        return scales[1] * config.group_size
    return width * 32 // bits


def _widths(count: int, bits: int) -> tuple[int, int]:
    """Words of ``count`` codes: in a dense stream, and with whole codes in each word."""
    return -(-count * bits // 32), -(-count // (32 // bits))


def canonical(part: str, tensor: Tensor, layer: Layer) -> tuple[str, Tensor]:
    """The canonical tensor that a stored one becomes, and its name; see ladder.checkpoints.layer.

    A g_idx with -1, as in a buffer that was never filled, becomes column // group. What activations
    were rounded with becomes nothing, but for a static scale of all of x.
    """
    config: Scheme = layer.config
    if part in _CODES:
        return "qweight", _codes(tensor, layer)
    if part == "weight_scale":
        blocks = tensor.reshape(-1, layer.groups).contiguous()
        return "scales", blocks if config.scale is None else blocks.view(torch.uint8)
    if part == "weight_zero_point" and config.packs_zeros:
        stream = tensor.t().contiguous()
        return "zeros", _fields(stream, layer.n, config).t().contiguous()
    if part == "weight_zero_point" and config.element is None:
        return "zeros", _unsigned(tensor.reshape(-1, layer.groups), layer)
    if part == "weight_global_scale":
        return "scale2", 1 / tensor.reshape(1)
    if part == "weight_g_idx":
        return "g_idx", torch.where((tensor < 0).any(), column_groups(layer, tensor), tensor)
    if part == INPUT_PARTS[0] and layer.is_static:
        return "input_scale", tensor.reshape(-1).to(torch.float32)
    return "", tensor


def _codes(tensor: Tensor, layer: Layer) -> Tensor:
    rows, bits = tensor.contiguous(), layer.bits
    if tensor.dtype == torch.int8:
        codes = _unsigned(rows, layer)
        if bits < 8:
            return ops.pack(codes, bits)
        rows = codes
    if rows.dtype != torch.int32:
        return words_of_bytes(rows)
    if layer.config.whole_codes:
        return ops.pack(_fields(rows, layer.k, layer.config), bits)
    if spare := layer.words * 32 - layer.k * bits:
        last = rows[:, -1:] & ((1 << (32 - spare)) - 1)  # bits past K are not promised to be zero
        return torch.cat((rows[:, :-1], last), dim=1)
    return rows


def _unsigned(codes: Tensor, layer: Layer) -> Tensor:
    """int8 codes plus 2**(b-1), as uint8, in which the sum wraps to what is meant."""
    return codes.contiguous().view(torch.uint8) + layer.midpoint


def _fields(stream: Tensor, count: int, config: Scheme) -> Tensor:
    """[R, W] int32 -> the first ``count`` fields of each row, uint8 [R, count]."""
    bits = config.bits
    if not config.whole_codes or stream.shape[1] != _widths(count, bits)[1]:
        return ops.unpack(stream, count, bits)
    shifts = torch.arange(0, 32 // bits * bits, bits, dtype=torch.int32, device=stream.device)
    fields = (stream.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return fields.to(torch.uint8).flatten(1)[:, :count].contiguous()


def side(tensors: Mapping[str, Tensor], layer: Layer) -> Side:
    """Return scales, zeros, scale2 and g_idx of a layer, canonical.

    Zeros that all are zero are dropped, as is a g_idx that is column // group.

    Raises:
        CheckpointError: a scale is NaN or infinite, weight_shape is another, or g_idx names a group
            that does not exist.
    """
    name = layer.name
    scales = tensors["weight_scale"]
    if layer.config.scale is not None:
        scales = scales.view(BYTES[layer.config.scale][-1]).float()
    check_scales(scales, f"{name}.weight_scale")
    if "weight_shape" in tensors and tensors["weight_shape"].tolist() != [layer.n, layer.k]:
        fail(f"{name}.weight_shape", " is ", tensors["weight_shape"].tolist(), ", but ",
             _CODES[not layer.config.packed], " is of ", [layer.n, layer.k])  # fmt: skip
    if layer.element and "weight_zero_point" in tensors and tensors["weight_zero_point"].any():
        fail(f"{name}.weight_zero_point", " is not zero, but the scheme is symmetric")
    small = {part: tensor for part, tensor in tensors.items() if part not in _CODES}
    parts = dict(canonical(part, tensor, layer) for part, tensor in small.items())
    if "scale2" in parts:
        check_scales(parts["scale2"], f"1 / {name}.weight_global_scale")
    return side_of(parts, layer, "weight_g_idx")


def words(qweight: Tensor, layer: Layer, rows: slice) -> Tensor:
    """Return the codes of some rows as int32 [rows, ceil(K*b/32)], canonical."""
    return canonical(_CODES[not layer.config.packed], qweight[rows], layer)[1]


def shapes(n: int, k: int, config: Scheme) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Shape and dtype of each part of an [n, k] layer, as present versions store it; None is the
    dtype of the model."""
    bits, group = config.bits, k if config.group_size == -1 else config.group_size
    scales = {"tensor": (1,), "channel": (n, 1)}.get(config.strategy, (n, -(-k // group)))
    if config.block:
        scales = (-(-n // config.block[0]), -(-k // config.block[1]))
    scale_dtype = None if config.scale is None else BYTES[config.scale][0]
    zeros = ((_widths(n, bits)[0], scales[-1]), torch.int32)
    integers = config.element is None
    byte = torch.int8 if integers else torch.float8_e4m3fn
    parts: dict[str, tuple[tuple[int, ...], torch.dtype | None]] = {
        "weight_packed": ((n, _widths(k, bits)[0]), torch.int32) if integers
        else ((n, k * bits // 8), torch.uint8),
        "weight": ((n, k), byte),
        "weight_scale": (scales, scale_dtype),
        "weight_zero_point": zeros if config.packs_zeros else (scales, torch.int8),
        "weight_global_scale": ((1,), torch.float32),
        "weight_g_idx": ((k,), torch.int32),
        "weight_shape": ((2,), torch.int64),
        "input_scale": ((1,), torch.float32),
        "input_zero_point": ((1,), torch.int8),
        "input_global_scale": ((1,), torch.float32),
    }  # fmt: skip
    inputs = () if config.activations is None else config.activations.parts
    needed = _needed(config) | {"weight_shape": config.packed and integers}
    needed |= {part: part in inputs for part in INPUT_PARTS}
    return {part: parts[part] for part in parts if needed[part]}


__all__ = [
    "PARTS", "Config", "canonical", "codes_part", "measure", "shapes", "side", "words",
]  # fmt: skip
