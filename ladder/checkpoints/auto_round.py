# SPDX-License-Identifier: Apache-2.0
"""quant_method "auto-round" (Intel's AutoRound, once "intel/auto-round"): layers of integers, as
GPTQ or AWQ has them. ``packing_format`` says which:

    auto_round:auto_gptq (auto_round:gptq, auto)   GPTQ of 2 to 8 bits, zero - 1 stored
    auto_round, auto_round:gptqmodel               GPTQ of 2 to 8 bits, zero stored (v2)
    auto_round:auto_awq (auto_round:awq)           AWQ, gemm, 4 bits

A backend may stand behind, as in auto_round:auto_gptq:exllamav2. Older folders say the packing in
``backend``: auto_round:exllamav2 (zero stored) or gptq:exllamav2. Where zero - 1 is stored,
AutoRound adds one to each field alone and cuts nothing off, so that the zero of the largest field
is 2**bits.

``extra_config`` overrides the settings of modules, by name or, where a key is no name, by a regular
expression that is searched for; the first that is found counts. Modules of 16 bits are dense. Which
blocks are quantised (``block_name_to_quantize`` and its like) the tensors say.

Source: AutoRound 0.16, auto_round_extension/torch (qlinear_torch.py, qlinear_torch_zp.py),
export/export_to_awq/utils.py and inference/convert_model.py; of ``backend`` AutoRound 0.3,
export/export_to_autoround/export.py and auto_round_extension/cuda/qliner_triton.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from torch import Tensor

from ladder.checkpoints import awq, gptq
from ladder.checkpoints.gptq import codes_part
from ladder.checkpoints.layer import (
    Layer,
    Side,
    Stored,
    check_group_size,
    config_flag,
    config_int,
    config_word,
    fail,
)
from ladder.errors import CheckpointError, Unsupported

PARTS = gptq.PARTS
_BITS = range(2, 9)
#: The packing of :func:`_packing_of` for the words of ``packing_format``.
_PACKINGS = {
    "auto": "gptq", "auto_round:auto_gptq": "gptq", "auto_round:gptq": "gptq", "gptq": "gptq",
    "auto_gptq": "gptq",
    "auto_round": "gptq_v2", "auto_round:gptqmodel": "gptq_v2", "auto_round:exllamav2": "gptq_v2",
    "auto_round:triton": "gptq_v2", "auto_round:tritonv2": "gptq_v2",
    "auto_round:auto_awq": "awq", "auto_round:awq": "awq", "awq": "awq", "auto_awq": "awq",
}  # fmt: skip
#: Keys that have x rotated before a layer.
_ROTATIONS = ("rotation_config", "spinquant_config", "hadamard_config", "transform_config")
_A_NAME = re.compile(r"[\w.\-]+")


@dataclass(frozen=True)
class Config:
    """An AutoRound quantization_config."""

    packing: str  #: gptq, gptq_v2 or awq
    bits: int
    group_size: int
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization_config`` of config.json.

        Raises:
            CheckpointError: a key has the wrong type or a value outside the format's set.
            Unsupported: another packing or data type, quantised activations, or rotations.
        """
        if rotation := next((key for key in _ROTATIONS if fields.get(key)), None):
            raise Unsupported(
                f"quantization_config.{rotation} has activations rotated before each layer, which "
                "ladder does not"
            )
        if fields.get("dynamic"):
            raise Unsupported("quantization_config.dynamic is GPTQ's, and not read here")
        extra = fields.get("extra_config") or {}
        if not isinstance(extra, Mapping):
            fail("quantization_config.extra_config", " is ", repr(extra), ", not an object")
        config_flag(fields, "sym", True)  # zeros are stored either way
        config = cls(_packing_of(fields), *_settings("quantization_config", fields, 4, 128), extra)
        for key, overrides in extra.items():
            where = f"quantization_config.extra_config[{key!r}]"
            if not isinstance(overrides, Mapping):
                fail(where, " is ", repr(overrides), ", not an object of overrides")
            if not _A_NAME.fullmatch(key):
                _expression(where, key)
            config._override(where, overrides)
        return config

    def _override(self, where: str, overrides: Mapping[str, Any]) -> tuple[int, int] | None:
        """Bits and group_size; None of a dense module."""
        if config_int(overrides, ("bits",), self.bits) >= 16:
            return None
        return _settings(where, overrides, self.bits, self.group_size)

    def for_module(self, name: str) -> gptq.Config | awq.Config | None:
        """The settings of one module, of GPTQ or AWQ; None when it stays dense."""
        key = name if name in self.extra else next(filter(_finds(name), self.extra), None)
        found: tuple[int, int] | None = (self.bits, self.group_size)
        if key is not None:
            found = self._override(f"quantization_config.extra_config[{key!r}]", self.extra[key])
        if found is None:
            return None
        bits, group_size = found
        if self.packing != "awq":
            return gptq.Config(bits, group_size, self.packing, v1_zeros="uncut")
        if bits != 4:
            raise Unsupported(f"{name} has {bits} bits in AWQ's order, of which ladder reads 4")
        return awq.Config(group_size)


def _finds(name: str) -> Callable[[str], bool]:
    def finds(key: str) -> bool:
        return not _A_NAME.fullmatch(key) and _expression("", key).search(name) is not None

    return finds


def _expression(where: str, key: str) -> re.Pattern[str]:
    try:
        return re.compile(key)
    except (re.error, RecursionError, OverflowError) as error:
        raise CheckpointError(f"{where} is not a regular expression: {error}") from error


def _packing_of(fields: Mapping[str, Any]) -> str:
    word = config_word(fields, ("packing_format", "backend"), "auto")
    known = re.sub("^auto-?round", "auto_round", word)
    while known not in _PACKINGS and ":" in known:  # a backend stands behind
        known = known.rpartition(":")[0]
    # auto_round:llm_compressor and the like are no auto_round with a backend.
    if known not in _PACKINGS or (known == "auto_round" and ":" in word):
        raise Unsupported(
            f"quantization_config.packing_format is {word!r}; ladder reads {', '.join(_PACKINGS)}"
        )
    return _PACKINGS[known]


def _settings(where: str, fields: Mapping[str, Any], bits: int, group_size: int) -> tuple[int, int]:
    """Bits and group_size that ``fields`` say, else those given."""
    if (kind := config_word(fields, ("data_type",), "int")) != "int":
        raise Unsupported(f"{where}.data_type is {kind!r}, and ladder reads int here")
    for key in ("act_bits", "super_bits"):
        if (value := config_int(fields, (key,), 16)) < 16:
            raise Unsupported(f"{where}.{key} is {value}, which ladder does not read here")
    bits = config_int(fields, ("bits",), bits)
    if bits not in _BITS:
        fail(f"{where}.bits", " is ", bits, ", not from 2 to 8")
    return bits, check_group_size(config_int(fields, ("group_size",), group_size))


def _form(config: Any) -> ModuleType:
    return awq if isinstance(config, awq.Config) else gptq


def measure(
    parts: Mapping[str, Stored], config: gptq.Config | awq.Config, name: str, k: int | None = None
) -> Layer:
    """As ``measure`` of GPTQ or AWQ."""
    layer: Layer = _form(config).measure(parts, config, name, k)
    return layer


def canonical(part: str, tensor: Tensor, layer: Layer) -> tuple[str, Tensor]:
    """The canonical tensor that a stored one becomes, and its name: ladder.checkpoints.layer."""
    made: tuple[str, Tensor] = _form(layer.config).canonical(part, tensor, layer)
    return made


def side(tensors: Mapping[str, Tensor], layer: Layer) -> Side:
    """As ``side`` of GPTQ or AWQ."""
    made: Side = _form(layer.config).side(tensors, layer)
    return made


def words(qweight: Tensor, layer: Layer, rows: slice) -> Tensor:
    """As ``words`` of GPTQ or AWQ."""
    made: Tensor = _form(layer.config).words(qweight, layer, rows)
    return made


def shapes(n: int, k: int, config: gptq.Config | awq.Config) -> Any:
    """Shape and dtype of each part of an [n, k] layer; None is the dtype of the model."""
    made = _form(config).shapes(n, k, config)
    made.pop("g_idx", None)  # AutoRound writes none
    return made


__all__ = [
    "PARTS", "Config", "canonical", "codes_part", "measure", "shapes", "side", "words",
]  # fmt: skip
