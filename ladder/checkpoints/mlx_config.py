# SPDX-License-Identifier: Apache-2.0
"""What config.json of a folder of MLX says: no quant_method, but ``quantization``, and of
newer versions of mlx-lm the same as ``quantization_config``.

    {"group_size": 64, "bits": 4, "mode": "affine",
     "model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 6},
     "lm_head": false}

The first three are of all modules that the others, names of modules, do not speak of. A module
whose object lacks one of the three has that of its mode, not that of the others.

Source: mlx 0.32.4, nn/layers/quantized.py; mlx-lm 0.32.2, utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ladder.checkpoints.layer import config_int, config_word, fail
from ladder.checkpoints.mlx_files import stack_of
from ladder.errors import Unsupported

QUANT_METHOD = "mlx"
#: The key of config.json beside quantization_config.
KEY = "quantization"
_OWN = ("group_size", "bits", "mode")
_KNOWN = (*_OWN, "quant_method")  #: vLLM adds an empty one


@dataclass(frozen=True)
class Mode:
    """What a mode has; of the bits and the group sizes the first is the default."""

    bits: tuple[int, ...]
    group_sizes: tuple[int, ...]
    element: str | None = None  #: of the codes; None: unsigned integers
    scale: str | None = None  #: of the scales; None: floats, and biases beside them


MODES = {
    "affine": Mode((4, 1, 2, 3, 5, 6, 8), (64, 32, 128)),
    "mxfp4": Mode((4,), (32,), "float4_e2m1", "e8m0"),
    "mxfp8": Mode((8,), (32,), "float8_e4m3", "e8m0"),
    "nvfp4": Mode((4,), (16,), "float4_e2m1", "float8_e4m3"),
}


@dataclass(frozen=True)
class Module:
    """The settings of one module."""

    bits: int
    group_size: int
    mode: str


@dataclass(frozen=True)
class Config:
    """The settings of a folder."""

    usual: Module
    modules: Mapping[str, Module | None] = field(default_factory=dict)  #: None: dense

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization`` of config.json.

        Raises:
            CheckpointError: a value of the wrong type, or bits or a group size that a mode has not.
            Unsupported: an unknown mode, or a key of a module's settings that is not known.
        """
        usual = _module({key: fields.get(key) for key in _OWN}, "")
        modules: dict[str, Module | None] = {}
        for name, given in fields.items():
            if name in _KNOWN:
                continue
            if isinstance(given, Mapping):
                modules[name] = _module(given, f"{name}.")
            elif type(given) is bool:
                modules[name] = usual if given else None
            else:
                fail(f"{KEY}.{name}", " is ", repr(given), ", not the settings of a module")
        return cls(usual, modules)

    def for_module(self, name: str) -> Module | None:
        """The settings of one module, None when it stays dense."""
        for each in (name, stack_of(name)):
            if each in self.modules:
                return self.modules[each]
        return self.usual


def settings_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The settings in config.json of a folder of MLX, None of another folder.

    Raises CheckpointError where config.json has two that differ.
    """
    given, own = config.get("quantization_config"), config.get(KEY)
    if _is_anothers(given) or _is_anothers(own):
        return None
    if isinstance(own, Mapping) and {"group_size", "bits"} <= own.keys():
        if given is not None:
            _check_alike(own, given)
        return own
    return given if are_settings(given) else None


def are_settings(fields: Any) -> bool:
    """Whether a ``quantization_config`` that names no method is MLX's: it has a group size, bits,
    and beside them a mode and modules alone. GPTQ has flags, of which no name has dots."""
    if not isinstance(fields, Mapping) or _is_anothers(fields):
        return False
    return {"group_size", "bits"} <= fields.keys() and all(
        key in _KNOWN
        or isinstance(value, Mapping)
        or (type(value) is bool and ("mode" in fields or "." in key))
        for key, value in fields.items()
    )


def _check_alike(own: Mapping[str, Any], given: Any) -> None:
    """Raise CheckpointError with the first key of which the two say otherwise."""
    if not isinstance(given, Mapping):
        fail("quantization_config", " is ", repr(given), f", not an object as {KEY} is")
    for key in [*own, *given]:
        if key != "quant_method" and (key in own, own.get(key)) != (key in given, given.get(key)):
            said = [repr(fields[key]) if key in fields else "not there" for fields in (own, given)]
            fail(f"{KEY} and quantization_config", f" differ: {key} is {said[0]} and {said[1]}")


def _is_anothers(fields: Any) -> bool:
    named = fields.get("quant_method") or fields.get("method") if isinstance(fields, Mapping) else 0
    return bool(named) and named != QUANT_METHOD


def _module(fields: Mapping[str, Any], where: str) -> Module:
    if more := sorted(set(fields) - {*_OWN}):
        raise Unsupported(
            f"{KEY}.{where}{more[0]} is {fields[more[0]]!r}, and ladder does not know what it means"
        )
    name = config_word(fields, ("mode",), "affine")
    if name not in MODES:
        raise Unsupported(f"{KEY}.{where}mode is {name!r}, ladder reads {', '.join(MODES)}")
    mode = MODES[name]
    bits = config_int(fields, ("bits",), mode.bits[0])
    group_size = config_int(fields, ("group_size",), mode.group_sizes[0])
    for key, value, known in (
        ("bits", bits, mode.bits),
        ("group_size", group_size, mode.group_sizes),
    ):
        if value not in known:
            has = ", ".join(map(str, sorted(known)))
            fail(f"{KEY}.{where}{key}", " is ", value, f", and mode {name} has ", has)
    return Module(bits, group_size, name)
