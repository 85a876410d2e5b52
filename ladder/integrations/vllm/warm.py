# SPDX-License-Identifier: Apache-2.0
"""Compiling and tuning kernels for the batches that an engine will run."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

from ladder.nn.linear import Linear
from ladder.nn.warmup import warmup

_log = logging.getLogger("vllm.ladder")
_HALVES = (torch.float16, torch.bfloat16)
#: Of an engine that captures no graphs.
_TOKENS = (1, 2, 4, 8, 16)


class Warmer:
    """Called with each layer's module; does the work once for each type and shape.

    Args:
        tokens: numbers of tokens of the engine's CUDA graphs.
        dtype: of activations.
        tune: time kernels that no store has a plan for; else take the scheduler's first.
    """

    def __init__(self, tokens: tuple[int, ...], dtype: torch.dtype, tune: bool) -> None:
        self.tokens, self.dtype, self.tune = tokens, dtype, tune
        self._done: set[int] = set()  # numbers, which name type, shape and order of columns

    @classmethod
    def of(cls, vllm_config: Any, dtype: torch.dtype) -> Warmer:
        """That of one engine: every layer of it has the same."""
        found = getattr(vllm_config, "_ladder_warmer", None)
        if found is None:
            sizes = getattr(vllm_config.compilation_config, "cudagraph_capture_sizes", None)
            extra = getattr(vllm_config, "additional_config", None) or {}
            options = extra.get("ladder", {}) if isinstance(extra, dict) else {}
            found = cls(tuple(sizes or _TOKENS), dtype, options.get("tune", "fast") != "off")
            object.__setattr__(vllm_config, "_ladder_warmer", found)
        return found

    def __call__(self, module: Linear) -> None:
        if module._weight_number in self._done:
            return
        self._done.add(module._weight_number)
        start = time.perf_counter()
        dtype = self.dtype if self.dtype in _HALVES else torch.float16
        done = warmup(module, self.tokens, dtype=dtype, tune=self.tune)
        schedules = next(iter(done.values()), {})
        fast = [m for m in self.tokens if schedules.get(m)]
        _log.info(
            "ladder: %s [%d, %d] has kernels for %s tokens of this engine's graphs (%.2f s)",
            module.weight_type, module.out_features, module.in_features,
            f"1 to {max(fast)}" if fast else "no",
            time.perf_counter() - start,
        )  # fmt: skip

