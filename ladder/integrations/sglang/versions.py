# SPDX-License-Identifier: Apache-2.0
"""Where SGLang's releases differ, from 0.5.16 to 0.5.23, and where they leave a plugin no place."""

from __future__ import annotations

import importlib
from typing import Any

from ladder.checkpoints.folder import QUANT_METHOD


def choices() -> Any:
    """The module that lists what ``--quantization`` may be."""
    try:
        return importlib.import_module("sglang.srt.arg_groups.choices")
    except ModuleNotFoundError:
        return importlib.import_module("sglang.srt.server_args")


def place_of(layer: Any) -> tuple[int, int]:
    """The rank of a linear layer, and of how many."""
    try:
        from sglang.srt.distributed.utils import get_group_rank_size
    except ImportError:
        return layer.tp_rank, layer.tp_size
    rank, ranks = get_group_rank_size(layer.tp_group)
    return rank, ranks


def is_dummy() -> bool:
    """Nothing is loaded: weights are random numbers, for timing."""
    server_args = importlib.import_module("sglang.srt.runtime_context").get_server_args()
    return server_args.load_format == "dummy"


def keep_mixtral(original: Any, model_config: Any) -> Any:
    """SGLang's ``get_model_architecture``, which gives a Mixtral whose method it does not name a
    model without FusedMoE, where stacks of experts have no place: with ladder it keeps its own."""
    architectures = getattr(model_config.hf_config, "architectures", None) or []
    asked = model_config.quantization
    if asked != QUANT_METHOD or "MixtralForCausalLM" not in architectures:
        return original(model_config)
    model_config.quantization = "compressed-tensors"  # a name of its list; nothing else reads it
    try:
        return original(model_config)
    finally:
        model_config.quantization = asked
