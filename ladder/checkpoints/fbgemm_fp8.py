# SPDX-License-Identifier: Apache-2.0
"""quant_method "fbgemm_fp8": layers of float8_e4m3 with a scale for each row, as FBGEMM's kernels
take them (Llama 3.1's files of FP8).

    weight             float8 [N, K]
    weight_scale       float [N, 1] or [N]; it multiplies
    input_scale_ub     float, in some files: activation_scale_ub of the config once more
    weight[n, k] = weight_scale[n] * weight[n, k]

x is rounded by scales of tokens. FBGEMM takes no number of a token for larger than
``activation_scale_ub``; ladder rounds each token by its own largest number. Modules of
``modules_to_not_convert`` are dense. Stacks of experts (Llama 4: ``gate_up_proj`` beside
``gate_up_proj_scale``, columns first) are refused.

Source: transformers 5.24, integrations/fbgemm_fp8.py and quantizer_fbgemm_fp8.py; vLLM 0.26 and
0.33, quantization/fbgemm_fp8.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints import fp8
from ladder.checkpoints.fp8 import side, words
from ladder.checkpoints.layer import Layer, Stored, fail, require
from ladder.checkpoints.shards import ShardSet
from ladder.errors import Unsupported

_SCALE, _LIMIT = "weight_scale", "input_scale_ub"
PARTS = (_SCALE, "weight", _LIMIT)
_STACKS = ("gate_up_proj_scale", "down_proj_scale")
_log = logging.getLogger("ladder")


class Config(fp8.Config):
    """An fbgemm_fp8 quantization_config."""

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization_config`` of config.json. The log says what becomes of large x.

        Raises CheckpointError when a key has the wrong type.
        """
        limit = fields.get("activation_scale_ub", 1200.0)
        if type(limit) not in (int, float) or not limit > 0:
            fail("quantization_config.activation_scale_ub", " is ", repr(limit), ", not positive")
        _log.info("activation_scale_ub is %g: ladder rounds each token by its largest x", limit)
        key = "modules_to_not_convert"
        of = fp8.Config.from_dict({key: fields[key]} if key in fields else {})
        return cls(of.block, of.activations, of.dense)


def codes_part(parts: Mapping[str, Any]) -> str | None:
    """See ladder.checkpoints.layer."""
    return "weight" if _SCALE in parts or _LIMIT in parts else None


def measure(parts: Mapping[str, Stored], config: Config, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name``; errors as fp8's."""
    require(parts, name, ("weight", _SCALE))
    layer = fp8.measure({part: parts[part] for part in ("weight", _SCALE)}, config, name, k)
    if layer.block != "channel" and layer.n > 1:
        fail(f"{name}.{_SCALE}", " has shape ", list(parts[_SCALE].shape), ", not ",
             [layer.n, 1])  # fmt: skip
    return layer


def canonical(part: str, tensor: Tensor, layer: Layer) -> tuple[str, Tensor]:
    """The canonical tensor that a stored one becomes, and its name: ladder.checkpoints.layer."""
    return ("", tensor) if part == _LIMIT else fp8.canonical(part, tensor, layer)


def shapes(n: int, k: int, config: Config) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Shape and dtype of each part of an [n, k] layer, as vLLM expects it."""
    return {"weight": ((n, k), torch.float8_e4m3fn), _SCALE: ((n, 1), torch.float32)}


def check_headers(headers: Iterable[str]) -> None:
    """Raise Unsupported for a stack of experts."""
    for name in headers:
        if name.rpartition(".")[2] in _STACKS:
            raise Unsupported(
                f"{name} is there, of a stack of experts: ladder reads linear layers of fbgemm_fp8"
            )


def opened(shards: ShardSet) -> ShardSet:
    """The same files. Raises Unsupported as :func:`check_headers`."""
    check_headers(shards.home)
    return shards


__all__ = [
    "PARTS", "Config", "canonical", "check_headers", "codes_part", "measure", "opened", "shapes",
    "side", "words",
]  # fmt: skip
