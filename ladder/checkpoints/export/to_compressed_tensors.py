# SPDX-License-Identifier: Apache-2.0
"""What writes folders of compressed-tensors. See :mod:`ladder.checkpoints.compressed_tensors`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ladder import ops
from ladder.checkpoints import compressed_tensors
from ladder.checkpoints.compressed_config import Config, Scheme
from ladder.checkpoints.export.units import Unit, integer_zeros
from ladder.types import TType
from ladder.weight import Weight

KEYS = ("quantization_config",)
#: Packed embeddings are decoded: few programs look up packed ones.
EMBEDDINGS = False
#: Formats of types that have a name of their own there: element, columns of a group, format of
#: scales, and whether there is a second scale.
_NAMED = {
    ("float4_e2m1", 16, "float8_e4m3", True): "nvfp4-pack-quantized",
    ("float4_e2m1", 32, "e8m0", False): "mxfp4-pack-quantized",
    ("float6_e2m3", 32, "e8m0", False): "mxfp6-pack-quantized",
    ("float8_e4m3", 32, "e8m0", False): "mxfp8-quantized",
}
_FLOATS = ("float16", "bfloat16", "float32")
#: activation_type, without how sums are made -> type of its codes.
_ACTIVATIONS = {"int8": "int", "float8_e4m3": "float"}


def _format_of(ttype: TType) -> str:
    """The format that holds weights of a type; "" where none does."""
    name, encoding = ttype.element.name, ttype.element.encoding
    named = _NAMED.get((name, ttype.columns, str(ttype.scale), ttype.scale2 is not None))
    if named and ttype.rows == 1 and not ttype.scale2_of_rows and ttype.zero == "none":
        return named
    if ttype.scale not in _FLOATS or ttype.scale2 is not None:
        return ""
    if name == "float8_e4m3" and ttype.zero == "none":
        return "float-quantized"
    kinds = ("midpoint", "integer", "quantized")
    signed = encoding == "signed_integer" and ttype.zero == "none"
    if signed or (encoding == "unsigned_integer" and ttype.zero in kinds):
        return "pack-quantized"
    return ""


def objection(unit: Unit) -> str:
    """Why compressed-tensors does not hold the weight of a module as it is; "" where it does."""
    ttype = unit.type
    if not _format_of(ttype):
        return (
            "it has integers of 1 to 8 bits with integer zero points and scales of floats, "
            "float8_e4m3 with such scales, MXFP4, mxfp6_e2m3, mxfp8_e4m3 and NVFP4"
        )
    if unit.zeros is not None and unit.zeros[1] == 1 << ttype.bits:
        return f"it has zero points of 0 to {unit.zeros[1] - 1}, and one is {unit.zeros[1]}"
    if unit.act_order and _format_of(ttype) != "pack-quantized":
        return "it has no order of columns for it (act-order)"
    if _is_block(ttype) and unit.n != unit.rows and unit.n % ttype.rows:
        return f"blocks of {ttype.rows} rows cut the {unit.n} rows of a projection"
    return ""


def takes_single_rows(unit: Unit) -> bool:
    """Whether :func:`tensors` is given a weight whose rows have scales of their own."""
    return _format_of(unit.type) == "pack-quantized"


def _is_block(ttype: TType) -> bool:
    return _format_of(ttype) == "float-quantized" and ttype.rows != 1


def config(units: Sequence[Unit], dense: Sequence[str]) -> dict[str, Any]:
    """The quantization_config of a folder that has ``units`` packed and the linear layers ``dense``
    not. Most units are told by the class Linear, the others by their names, which go first."""
    schemes: dict[str, list[str]] = {}
    for unit in units:
        schemes.setdefault(json.dumps(_scheme(unit)), []).append(unit.name)
    usual = max(schemes, key=lambda text: len(schemes[text]))
    groups = {}
    for number, (text, names) in enumerate(sorted(schemes.items(), key=lambda s: s[0] != usual)):
        group = json.loads(text)
        groups[f"group_{number}"] = {
            "targets": ["Linear"] if text == usual else names,
            "output_activations": None,
            **group,
        }
    formats = {group["format"] for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(dense),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "sparsity_config": {},
        "transform_config": {},
    }


def _scheme(unit: Unit) -> dict[str, Any]:
    """A group of ``config_groups``, without its targets."""
    ttype, form = unit.type, _format_of(unit.type)
    integers = form == "pack-quantized"
    weights: dict[str, Any] = {
        "num_bits": ttype.bits,
        "type": "int" if integers else "float",
        "symmetric": ttype.zero in ("none", "midpoint"),
        "strategy": "group" if ttype.columns else "channel",
        "group_size": ttype.columns or None,
        "block_structure": None,
        "actorder": "group" if unit.act_order else None,
        "dynamic": False,
    }
    if form.startswith("nvfp4"):
        weights["strategy"] = "tensor_group"
    elif _is_block(ttype) and (ttype.rows or ttype.columns):
        block = [ttype.rows or unit.rows, ttype.columns or unit.k]
        weights |= {"strategy": "block", "block_structure": block, "group_size": None}
    elif _is_block(ttype):
        weights["strategy"] = "tensor"
    if form.startswith(("nvfp4", "mx")):
        kept = "torch.float8_e4m3fn" if form.startswith("nvfp4") else "torch.uint8"
        weights |= {"scale_dtype": kept, "zp_dtype": kept}
    given = unit.activation_type and unit.activation_type.partition(",")[0]
    activations = None
    if given:
        activations = {
            "num_bits": 8,
            "type": _ACTIVATIONS[given],
            "symmetric": True,
            "strategy": "tensor" if unit.static else "token",
            "dynamic": not unit.static,
        }
        if integers and ttype.bits == 8 and given == "int8" and weights["symmetric"]:
            form = "int-quantized"
    return {"weights": weights, "input_activations": activations, "format": form}


def settings(fields: dict[str, Any]) -> Config:
    """What :func:`config` has made, as it is read."""
    return Config.from_dict(fields)


def shapes(unit: Unit, scheme: Scheme) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Shape and dtype of each part; None: that of the scales."""
    return compressed_tensors.shapes(unit.n, unit.k, scheme)


def tensors(weight: Weight, scheme: Scheme) -> dict[str, Tensor]:
    """The parts of a module."""
    ttype, (n, k) = weight.type, weight.shape
    assert weight.scales is not None
    scales = weight.scales
    parts: dict[str, Tensor] = {}
    if scheme.element is None:
        codes = weight.codes()
        if ttype.element.encoding == "signed_integer":
            codes = codes ^ (1 << ttype.bits - 1)
        if scheme.packed:
            parts["weight_packed"] = ops.pack(codes, ttype.bits)
            parts["weight_shape"] = torch.tensor([n, k])
        else:
            parts["weight"] = (codes ^ 0x80).view(torch.int8)
        if not scheme.symmetric:
            zeros = integer_zeros(weight).T.contiguous()
            parts["weight_zero_point"] = ops.pack(zeros, ttype.bits).T.contiguous()
    else:
        octets = weight.qweight.view(torch.uint8)[:, : k * ttype.bits // 8].contiguous()
        if scheme.packed:
            parts["weight_packed"] = octets
        else:
            parts["weight"] = octets.view(torch.float8_e4m3fn)
    if scheme.scale == "float8_e4m3":
        scales = scales.view(torch.float8_e4m3fn)
    parts["weight_scale"] = scales.reshape(-1) if scheme.strategy == "tensor" else scales
    if weight.scale2 is not None:
        parts["weight_global_scale"] = 1 / weight.scale2
    if weight.g_idx is not None:
        parts["weight_g_idx"] = weight.g_idx
    return parts


def notes(units: Sequence[Unit]) -> list[str]:
    """Sentences about what readers of the folder may do."""
    if any(unit.type.scale == "float32" for unit in units):
        return ["scales of float32 stay such; kernels of vLLM round them to the model's dtype"]
    return []


__all__ = [
    "EMBEDDINGS", "KEYS", "config", "notes", "objection", "settings", "shapes",
    "takes_single_rows", "tensors",
]  # fmt: skip
