# SPDX-License-Identifier: Apache-2.0
"""Ways to decode, and the time of a step of each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import StaticCache, StoppingCriteria

#: Arguments of ``generate``; "compile" is what transformers does by itself with a static cache on a
#: GPU: torch.compile(mode="reduce-overhead") of the decode step.
WAYS = {
    "eager": {},
    "static": {"cache_implementation": "static", "disable_compile": True},
    "compile": {"cache_implementation": "static"},
}


def prompt(model: nn.Module, batch: int, length: int) -> Tensor:
    """The same tokens each time."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(0, model.config.vocab_size, (batch, length), generator=generator)
    return drawn.to(model.device)


class _Clock(StoppingCriteria):
    """Never stops; notes when each step has ended, on the device."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu, self._marks = device.type == "cuda", []

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: object) -> Tensor:
        mark = torch.cuda.Event(enable_timing=True) if self._on_gpu else time.perf_counter()
        if self._on_gpu:
            mark.record()
        self._marks.append(mark)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def milliseconds(self) -> list[float]:
        if self._on_gpu:
            torch.cuda.synchronize()
            pairs = zip(self._marks, self._marks[1:], strict=False)
            return [before.elapsed_time(after) for before, after in pairs]
        return [1e3 * (b - a) for a, b in zip(self._marks, self._marks[1:], strict=False)]


def generated(model: nn.Module, way: str, batch: int, steps: int) -> tuple[Tensor, float]:
    """The greedy tokens [batch, steps] after a prompt of 32, and milliseconds a decode step: the
    median of the second half, when all that is compiled or captured has been."""
    given, clock = prompt(model, batch, 32), _Clock(model.device)
    tokens = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=steps,
        do_sample=False,
        stopping_criteria=[clock],
        **WAYS[way],
    )
    times = clock.milliseconds()
    return tokens[:, 32:], statistics.median(times[len(times) // 2 :])


class Step:
    """One decode step of a static cache, from a token [batch, 1] to the next, in place."""

    def __init__(self, model: nn.Module, batch: int, length: int) -> None:
        self._forward: Callable[..., object] = model.forward
        self._cache = StaticCache(config=model.config, max_cache_len=length)
        given = prompt(model, batch, 32)
        first = model(given, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self.token = first.logits[:, -1:].argmax(-1)

    def __call__(self) -> None:
        out = self._forward(self.token, past_key_values=self._cache, use_cache=True)
        self.token.copy_(out.logits[:, -1:].argmax(-1))

    def compile(self, **options: object) -> None:
        self._forward = torch.compile(self._forward, **options)

    def captured(self) -> Callable[[], None]:
        """Replays a CUDA graph of one step. Call the step itself before, which makes what a
        capture must not."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self()
        return graph.replay


def graphed(model: nn.Module, batch: int, steps: int) -> tuple[Tensor, float]:
    """As :func:`generated`, by a CUDA graph of the eager step."""
    step = Step(model, batch, 32 + steps)
    tokens, marks = [step.token.clone()], []
    for _ in range(3):
        step()
        tokens.append(step.token.clone())
    replay = step.captured()
    while len(tokens) < steps:
        replay()
        tokens.append(step.token.clone())
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in zip(marks, marks[1:], strict=False)]
    return torch.cat(tokens, 1), statistics.median(times)


def prefill(model: nn.Module, length: int, repeats: int = 5) -> float:
    """Milliseconds of a prompt of one sequence, caches included: the median."""
    given, times = prompt(model, 1, length), []
    for _ in range(repeats + 1):
        _wait(model)
        start = time.perf_counter()
        model(given, use_cache=True, logits_to_keep=1)
        _wait(model)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def _wait(model: nn.Module) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize()
