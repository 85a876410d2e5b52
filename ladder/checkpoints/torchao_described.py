# SPDX-License-Identifier: Apache-2.0
"""What torchao says of each of its tensors (ladder.checkpoints.torchao) in the metadata of files.

    metadata["<module>.weight"]
        {"_type": "Int8Tensor", "_data": {"block_size": [1, 64], "dtype": ..., ...},
         "_tensor_data_names": ["qdata", "scale", ...]}

Source: torchao 0.18, prototype/safetensors/safetensors_utils.py, and the classes of tensors in
quantization/quantize_/workflows and prototype/mx_formats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ladder.checkpoints.activation_schemes import ActivationScheme
from ladder.checkpoints.layer import fail
from ladder.errors import Unsupported

INT8, INTX, FLOAT8 = "Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor"
INT4, TILES = "Int4Tensor", "Int4TilePackedTo4dTensor"
MX, NVFP4 = "MXTensor", "NVFP4Tensor"
#: The part that holds the codes of each.
CODES = "_weight_qdata"
#: The kinds of tensors that are read.
KINDS = (INT4, TILES, INT8, INTX, FLOAT8, MX, NVFP4)
#: dtypes of codes of floats -> ladder's format of them.
ELEMENTS = {
    "float8_e4m3fn": "float8_e4m3",
    "float8_e5m2": "float8_e5m2",
    "float4_e2m1fn_x2": "float4_e2m1",
}
_EIGHT_BITS = re.compile(r"int([1-8])")


@dataclass(frozen=True)
class Module:
    """The weight of one module."""

    kind: str  #: of KINDS
    block: tuple[int, int] | None  #: rows and columns of a scale; None: the whole tensor
    dtype: str = ""  #: that torchao decodes to, as torch calls it
    bits: int = 8
    element: str | None = None  #: format of codes that are floats
    shape: tuple[int, int] | None = None  #: [N, K], of kinds that say it
    swizzled: bool = False  #: scales are in the order of a kernel
    activations: ActivationScheme | None = None

    @property
    def activation_type(self) -> str | None:
        return None if self.activations is None else self.activations.activation_type


def module_of(name: str, said: str) -> Module | None:
    """What the metadata ``said`` of tensor ``name``; None of a dense tensor.

    Raises:
        CheckpointError: it is not what torchao writes.
        Unsupported: a kind of tensor that ladder does not read.
    """
    try:
        fields = json.loads(said)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not isinstance(fields.get("_type"), str):
        fail(f"the metadata of {name}", " is ", repr(said[:60]), ", not an object with a _type")
    kind = fields["_type"]
    if kind == "Tensor":
        return None
    if kind not in KINDS:
        raise Unsupported(f"{name} is torchao's {kind}; ladder reads {', '.join(KINDS)}")
    data = fields.get("_data")
    if not isinstance(data, dict):
        fail(f"the metadata of {name}", " has _data ", repr(data), ", not an object")
    where = f"the metadata of {name}"
    dtype = _dtype(where, "orig_dtype" if kind in (MX, NVFP4) else "dtype", data, "bfloat16")
    parts = fields.get("_tensor_data_names") or ()
    if not isinstance(parts, list | tuple):
        fail(where, " has _tensor_data_names ", repr(parts), ", not a list")
    scheme = _activations(where, kind, data, parts)
    if kind in (INT4, TILES):
        block = _pair(where, "block_size", data)
        if block[0] != 1:
            fail(where, " has block_size ", list(block), ", not one row and some columns")
        return Module(kind, block, dtype, 4, shape=_pair(where, "shape", data),
                      activations=scheme)  # fmt: skip
    if kind == INTX:
        target = _dtype(where, "target_dtype", data)
        if (match := _EIGHT_BITS.fullmatch(target)) is None:
            fail(where, " has target_dtype ", repr(target), ", not int1 to int8")
        return Module(kind, _block(where, data), dtype, int(match[1]), activations=scheme)
    if kind == NVFP4:
        columns = _columns(where, data, 16)
        return Module(kind, (1, columns), dtype, 4, "float4_e2m1", activations=scheme,
                      swizzled=_flag(where, data))  # fmt: skip
    if kind == MX:
        element = _dtype(where, "elem_dtype", data)
        if element not in ELEMENTS:
            raise Unsupported(
                f"{name} has elem_dtype {element}; ladder reads {', '.join(ELEMENTS)}"
            )
        bits = 4 if "float4" in element else 8
        return Module(kind, (1, _columns(where, data, 32)), dtype, bits, ELEMENTS[element],
                      activations=scheme, swizzled=_flag(where, data))  # fmt: skip
    return Module(kind, _block(where, data), dtype, activations=scheme)


def _value(given: Any, kind: str) -> Any:
    """The data of an object ``{"_type": kind, "_data": ...}``; None of anything else."""
    if not isinstance(given, dict) or given.get("_type") != kind:
        return None
    return given.get("_data")


def _dtype(where: str, key: str, data: Mapping[str, Any], default: str = "") -> str:
    given = data.get(key)
    if given is None and default:
        return default
    found = given if isinstance(given, str) else _value(given, "torch.dtype")
    if not isinstance(found, str):
        fail(where, f" has {key} ", repr(given), ", not a dtype")
    return found


def _pair(where: str, key: str, data: Mapping[str, Any]) -> tuple[int, int]:
    given = data.get(key)
    if isinstance(given, list) and len(given) > 2:
        raise Unsupported(
            f"{where} has {key} {given}: ladder packs matrices, and no stacks of them"
        )
    if not isinstance(given, list) or len(given) != 2 or not all(type(e) is int for e in given):
        fail(where, f" has {key} ", repr(given), ", not two sizes")
    if min(given) < 1:
        fail(where, f" has {key} ", given, ", not two sizes above zero")
    return given[0], given[1]


def _block(where: str, data: Mapping[str, Any]) -> tuple[int, int] | None:
    return None if data.get("block_size") == [] else _pair(where, "block_size", data)


def _columns(where: str, data: Mapping[str, Any], wanted: int) -> int:
    given = data.get("block_size")
    if given != wanted:
        fail(where, " has block_size ", repr(given), ", not ", wanted)
    return wanted


def _flag(where: str, data: Mapping[str, Any]) -> bool:
    given = data.get("is_swizzled_scales") or False
    if type(given) is not bool:
        fail(where, " has is_swizzled_scales ", repr(given), ", not true or false")
    return given


def _activations(
    where: str, kind: str, data: Mapping[str, Any], parts: Any
) -> ActivationScheme | None:
    if kind == INT4:
        dtype = _dtype(where, "activation_dtype", data, "bfloat16")
        return ActivationScheme("float", 8, True, "token") if dtype.startswith("float8") else None
    if kind == INTX:
        said = data.get("activation_quantization")
        if isinstance(said, dict):
            said = said.get("_data")
        if said is None:
            return None
        if str(said).lower() != "int8_asym_per_token":
            raise Unsupported(
                f"{where} has activation_quantization {said!r}, not int8_asym_per_token"
            )
        return ActivationScheme("int", 8, True, "token", symmetric=False)
    given = data.get("act_quant_kwargs")
    if given is None:
        return None
    fields = given.get("_data") if isinstance(given, dict) else None
    if not isinstance(fields, dict):
        fail(where, " has act_quant_kwargs ", repr(given), ", not an object with _data")
    if kind == NVFP4:
        return ActivationScheme("float", 4, True, "tensor_group", 16)
    if kind == MX:
        bits = 4 if "float4" in _dtype(where, "elem_dtype", fields) else 8
        return ActivationScheme("float", bits, True, "group", 32)
    row = _value(fields.get("granularity"), "PerRow") is not None
    of_int8 = kind == INT8
    symmetric = not of_int8 or _value(fields.get("mapping_type"), "MappingType") != "ASYMMETRIC"
    static = "act_quant_scale" in parts
    return ActivationScheme("int" if of_int8 else "float", 8, not static,
                            "token" if row else "tensor", symmetric=symmetric)  # fmt: skip
