# SPDX-License-Identifier: Apache-2.0
"""quant_method "fp8": layers of float8_e4m3, as DeepSeek, Qwen and transformers (FineGrainedFP8)
write them in blocks, and AutoFP8 with one scale for a tensor.

    weight                         float8 [N, K]; int8 [N, K/2] of experts of 4 bits (DeepSeek-V4):
                                   two codes of float4_e2m1 in a byte, the first in its lower half
    weight_scale_inv               float, or e8m0: [ceil(N/rows), ceil(K/columns)] with
                                   weight_block_size [rows, columns], [128, 128] where it has two
                                   dimensions and the config does not say; else [] or [1]. e8m0
                                   [N, K/32] of 4 bits
    scale                          another name for it (DeepSeek-V4)
    weight_scale                   another name for it; without blocks also [N] or [N, 1]
    input_scale, activation_scale  float [] or [1], of activation_scheme "static"
    weight[n, k] = weight_scale_inv[n / rows, k / columns] * weight[n, k]

The scale multiplies, whatever its name. Its dtype says whether it is e8m0: scale_fmt "ue8m0" of the
config also stands beside float32 scales that are powers of two. Modules of
``modules_to_not_convert`` or ``ignored_layers`` are dense.

Source: transformers 5.23, integrations/finegrained_fp8.py and quantizer_finegrained_fp8.py; vLLM
0.32 and 0.33, quantization/fp8.py and models/deepseek_v4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.activation_schemes import ActivationScheme
from ladder.checkpoints.layer import (
    BYTES,
    INPUT_SCALES,
    SCALE_NAMES,
    Layer,
    Side,
    Stored,
    check_scales,
    config_word,
    expect,
    expect_input_scale,
    fail,
    of_bytes,
    require,
    side_of,
    words_of_bytes,
)
from ladder.errors import Unsupported

#: Names of the scale; the second is one of layers without blocks.
_SCALES = ("weight_scale_inv", "weight_scale", "scale")
PARTS = (*_SCALES, "weight", *INPUT_SCALES)
_ELEMENT = "float8_e4m3"
_USUAL = (128, 128)
#: Of experts of 4 bits: the dtypes of two codes, their format, and columns that share a scale.
_PACKED, _PACKED_ELEMENT, _PACKED_GROUP = (torch.int8, torch.uint8), "float4_e2m1", 32


@dataclass(frozen=True)
class Config:
    """An FP8 quantization_config."""

    block: tuple[int, int] | None  #: rows and columns that share a scale; None: all or one row
    activations: ActivationScheme
    dense: tuple[str, ...] = ()  #: modules that stay so, by name, or by the beginning or end of it

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization_config`` of config.json. The log says how activations are rounded,
        where that is not as the config says.

        Raises:
            CheckpointError: a key has the wrong type or a value outside the format's set.
            Unsupported: experts of other formats beside layers of FP8.
        """
        for key, known in (("expert_dtype", ("fp8", "fp4")), ("store_dtype", ("fp8",)),
                           ("fmt", ("e4m3", "float8_e4m3"))):  # fmt: skip
            if (given := config_word(fields, (key,), known[0])) not in known:
                reads = " and ".join(known) if key == "expert_dtype" else known[0]
                raise Unsupported(
                    f"quantization_config.{key} is {given!r}, and ladder reads {reads} here"
                )
        block = _block(fields.get("weight_block_size"))
        scheme = config_word(fields, ("activation_scheme",), "dynamic")
        if scheme not in ("dynamic", "static"):
            fail("quantization_config.activation_scheme", " is ", repr(scheme),
                 ", not dynamic or static")  # fmt: skip
        dense = fields.get("ignored_layers") or fields.get("modules_to_not_convert") or ()
        if not isinstance(dense, list | tuple) or not all(isinstance(name, str) for name in dense):
            fail("quantization_config.modules_to_not_convert", " is ", repr(dense),
                 ", not a list of names")  # fmt: skip
        activations = _activations(scheme, block)
        activations.say("quantization_config.activation_scheme")
        return cls(block, activations, tuple(dense))

    @property
    def activation_type(self) -> str | None:
        return self.activations.activation_type

    def for_module(self, name: str) -> Config | None:
        """The settings of one module, None when it stays dense."""
        dotted = f".{name}."
        if any(dotted.startswith(f".{e}.") or dotted.endswith(f".{e}.") for e in self.dense):
            return None
        return self


def _activations(scheme: str, block: tuple[int, int] | None) -> ActivationScheme:
    if scheme == "static":
        return ActivationScheme("float", 8, False, "tensor")
    if block is None:
        return ActivationScheme("float", 8, True, "token")
    return ActivationScheme("float", 8, True, "group", block[1])


def _block(given: Any) -> tuple[int, int] | None:
    if given is None:
        return None
    if isinstance(given, list | tuple) and len(given) == 2 and all(type(e) is int for e in given):
        rows, columns = given
        if rows >= 1 and columns >= 8:
            return rows, columns
    fail("quantization_config.weight_block_size", " is ", repr(given),
         ", not [rows, columns] with 8 columns or more")  # fmt: skip


def codes_part(parts: Mapping[str, Any]) -> str | None:
    """See ladder.checkpoints.layer. A ``weight`` is quantised where it has a scale. A ``scale``
    alone, or beside a weight that is not of bytes, is some other module's."""
    named = [part for part in _SCALES if part in parts]
    if named == ["scale"]:
        return "weight" if "weight" in parts and of_bytes(parts["weight"]) else None
    return "weight" if named else None


def measure(parts: Mapping[str, Stored], config: Config, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name`` against each other and ``config``.

    Raises:
        CheckpointError: a part is missing, or has another dtype or shape than the rest asks for.
            The message names the tensor and both values.
    """
    require(parts, name, ("weight",))
    shape = parts["weight"].shape
    if len(shape) != 2 or 0 in shape:
        fail(f"{name}.weight", " has shape ", list(shape), ", not two dimensions above zero")
    scale = _scale_of(parts, name)
    expect_input_scale(parts, name, config.activations.is_static)
    if parts["weight"].dtype in _PACKED:
        n, k = shape[0], 2 * shape[1]
        groups = -(-k // _PACKED_GROUP)
        expect(parts, name, scale, BYTES["e8m0"], (n, groups))
        return Layer(name, n, k, 4, min(_PACKED_GROUP, k), groups, f"group={_PACKED_GROUP}", config,
                     _PACKED_ELEMENT, "e8m0")  # fmt: skip
    expect(parts, name, "weight", BYTES[_ELEMENT], shape)
    n, k = shape
    found, block = parts[scale].shape, config.block
    if block is None and scale != "weight_scale" and len(found) == 2:
        block = _USUAL  # as transformers takes a config that does not say
    if block is not None:
        rows, group = block
        blocks, spelled = (-(-n // rows), -(-k // group)), f"block={rows}x{group}"
    else:
        blocks, spelled, group = (1, 1), "tensor", k
        if found in ((n,), (n, 1)) and n > 1:
            blocks, spelled = (n, 1), "channel"
    flat = ((), (1,), (n,)) if block is None else ()
    expect(parts, name, scale, (*SCALE_NAMES, *BYTES["e8m0"]), found if found in flat else blocks)
    coded = parts[scale].dtype in BYTES["e8m0"]
    return Layer(name, n, k, 8, min(group, k), blocks[1], spelled, config, _ELEMENT,
                 "e8m0" if coded else None)  # fmt: skip


def _scale_of(parts: Mapping[str, Any], name: str) -> str:
    there = [part for part in _SCALES if part in parts]
    if len(there) > 1:
        fail(f"{name}.{there[1]}", " is there, and ", name, ".", there[0], " too")
    return there[0]


def canonical(part: str, tensor: Tensor, layer: Layer) -> tuple[str, Tensor]:
    """The canonical tensor that a stored one becomes, and its name: ladder.checkpoints.layer."""
    if part == "weight":
        return "qweight", words_of_bytes(tensor)
    if part in _SCALES:
        scales = tensor.reshape(-1, layer.groups).contiguous()
        return "scales", scales if layer.scale is None else scales.view(torch.uint8)
    if part in INPUT_SCALES and layer.is_static:
        return "input_scale", tensor.reshape(-1).to(torch.float32)
    return "", tensor


def side(tensors: Mapping[str, Tensor], layer: Layer) -> Side:
    """Return the scales of a layer, canonical.

    Raises:
        CheckpointError: a scale is NaN or infinite.
    """
    scale = _scale_of(tensors, layer.name)
    values = tensors[scale]
    if layer.scale is not None:
        values = values.view(BYTES[layer.scale][-1]).float()
    check_scales(values, f"{layer.name}.{scale}")
    small = (part for part in (scale, *INPUT_SCALES) if part in tensors)
    return side_of(dict(canonical(part, tensors[part], layer) for part in small), layer)


def words(qweight: Tensor, layer: Layer, rows: slice) -> Tensor:
    """Return the codes of some rows as int32 [rows, ceil(K/4)], of 4 bits [rows, ceil(K/8)],
    canonical."""
    return words_of_bytes(qweight[rows])


def shapes(n: int, k: int, config: Config) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Shape and dtype of each part of an [n, k] layer, as vLLM expects it."""
    parts: dict[str, tuple[tuple[int, ...], torch.dtype | None]] = {
        "weight": ((n, k), torch.float8_e4m3fn)
    }
    if config.block is None:
        parts["weight_scale"] = ((1,), torch.float32)
    else:
        blocks = (-(-n // config.block[0]), -(-k // config.block[1]))
        parts["weight_scale_inv"] = (blocks, torch.float32)
    if not config.activations.dynamic:
        parts["input_scale"] = ((1,), torch.float32)
    return parts


__all__ = [
    "PARTS", "Config", "canonical", "codes_part", "measure", "shapes", "side", "words",
]  # fmt: skip
