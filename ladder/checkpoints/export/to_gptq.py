# SPDX-License-Identifier: Apache-2.0
"""What writes GPTQ folders: format v1 (``gptq``), which stores zero points less one; v2 where one
is 0. See :mod:`ladder.checkpoints.gptq`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ladder import ops
from ladder._version import DISTRIBUTION, __version__
from ladder.checkpoints import gptq
from ladder.checkpoints.export.units import Unit, integer_zeros
from ladder.checkpoints.gptq import Config
from ladder.weight import Weight

KEYS = ("quantization_config",)
#: Packed embeddings are decoded.
EMBEDDINGS = False
_BITS = (2, 3, 4, 8)
_ZEROS = ("midpoint", "integer", "quantized")


def objection(unit: Unit) -> str:
    """Why GPTQ does not hold the weight of a module as it is; "" where it does."""
    ttype = unit.type
    if ttype.element.encoding != "unsigned_integer" or ttype.bits not in _BITS:
        return f"its codes are unsigned integers of {', '.join(map(str, _BITS))} bits"
    if ttype.zero not in _ZEROS:
        return f'its zero points are integers, and "{ttype.zero}" is another kind'
    if ttype.scale not in ("float16", "bfloat16") or ttype.scale2 is not None:
        return "it has one level of scales, float16 or bfloat16"
    if unit.zeros is not None and unit.zeros[1] == 1 << ttype.bits:
        return f"it has zero points of 0 to {unit.zeros[1] - 1}, and one is {unit.zeros[1]}"
    return ""


def takes_single_rows(unit: Unit) -> bool:
    """Whether :func:`tensors` is given a weight whose rows have scales of their own."""
    return True


def config(units: Sequence[Unit], dense: Sequence[str]) -> dict[str, Any]:
    """The quantization_config of a folder that has ``units`` packed and the linear layers ``dense``
    not."""
    settings = {unit.name: _settings(unit) for unit in units}
    usual = Counter(tuple(each.items()) for each in settings.values()).most_common(1)[0][0]
    dynamic = {
        f"+:^{re.escape(name)}$": own
        for name, own in settings.items()
        if tuple(own.items()) != usual
    }
    dynamic |= {f"-:^{re.escape(name)}$": {} for name in dense}
    return {
        "quant_method": "gptq",
        **dict(usual),
        "dynamic": dynamic,
        "checkpoint_format": _version_of(units),
        "pack_dtype": "int32",
        "lm_head": any(unit.name.rpartition(".")[2] == "lm_head" for unit in units),
        "true_sequential": True,
        "damp_percent": 0.01,
        "meta": {"quantizer": [f"{DISTRIBUTION}:{__version__}"]},
    }


def _settings(unit: Unit) -> dict[str, Any]:
    return {
        "bits": unit.type.bits,
        "group_size": unit.type.group_size,
        "sym": unit.type.zero == "midpoint",
        "desc_act": unit.act_order,
    }


def _version_of(units: Sequence[Unit]) -> str:
    """ "gptq" stores zero points less one, so none of 0; where one is, it is "gptq_v2"."""
    return "gptq_v2" if any(unit.zeros and unit.zeros[0] == 0 for unit in units) else "gptq"


def settings(fields: dict[str, Any]) -> Config:
    """What :func:`config` has made, as it is read."""
    return Config.from_dict(fields)


def shapes(unit: Unit, scheme: Config) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Shape and dtype of each part; None: that of the scales."""
    return gptq.shapes(unit.n, unit.k, scheme)


def tensors(weight: Weight, scheme: Config) -> dict[str, Tensor]:
    """The parts of a module, of a weight whose rows have scales of their own."""
    ttype, k = weight.type, weight.shape[1]
    assert weight.scales is not None
    zeros = integer_zeros(weight).T.contiguous()
    if scheme.format == "gptq":
        zeros = zeros - 1
    order = weight.g_idx
    if order is None:
        order = torch.arange(k, dtype=torch.int32) // (ttype.columns or k)
    return {
        "qweight": weight.qweight.T.contiguous(),
        "qzeros": ops.pack(zeros, ttype.bits),
        "scales": weight.scales.T.contiguous(),
        "g_idx": order,
    }


def notes(units: Sequence[Unit]) -> list[str]:
    """Sentences about what the folder does not say."""
    if any(unit.activation_type is not None for unit in units):
        return ["x comes as it is: GPTQ has no activation_type"]
    return []


__all__ = [
    "EMBEDDINGS", "KEYS", "config", "notes", "objection", "settings", "shapes",
    "takes_single_rows", "tensors",
]  # fmt: skip
