# SPDX-License-Identifier: Apache-2.0
"""Weights trained for their type (:mod:`ladder.qat`) beside rounded and calibrated ones: a table of
benchmarks/type_quality.py."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

import ladder
from ladder.evaluate.perplexity import perplexity
from ladder.integrations.transformers import dense
from ladder.types import TType

#: Windows of a step, and the largest step of AdamW.
BATCH, RATE = 4, 3e-4


def trainings(
    model: nn.Module,
    tokens: Tensor,
    types: Sequence[TType],
    pages: Tensor,
    calibration: Tensor,
    *,
    steps: int,
    device: str,
) -> list[str]:
    """Markdown: a row for each type, of perplexities, and of the divergence from the predictions of
    the dense model on the windows that are measured, in nats a token: training on pages like these
    can lower the one without the other.

    Args:
        pages: windows that weights are trained on, for the predictions of the dense model.
        calibration: windows that codes are chosen by.
        steps: of :data:`BATCH` windows.
    """
    model = model.to(device)
    base = perplexity(model, tokens)
    lines = [
        f"Unquantised: {base:.4f}. Trained for {steps} steps of {BATCH} windows, drawn from "
        f"{len(pages)}, to predict what the dense model predicts (AdamW, {RATE:g}, falling as a "
        "cosine).",
        "",
        "| type | nearest | calibrated | trained | calibrated, then trained |",
        "|---|---:|---:|---:|---:|",
    ]

    def packed(start: nn.Module, pack: Callable[[nn.Module], object]) -> tuple[nn.Module, str]:
        made = copy.deepcopy(start)
        pack(made)
        found, moved = perplexity(made, tokens), divergence(made, model, tokens)
        return made, f"{found:.2f} ({found / base - 1:+.1%}), {moved:.3f}"

    for ttype in types:

        def rounded(made: nn.Module, how: Tensor | None = None, of: TType = ttype) -> None:
            ladder.convert(made, of, calibration=how)

        def learnt(made: nn.Module, of: TType = ttype) -> None:
            ladder.qat.prepare(made, of)
            train(made, model, pages, steps)
            ladder.qat.convert(made)

        _, nearest = packed(model, rounded)
        start, calibrated = packed(model, lambda made: rounded(made, calibration))
        _, trained = packed(model, learnt)
        _, both = packed(dense(start), learnt)
        lines.append(f"| `{ttype}` | {nearest} | {calibrated} | {trained} | {both} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def scales_learned(
    model: nn.Module,
    tokens: Tensor,
    types: Sequence[TType],
    pages: Tensor,
    *,
    steps: int,
    batch: int,
    device: str,
) -> list[str]:
    """Markdown: a row for each type, as :func:`trainings`, of scales that are found anew in each
    step and of such that are learned."""
    model = model.to(device)
    base = perplexity(model, tokens)
    lines = [
        f"Unquantised: {base:.4f}. Trained for {steps} steps of {batch} windows, drawn from "
        f"{len(pages)}, to predict what the dense model predicts (AdamW, {RATE:g} for weights and "
        "scales, falling as a cosine).",
        "",
        "| type | not trained | scales found anew | scales learned |",
        "|---|---:|---:|---:|",
    ]
    for ttype in types:
        cells = []
        for count, learned in ((0, False), (steps, False), (steps, True)):
            made = copy.deepcopy(model)
            ladder.qat.prepare(made, ttype, learned_scales=learned)
            if count:
                train(made, model, pages, count, batch)
            ladder.qat.convert(made)
            found, moved = perplexity(made, tokens), divergence(made, model, tokens)
            cells.append(f"{found:.2f} ({found / base - 1:+.1%}), {moved:.3f}")
        lines.append(f"| `{ttype}` | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def blocks_trained(
    model: nn.Module,
    tokens: Tensor,
    types: Sequence[TType],
    calibration: Tensor,
    *,
    steps: int,
    device: str,
) -> list[str]:
    """Markdown: a row for each type, as :func:`trainings`, of blocks that are trained one by one,
    for so many ``steps`` each."""
    model = model.to(device)
    base = perplexity(model, tokens)
    lines = [
        f"Unquantised: {base:.4f}. The seconds are of calibration and training.",
        "",
        "| type | calibrated | blocks trained | calibrated, s | blocks trained, s |",
        "|---|---:|---:|---:|---:|",
    ]
    for ttype in types:
        cells, seconds = [], []
        for each in (0, steps):
            made, start = copy.deepcopy(model), time.perf_counter()
            ladder.convert(made, ttype, calibration=calibration, train_blocks=each)
            seconds.append(f"{time.perf_counter() - start:.0f}")
            found, moved = perplexity(made, tokens), divergence(made, model, tokens)
            cells.append(f"{found:.2f} ({found / base - 1:+.1%}), {moved:.3f}")
        lines.append(f"| `{ttype}` | {' | '.join((*cells, *seconds))} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


@torch.no_grad()
def divergence(model: nn.Module, dense: nn.Module, tokens: Tensor) -> float:
    """The mean KL divergence of what ``model`` predicts from what ``dense`` does, in nats."""
    device = next(model.parameters()).device
    total = 0.0
    for window in tokens:
        ids = window[None].to(device)
        wanted, found = (each(ids).logits.log_softmax(-1) for each in (dense, model))
        total += float((wanted.exp() * (wanted - found)).sum(-1).mean())
    return total / len(tokens)


def train(
    model: nn.Module, teacher: nn.Module, pages: Tensor, steps: int, batch: int = BATCH
) -> None:
    """Move all weights of ``model`` towards the predictions of ``teacher``."""
    torch.manual_seed(0)
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rounds = -(-steps * batch // len(pages))
    order = torch.cat([torch.randperm(len(pages)) for _ in range(rounds)])
    for drawn in order[: steps * batch].view(steps, batch):
        ids = pages[drawn].to(device)
        with torch.no_grad():
            wanted = teacher(ids).logits.log_softmax(-1).flatten(0, 1)
        found = model(ids).logits.log_softmax(-1).flatten(0, 1)
        functional.kl_div(found, wanted, log_target=True, reduction="batchmean").backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
