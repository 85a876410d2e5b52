# SPDX-License-Identifier: Apache-2.0
"""What a user asks of ladder for one engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ladder.cuda.request import check_mode
from ladder.errors import InvalidArgument

_OPTIONS = {
    "tune": "fast",
    "budget": 20.0,
    "dependent_launch": False,
    "weights_only": False,
    "fuse_gated_mlp": True,
    "fast_accum": None,
}


def options_of(vllm_config: Any) -> dict[str, Any]:
    """What ``additional_config={"ladder": {...}}`` of an engine says, with defaults: ``tune``,
    ``budget`` and ``dependent_launch`` as :func:`ladder.warmup` has them, for the whole model;
    ``weights_only``: whether activations are taken as they come, whatever the folder says;
    ``fuse_gated_mlp``: whether layers of gate and up give the product of both; and ``fast_accum``:
    whether sums of x of float8_e4m3 are left to tensor cores
    (:attr:`ladder.Linear.activation_type`); None is as vLLM's own kernels have it, which is yes,
    but of quant_method "ladder" as the folder says. vLLM makes them part of the key of its compile
    cache.

    Raises:
        InvalidArgument: another option, or another value.
    """
    extra = getattr(vllm_config, "additional_config", None)
    given = extra.get("ladder", {}) if isinstance(extra, Mapping) else {}
    for name in given:
        if name not in _OPTIONS:
            raise InvalidArgument(
                f'additional_config["ladder"] has "{name}", not one of {", ".join(_OPTIONS)}'
            )
    options = {**_OPTIONS, **given}
    check_mode(options["tune"])
    if type(options["budget"]) not in (int, float) or not options["budget"] >= 0:
        raise InvalidArgument(
            f'additional_config["ladder"]["budget"] is {options["budget"]!r}, not seconds'
        )
    for name in ("dependent_launch", "weights_only", "fuse_gated_mlp", "fast_accum"):
        if type(options[name]) is not bool and options[name] is not _OPTIONS[name]:
            raise InvalidArgument(
                f'additional_config["ladder"]["{name}"] is {options[name]!r}, not true or false'
            )
    return options
