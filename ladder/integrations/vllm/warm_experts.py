# SPDX-License-Identifier: Apache-2.0
"""Compiling the kernels of an engine's layers of experts."""

from __future__ import annotations

import logging
import threading
import time

import torch

from ladder.cuda import experts, image, kernels
from ladder.cuda.background import in_background
from ladder.errors import Unsupported
from ladder.integrations.serving.experts import ExpertsRoom
from ladder.integrations.serving.mixture import Mixture
from ladder.ops import activations
from ladder.ops.gating import Gating

_log = logging.getLogger("vllm.ladder")


class ExpertsWarmer:
    """For one engine, each type and shape once. Nothing is timed.

    Args:
        dtype: of activations.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._done: set[tuple[object, ...]] = set()
        self._under_way: dict[tuple[object, ...], threading.Thread] = {}

    def expect(
        self,
        room: ExpertsRoom,
        device: torch.device,
        gating: Gating,
        count: int,
        top_k: int,
        most: int,
    ) -> None:
        """Start to compile for a layer whose weights are not there yet, while they are loaded. A
        wrong guess costs time of processors alone.

        Args:
            count: experts of this rank.
            top_k, most: as :meth:`finish` has them.
        """
        expected, rounded, index = room.expected(), room.activation_type, device.index or 0
        possible = kernels.possible(device) and self.dtype in kernels.HALVES
        if not possible or not expected or count > experts.MOST_EXPERTS:
            return
        numbers: list[int] = []
        for ttype, n, k in expected:
            if kernels.objection(ttype, n, k, False, index):
                return
            gate = gating if not numbers and image.alternates(n) else None
            numbers.append(image.open_weight(ttype, n, k, gating=gate))
            if rounded and activations.gpu_objection(rounded, ttype, n, k, index):
                rounded = ""
        key = (*numbers, count, top_k, rounded)
        if key in self._under_way:
            return
        kinds = [numbers]
        if rounded:
            kinds.append([experts.number_for(number, rounded) for number in numbers])

        def compile() -> None:
            for first, second in kinds:
                rows = _rows(top_k, most)
                experts.compile_ahead((first, second), count, rows, self.dtype, index)

        self._under_way[key] = in_background(compile)

    def finish(self, mixture: Mixture, layer: torch.nn.Module, top_k: int, most: int) -> None:
        """Compile and load the kernels of a layer of experts that has its images: nothing can be
        compiled while a graph is captured.

        Args:
            top_k: experts of each token.
            most: tokens of the largest batch, up to which all kernels are compiled.
        Raises:
            Unsupported: some number of rows has no kernel.
        """
        first, second = mixture.gate_up.stack(layer), mixture.down.stack(layer)
        rounded = mixture.activation_type
        key = (first.number, second.number, first.experts, top_k, mixture.gating, rounded)
        if key in self._done:
            return
        self._done.add(key)
        start, device, items = time.perf_counter(), first.images.device, set()
        for thread in self._under_way.values():
            thread.join()
        with torch.cuda.device(device):
            kinds = [(first, second)]
            if rounded:
                kinds.append((experts.rounding(first, rounded), experts.rounding(second, rounded)))
            for stacks in kinds:
                numbers = stacks[0].number, stacks[1].number
                all_rows = _rows(top_k, most)
                experts.compile_ahead(numbers, first.experts, all_rows, self.dtype, device.index)
                for rows in all_rows:
                    items.add(experts.rows_of_item(*stacks, rows, self.dtype))
                    if 0 in items:
                        of = f" rounded to {rounded}" if stacks is not kinds[0] else ""
                        raise Unsupported(
                            f"experts of {first.type} {list(first.shape)} and {second.type} "
                            f"{list(second.shape)} have no kernel for {rows} rows of "
                            f"{self.dtype}{of}"
                        )
            # Once as the engine calls it, for the kernels that sort, round and add rows.
            for tokens in (1, activations.MOST_EXPERT_TOKENS_AS_THEY_COME + 1) if rounded else (1,):
                x = torch.zeros(tokens, first.shape[1], dtype=self.dtype, device=device)
                index = torch.zeros(tokens, top_k, dtype=torch.int32, device=device)
                mixture(layer, x, index, index.float())
            torch.cuda.synchronize(device)
        _log.info(
            "ladder: %d experts of %s %s and %s %s have kernels for items of %s rows (%.2f s)",
            first.experts, first.type, list(first.shape), second.type, list(second.shape),
            ", ".join(map(str, sorted(items))), time.perf_counter() - start,
        )  # fmt: skip


def _rows(top_k: int, most: int) -> list[int]:
    """Of batches of up to ``most`` tokens: kernels go by the next power of two."""
    return [top_k << i for i in range((2 * most - 1).bit_length())]
