# SPDX-License-Identifier: Apache-2.0
"""quant_method "modelopt": folders that NVIDIA's Model Optimizer exports for Hugging Face.

    quant_algo                   weight                      weight_scale           x
    FP8                          float8 [N, K]               float [] or [1]        8 bits, static
    FP8_PER_CHANNEL_PER_TOKEN    float8 [N, K]               float [N] or [N, 1]    8 bits, by token
    FP8_PB_WO                    float8 [N, K]               float [ceil(N/128), ceil(K/128)], or
                                                             [., 1, ., 1]           as it comes
    MXFP8                        float8 [N, K]               e8m0 [N, K/32]         8 bits, by group
    NVFP4, W4A16_NVFP4           uint8 [N, K/2]: two codes   float8 [N, K/16]       as it comes
                                 of float4_e2m1 in a byte,
                                 the first in its lower half
    W4A16_AWQ                    uint8 [N/2, K]: two codes   float [N, K/group]     as it comes
    W4A8_AWQ                     of int4 in a byte, that of                         8 bits, static
                                 the even row in its lower
                                 half
    NVFP4_AWQ                    as NVFP4                                           as it comes
    pre_quant_scale              float [K]: x * pre_quant_scale is what is multiplied, and rounded;
                                 modules whose norm has it already have none
    weight_scale_2               float32 [] or [1], of NVFP4; it multiplies. That of W4A8_AWQ
                                 is how a kernel rounds weights to float8, which ladder's do not
    input_scale                  float [] or [1], of x

    weight[n, k] = weight_scale_2 * weight_scale[n / rows, k / columns] * weight[n, k]

"MIXED_PRECISION" has the algorithm of each module in ``quantized_layers``. Settings lie in
config.json or, of older versions, in hf_quant_config.json. Names of modules that stay dense may
have "*". Scales of the cache (``k_scale``, ``v_scale``) are other tensors, which nothing reads.

Source: NVIDIA TensorRT-Model-Optimizer, modelopt/torch/export/quant_utils.py; vLLM 0.32,
quantization/modelopt.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from ladder import ops
from ladder.checkpoints.activation_schemes import ActivationScheme
from ladder.checkpoints.layer import (
    BYTES,
    PRE_SCALES,
    SCALE_NAMES,
    Layer,
    Side,
    Stored,
    check_group_size,
    check_pre_scale,
    check_scales,
    config_int,
    expect,
    expect_input_scale,
    fail,
    require,
    side_of,
    words_of_bytes,
)
from ladder.errors import Unsupported

PARTS = ("weight", "weight_scale", "weight_scale_2", "input_scale", *PRE_SCALES)
_FLOAT8, _FLOAT4, _INT4, _BLOCK = "float8_e4m3", "float4_e2m1", "int4", 128
(_PRE_SCALE,) = PRE_SCALES
_STATIC = ActivationScheme("float", 8, False, "tensor")
_BY_TOKEN = ActivationScheme("float", 8, True, "token")
_OF_4_BITS = ActivationScheme("float", 4, "local", "tensor_group", 16)
_OF_GROUPS = ActivationScheme("float", 8, True, "group", 32)


@dataclass(frozen=True)
class Algorithm:
    """One quant_algo: what the codes are, what shares a scale, how x is rounded."""

    element: str
    group: int = 0  #: columns that share a scale; 0: all of the tensor; -1: all of a row
    rows: int = 1  #: rows that share it
    scale: str | None = None  #: format of scales that are codes
    scale2: bool = False
    activations: ActivationScheme | None = None

    @property
    def bits(self) -> int:
        return 8 if self.element == _FLOAT8 else 4

    @property
    def pairs_rows(self) -> bool:
        """Whether a byte has the codes of two rows, not of two columns."""
        return self.element == _INT4


#: To add an algorithm, add its row.
ALGORITHMS = {
    "FP8": Algorithm(_FLOAT8, activations=_STATIC),
    "FP8_PER_CHANNEL_PER_TOKEN": Algorithm(_FLOAT8, -1, activations=_BY_TOKEN),
    "FP8_PB_WO": Algorithm(_FLOAT8, _BLOCK, _BLOCK),
    "MXFP8": Algorithm(_FLOAT8, 32, scale="e8m0", activations=_OF_GROUPS),
    "NVFP4": Algorithm(_FLOAT4, 16, scale=_FLOAT8, scale2=True, activations=_OF_4_BITS),
    "NVFP4_AWQ": Algorithm(_FLOAT4, 16, scale=_FLOAT8, scale2=True, activations=_OF_4_BITS),
    "W4A16_AWQ": Algorithm(_INT4, 128),
    "W4A16_NVFP4": Algorithm(_FLOAT4, 16, scale=_FLOAT8, scale2=True),
    "W4A8_AWQ": Algorithm(_INT4, 128, activations=_STATIC),
}
_MIXED = "MIXED_PRECISION"


@dataclass(frozen=True)
class Config:
    """The settings of a folder, or of one module."""

    algorithm: Algorithm | None  #: None: each module has its own
    dense: tuple[str, ...] = ()  #: modules that stay so; "*" stands for anything
    modules: Mapping[str, Algorithm] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization_config`` of config.json, or hf_quant_config.json. The log says how
        activations are rounded, where that is not as the algorithm says.

        Raises:
            CheckpointError: a key has the wrong type.
            Unsupported: an algorithm that ladder does not read; the message names it.
        """
        where = "quantization_config"
        inner = fields.get("quantization")
        if isinstance(inner, Mapping):  # as hf_quant_config.json has it
            fields, where = inner, "quantization"
        dense = fields.get("exclude_modules") or fields.get("ignore") or ()
        if not isinstance(dense, list | tuple) or not all(isinstance(name, str) for name in dense):
            fail(f"{where}.exclude_modules", " is ", repr(dense), ", not a list of names")
        name = str(fields.get("quant_algo", "")).upper()
        if name != _MIXED:
            made = cls(_algorithm(name, f"{where}.quant_algo", fields), tuple(dense))
            made._say(where, {name})
            return made
        layers = fields.get("quantized_layers")
        if not isinstance(layers, Mapping) or not layers:
            fail(f"{where}.quantized_layers", " is ", repr(layers), ", not algorithms of modules")
        names = {
            module: str(each.get("quant_algo", "") if isinstance(each, Mapping) else each).upper()
            for module, each in layers.items()
        }
        modules = {
            module: _algorithm(each, f"{where}.quantized_layers.{module}", layers[module])
            for module, each in names.items()
        }
        made = cls(None, tuple(dense), modules)
        made._say(where, set(names.values()))
        return made

    def _say(self, where: str, names: set[str]) -> None:
        for name in sorted(names):
            scheme = ALGORITHMS[name].activations
            if scheme is not None:
                scheme.say(f"{where}.quant_algo {name}", ["input_scale"] * (scheme.bits == 4))

    @property
    def activations(self) -> ActivationScheme | None:
        return None if self.algorithm is None else self.algorithm.activations

    @property
    def activation_type(self) -> str | None:
        return None if self.activations is None else self.activations.activation_type

    def for_module(self, name: str) -> Config | None:
        """The settings of one module, None when it stays dense."""
        if any(fnmatchcase(name, pattern) for pattern in self.dense):
            return None
        if self.algorithm is not None:
            return self
        found = self.modules.get(name)
        return None if found is None else Config(found)


def _algorithm(name: str, where: str, fields: Any) -> Algorithm:
    """The algorithm ``name``, with the group that ``fields`` have beside it, of integers."""
    if name not in ALGORITHMS:
        known = ", ".join((*ALGORITHMS, _MIXED))
        raise Unsupported(f"{where} is {name!r}; ladder reads {known}")
    found = ALGORITHMS[name]
    if found.element != _INT4 or not isinstance(fields, Mapping):
        return found
    group = check_group_size(config_int(fields, ("group_size",), found.group))
    return replace(found, group=group)


def codes_part(parts: Mapping[str, Any]) -> str | None:
    """See ladder.checkpoints.layer. A ``weight`` is quantised where it has a scale."""
    return "weight" if "weight_scale" in parts else None


def measure(parts: Mapping[str, Stored], config: Config, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name`` against each other and ``config``.

    Raises:
        CheckpointError: a part is missing, or has another dtype or shape than the rest asks for.
            The message names the tensor and both values.
    """
    algorithm = config.algorithm
    assert algorithm is not None  # for_module has seen to that
    require(parts, name, ("weight", "weight_scale", *["weight_scale_2"] * algorithm.scale2))
    shape = parts["weight"].shape
    if len(shape) != 2 or 0 in shape:
        fail(f"{name}.weight", " has shape ", list(shape), ", not two dimensions above zero")
    packed = algorithm.bits == 4
    expect(parts, name, "weight", torch.uint8 if packed else BYTES[_FLOAT8], shape)
    n, k = shape[0], shape[1]
    if algorithm.pairs_rows:
        n *= 2
    elif packed:
        k *= 2
    group = k if algorithm.group <= 0 else algorithm.group
    rows, groups = -(-n // algorithm.rows), -(-k // group)
    spelled = f"group={group}"
    if algorithm.rows > 1:
        spelled = f"block={algorithm.rows}x{group}"
    elif algorithm.group <= 0:
        spelled = "channel" if algorithm.group else "tensor"
    found = parts["weight_scale"].shape
    others: tuple[tuple[int, ...], ...]
    others = {"tensor": ((), (1,)), "channel": ((n,), (n, 1))}.get(spelled, ())
    if algorithm.rows > 1:
        others = ((rows, 1, groups, 1),)
    dtypes = SCALE_NAMES if algorithm.scale is None else BYTES[algorithm.scale]
    wanted = (1,) if spelled == "tensor" else (rows, groups)
    expect(parts, name, "weight_scale", dtypes, found if found in others else wanted)
    if algorithm.scale2:
        scalar = parts["weight_scale_2"].shape == ()
        expect(parts, name, "weight_scale_2", torch.float32, () if scalar else (1,))
    if _PRE_SCALE in parts:
        expect(parts, name, _PRE_SCALE, SCALE_NAMES, (k,))
    expect_input_scale(parts, name, config.activations is not None and config.activations.is_static)
    return Layer(name, n, k, algorithm.bits, min(group, k), groups, spelled, config,
                 algorithm.element, algorithm.scale, algorithm.scale2)  # fmt: skip


def canonical(part: str, tensor: Tensor, layer: Layer) -> tuple[str, Tensor]:
    """The canonical tensor that a stored one becomes, and its name: ladder.checkpoints.layer."""
    if part == "weight" and layer.element == _INT4:
        rows = torch.stack((tensor & 15, tensor >> 4), 1).flatten(0, 1)
        return "qweight", ops.pack(rows, 4)
    if part == "weight":
        return "qweight", words_of_bytes(tensor)
    if part == "weight_scale":
        scales = tensor.reshape(-1, layer.groups).contiguous()
        return "scales", scales if layer.scale is None else scales.view(torch.uint8)
    if part == "weight_scale_2" and layer.scale2:
        return "scale2", tensor.reshape(1)
    if part == "input_scale" and layer.is_static:
        return "input_scale", tensor.reshape(-1).to(torch.float32)
    if part == _PRE_SCALE:
        return "pre_scale", tensor.to(torch.float32)
    return "", tensor


def side(tensors: Mapping[str, Tensor], layer: Layer) -> Side:
    """Return the scales of a layer, canonical.

    Raises:
        CheckpointError: a scale is NaN or infinite.
    """
    values = tensors["weight_scale"]
    if layer.scale is not None:
        values = values.view(BYTES[layer.scale][-1]).float()
    check_scales(values, f"{layer.name}.weight_scale")
    if layer.scale2:
        check_scales(tensors["weight_scale_2"], f"{layer.name}.weight_scale_2")
    small = (part for part in PARTS if part in tensors and part != "weight")
    parts = dict(canonical(part, tensors[part], layer) for part in small)
    if "pre_scale" in parts:
        check_pre_scale(parts["pre_scale"], layer.k, layer.name)
    return side_of(parts, layer)


def words(qweight: Tensor, layer: Layer, rows: slice) -> Tensor:
    """Return the codes of some rows as int32 [rows, ceil(K * bits / 32)], canonical."""
    if layer.element == _INT4:
        first, last, _ = rows.indices(layer.n)
        rows = slice(first // 2, -(-last // 2))  # pieces begin at even rows
    return canonical("weight", qweight[rows], layer)[1]


def shapes(n: int, k: int, config: Config) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Shape and dtype of each part of an [n, k] layer, as present versions store it; None is the
    dtype of the model."""
    algorithm = config.algorithm
    assert algorithm is not None
    group = k if algorithm.group <= 0 else algorithm.group
    scales = (-(-n // algorithm.rows), -(-k // group))
    packed = algorithm.bits == 4
    size = (n // 2, k) if algorithm.pairs_rows else (n, k // 2 if packed else k)
    parts: dict[str, tuple[tuple[int, ...], torch.dtype | None]] = {
        "weight": (size, torch.uint8 if packed else BYTES[_FLOAT8][0]),
        "weight_scale": (
            () if algorithm.group == 0 else scales,
            torch.float32 if algorithm.scale is None else BYTES[algorithm.scale][0],
        ),
    }
    if algorithm.scale2:
        parts["weight_scale_2"] = ((), torch.float32)
    if config.activations is not None and (config.activations.is_static or packed):
        parts["input_scale"] = ((), torch.float32)
    return parts


__all__ = [
    "PARTS", "Config", "canonical", "codes_part", "measure", "shapes", "side", "words",
]  # fmt: skip
