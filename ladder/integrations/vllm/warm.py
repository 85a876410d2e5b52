# SPDX-License-Identifier: Apache-2.0
"""Compiling and tuning kernels for the batches that an engine will run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ladder.cuda import image, kernels
from ladder.cuda.request import Request
from ladder.cuda.tune import compile_in_background, tune_all
from ladder.integrations.serving.loading import Room
from ladder.integrations.serving.stored import Folder
from ladder.integrations.vllm.options import options_of
from ladder.integrations.vllm.warm_experts import ExpertsWarmer
from ladder.nn.linear import Linear
from ladder.ops import activations
from ladder.ops.gating import Gating

_log = logging.getLogger("vllm.ladder")
#: Of an engine that captures no graphs.
_TOKENS = (1, 2, 4, 8, 16, 32)


class Warmer:
    """Compiles and tunes for one engine, each type and shape once.

    Args:
        tokens: numbers of tokens of the engine's CUDA graphs.
        most: tokens of the largest batch. Batches above the graphs' are prompts. Their kernels are
            compiled as well, so that no request waits for a compiler; they are first proposals,
            which nobody times.
        dtype: of activations.
        tune, budget, dependent_launch: as :func:`ladder.warmup`; the budget is for all layers.
        weights_only, fast_accum: see :func:`options_of`.
    """

    def __init__(
        self,
        tokens: tuple[int, ...],
        dtype: torch.dtype,
        tune: str = "fast",
        budget: float = 20.0,
        dependent_launch: bool = False,
        weights_only: bool = False,
        fast_accum: bool | None = None,
        most: int = 0,
    ) -> None:
        self.tokens, self.weights_only, self.most = tokens, weights_only, most
        self.fast_accum = fast_accum
        self.dtype, self.tune, self.left_s = dtype, tune, budget
        self.dependent_launch = dependent_launch
        self._asked: set[int] = set()
        self._done: set[int] = set()
        self.experts = ExpertsWarmer(dtype)
        self._later: list[tuple[Room, torch.device, bool, Callable[[], Gating | None]]] = []

    def choose_sums(self, folder: Folder) -> None:
        """Have layers of ``folder`` the sums that the engine was asked for, if it was."""
        if self.fast_accum is not None:
            folder.fast_accum = self.fast_accum

    @classmethod
    def of(cls, vllm_config: Any, dtype: torch.dtype) -> Warmer:
        """That of the engine: every layer of it has the same."""
        found: Warmer | None = getattr(vllm_config, "_ladder_warmer", None)
        if found is None:
            sizes = getattr(vllm_config.compilation_config, "cudagraph_capture_sizes", None)
            scheduler = getattr(vllm_config, "scheduler_config", None)
            most = getattr(scheduler, "max_num_batched_tokens", None) or 0
            options = options_of(vllm_config)
            del options["fuse_gated_mlp"]  # of GatedMLPs
            found = cls(tuple(sizes or _TOKENS), dtype, most=most, **options)
            object.__setattr__(vllm_config, "_ladder_warmer", found)
            folder = Path(str(getattr(vllm_config.model_config, "model", "")))
            if (folder / "plans.json").is_file():
                kernels.use_store(folder)
        return found

    def _prompts(self, activation_type: str | None) -> tuple[int, ...]:
        """Numbers of tokens above those of graphs, of which each kernel serves one."""
        out: list[int] = []
        largest = max(self.tokens)
        m = max(largest, kernels.interval(largest, activation_type or "")) + 1
        while m <= self.most and (top := kernels.interval(m, activation_type or "")) >= m:
            out.append(min(top, self.most))
            m = top + 1
        return tuple(out)

    def expect(
        self,
        room: Room,
        device: torch.device,
        *,
        rounds: bool = True,
        gating: Callable[[], Gating | None] | None = None,
    ) -> None:
        """Start to compile for a layer whose weights are not there yet. A wrong guess costs time
        of processors that would have waited for the disk. ``rounds`` as :func:`finish` has it.
        ``gating`` says what :func:`finish` will be given, once the module that holds the layer is
        whole: when a layer of another module is expected."""
        self._expect_those_before(room.prefix)
        if gating is None:
            self._expect(room, device, rounds, None)
        else:
            self._later.append((room, device, rounds, gating))

    def _expect_those_before(self, prefix: str) -> None:
        holder = prefix.rpartition(".")[0]
        waiting, self._later = self._later, []
        for each in waiting:
            room, device, rounds, gating = each
            if room.prefix.rpartition(".")[0] == holder:
                self._later.append(each)
            else:
                self._expect(room, device, rounds, gating())

    def _expect(
        self, room: Room, device: torch.device, rounds: bool, gating: Gating | None
    ) -> None:
        ttype = room.expected_type()
        rounding = {each.activation_type if rounds else None for each in room.modules}
        if not kernels.possible(device) or ttype is None or len(rounding) > 1:
            return
        (activation_type,) = rounding
        n, k = sum(rows.count for rows in room.rows), room.columns.count
        text, rounded, index = str(ttype), activation_type or "", device.index or 0
        if rounded and activations.gpu_objection(rounded, text, n, k, index):
            rounded = ""
        if kernels.objection(text, n, k, False, index, rounded):
            return
        number = image.open_weight(
            text, n, k,
            dependent_launch=self.dependent_launch, activation_type=rounded, gating=gating,
        )  # fmt: skip
        if number not in self._asked:
            self._asked.add(number)
            for tokens, mode in ((self.tokens, self.tune), (self._prompts(rounded), "off")):
                request = Request(
                    number, ttype, (n, k), device, self.dtype, tokens, rounded, gating is not None
                )
                compile_in_background([request], mode=mode)

    def __call__(self, module: Linear) -> None:
        """Of a layer that has its image."""
        self._later.clear()  # the model is whole, and no layer is made any more
        module.dependent_launch = self.dependent_launch
        request = module.kernel_request(self.dtype, self.tokens)
        prompts = module.kernel_request(self.dtype, self._prompts(module.activation_type))
        with torch.cuda.device(module.device):
            module.compile_static(self.dtype, (*request.m, *prompts.m))
        if request.weight in self._done:
            return
        self._done.add(request.weight)
        start = time.perf_counter()
        with torch.cuda.device(module.device):
            tuned = tune_all([request], mode=self.tune, budget_s=max(self.left_s, 0.0))
            further = tune_all([prompts], mode="off")[prompts] if prompts.m else {}
        self.left_s -= time.perf_counter() - start
        chosen = {**further, **tuned[request]}
        fast = [m for m, schedule in chosen.items() if schedule]
        dense = [str(m) for m, schedule in sorted(chosen.items()) if not schedule]
        origins = sorted({origin for origin in tuned.origin[request].values() if origin})
        _log.info(
            "ladder: %s [%d, %d] has kernels for %s tokens%s (%s, %.2f s)%s",
            request.ttype, *request.shape, f"1 to {max(fast)}" if fast else "no",
            f" of {request.activation_type}" if request.activation_type else "",
            ", ".join(origins), time.perf_counter() - start,
            f"; dequantised for {', '.join(dense)}" if dense else "",
        )  # fmt: skip
