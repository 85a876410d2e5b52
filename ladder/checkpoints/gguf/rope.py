# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings: what a GGUF file says of them, as transformers' configurations have it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.gguf.header import GgufFile
from ladder.errors import CheckpointError, Unsupported

#: By what frequencies are divided: no parameters of a model.
FACTORS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
FACTOR_TENSORS = frozenset({FACTORS, LONG, SHORT})
#: What Llama 3.1 and later stretch: no file says these two, which are the same for all of them, nor
#: the context that they were trained for.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_CONTEXT = 8192
#: Fields that :func:`set_rope` reads.
FIELDS = ("rope.freq_base", "rope.freq_base_swa", "rope.dimension_count")
SCALING = "rope.scaling."
#: Fields of YaRN that change results, and the value that is as good as none: transformers has
#: nothing that stands for others.
_YARN_NEUTRAL = {"yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0, "attn_factor": 1.0}
_YARN = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}


def set_rope(file: GgufFile, config: Any) -> None:
    """Put into ``config`` how the file turns, and stretches, rotary embeddings.

    Raises:
        Unsupported: transformers has no such embeddings; the message names what asks for them.
    """
    told = dict(getattr(config, "rope_parameters", None) or {})
    if any(isinstance(value, dict) for value in told.values()):
        _set_by_kind(file, config, told)
        return
    if told.get("rope_type", "default") != "default":
        return
    if (theta := file.of_model("rope.freq_base")) is not None:
        told["rope_theta"] = float(theta)
    if (turned := file.of_model("rope.dimension_count")) is not None:
        whole = getattr(config, "head_dim", None) or _head_dim(config)
        if turned != whole * told.get("partial_rotary_factor", 1.0):
            told["partial_rotary_factor"] = turned / whole
    stretched = _stretched(file, told)
    if told or stretched:  # GPT-2 has none
        config.rope_parameters = told | stretched
    context = "original_max_position_embeddings"
    if context in stretched and hasattr(config, context):  # Phi 3's, which comes before the others
        setattr(config, context, stretched[context])


def _head_dim(config: Any) -> int:
    return int(config.hidden_size // config.num_attention_heads)


def _set_by_kind(file: GgufFile, config: Any, told: dict[str, Any]) -> None:
    """Of a model whose kinds of layers have embeddings of their own. llama.cpp stretches those of
    Gemma 3's global layers alone; of other models nobody says whose are stretched."""
    whole, window = "full_attention", "sliding_attention"
    if file.architecture != "gemma3" or told.keys() != {whole, window}:
        if (kind := file.of_model("rope.scaling.type")) not in (None, "none"):
            _refuse(file, kind)
        return
    made = {name: dict(values) for name, values in told.items()}
    if (theta := file.of_model("rope.freq_base")) is not None:
        made[whole]["rope_theta"] = float(theta)
    if (theta := file.of_model("rope.freq_base_swa")) is not None:
        made[window]["rope_theta"] = float(theta)
    made[whole] |= _stretched(file, made[whole])
    config.rope_parameters = made


def _stretched(file: GgufFile, told: dict[str, Any]) -> dict[str, Any]:
    """What the rope_parameters ``told`` lack of those that the file asks for."""
    if LONG in file.entries or SHORT in file.entries:
        return _longrope(file)
    if FACTORS in file.entries:
        factors = _factors(file, FACTORS)
        return _llama3(file, told.get("rope_theta"), factors) if (factors != 1).any() else {}
    kind = file.of_model("rope.scaling.type")
    factor = file.of_model("rope.scaling.factor")
    # A factor of 0 or 1 stretches nothing.
    if kind in (None, "none") or (kind in ("linear", "yarn") and factor in (None, 0, 1)):
        return {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": float(factor)}
    context = file.of_model("rope.scaling.original_context_length")
    if kind != "yarn" or not context:
        _refuse(file, kind)
    for key, neutral in _YARN_NEUTRAL.items():
        value = file.of_model(f"{SCALING}{key}")
        if value not in (None, neutral):
            _refuse(file, kind, f" with {key} {value}")
    if (value := file.of_model("rope.scaling.yarn_log_multiplier")) not in (None, 0):
        _refuse(file, kind, f" with yarn_log_multiplier {value}")
    found = {name: file.of_model(f"{SCALING}{key}") for key, name in _YARN.items()}
    return {
        "rope_type": "yarn",
        "factor": float(factor),
        "original_max_position_embeddings": int(context),
        **{name: float(value) for name, value in found.items() if value is not None},
    }


def _refuse(file: GgufFile, kind: Any, more: str = "") -> None:
    raise Unsupported(
        f"{file.path}: rope.scaling.type is {kind!r}{more}, which transformers does not take from "
        f"a {file.architecture} file"
    )


def _factors(file: GgufFile, name: str) -> Tensor:
    entry = file.entries.get(name)
    if entry is None or entry.format_name != "f32" or len(entry.shape) != 1:
        found = "missing" if entry is None else f"{entry.format_name} {list(entry.shape)}"
        raise CheckpointError(f"{file.path}: {name} is {found}, not a row of f32")
    return file.rows(name, 0, 1).view(torch.float32)[0]


def _longrope(file: GgufFile) -> dict[str, Any]:
    """Phi 3's: frequencies are divided by one list of numbers or the other."""
    context = file.of_model("rope.scaling.original_context_length")
    if not context:
        raise Unsupported(
            f"{file.path}: has {LONG}, and no field rope.scaling.original_context_length that says "
            "from where on it holds"
        )
    made: dict[str, Any] = {
        "rope_type": "longrope",
        "long_factor": _factors(file, LONG).tolist(),
        "short_factor": _factors(file, SHORT).tolist(),
        "original_max_position_embeddings": int(context),
    }
    if (value := file.of_model("rope.scaling.attn_factor")) is not None:
        made["attention_factor"] = float(value)
    return made


def _llama3(file: GgufFile, theta: Any, factors: Tensor) -> dict[str, Any]:
    """The rope_parameters of which ``factors`` [head_dim / 2] divide the frequencies."""
    factor = float(factors.max())
    steps = torch.arange(len(factors), dtype=torch.float64) / len(factors)
    wavelengths = 2 * math.pi * float(theta or 10000.0) ** steps
    low, high = _LLAMA3.values()
    smooth = (_LLAMA3_CONTEXT / wavelengths - low) / (high - low)
    expected = 1 / ((1 - smooth.clamp(0, 1)) / factor + smooth.clamp(0, 1))
    # The converter computes in float32: a frequency has a relative error of up to 2^-22, `smooth`
    # of high / (high - low) = 4 / 3 of that, and 1 / (1 / factor + ...) of up to `factor` times.
    if not torch.allclose(factors.double(), expected, rtol=factor * 2.0**-21, atol=0):
        raise Unsupported(
            f"{file.path}: {FACTORS} are not Llama 3's factors of rotary embeddings, the only ones "
            "that ladder can put into a configuration"
        )
    return {
        "rope_type": "llama3", "factor": round(factor, 4), **_LLAMA3,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }  # fmt: skip
