# SPDX-License-Identifier: Apache-2.0
"""``ladder tune``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ladder.cli.model import check_model
from ladder.cli.output import Json, progress_bar
from ladder.cli.tokens import above, ranges_of, tokens_of
from ladder.cli.tune_experts import (
    ExpertKind,
    expert_kinds_of,
    gating_of,
    of_token,
    print_experts,
)
from ladder.cli.tune_kinds import Kind, gated_kinds_of, kinds_of, print_kinds

if TYPE_CHECKING:
    import torch

    from ladder.checkpoints.packed import PackedExperts, PackedLayer


def tune(
    model: Annotated[Path, typer.Argument(help="Folder of a quantised model.")],
    m: Annotated[
        str, typer.Option("--m", help="Numbers of tokens at once: 1,8,16 or 1-256 or both.")
    ] = "1-16",
    dtype: Annotated[
        str | None,
        typer.Option(help="float16 or bfloat16. \\[default: the model's; float16 of float32]"),
    ] = None,
    device: Annotated[str, typer.Option(help="cuda, cuda:1, or by name: h200")] = "cuda",
    tuning: Annotated[
        str, typer.Option("--tune", help="fast: times 3 proposals a kernel; full: 8; off: none.")
    ] = "fast",
    budget: Annotated[float, typer.Option(help="Seconds for compiling and timing.")] = 20.0,
    cache: Annotated[
        Path | None, typer.Option(help="Keep kernels and plans there, not beside the model.")
    ] = None,
    merged: Annotated[
        bool, typer.Option(help="Also q, k and v in one product, and gate and up, gated and not.")
    ] = True,
    dependent_launch: Annotated[
        bool, typer.Option("--dependent-launch", help="Kernels for a chain: docs/cuda.md.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Choose the kernels of a model on this machine's GPU, and keep them beside it.

    plans.json (text, to ship with the model) and kernels/ (this user's) appear
    in the folder. Weights are not loaded: shapes are those of the files'
    headers, and kernels are timed on random weights; those of experts on
    choices that a router makes at random. What has a plan is not timed again;
    what the budget left out is timed by the next call. Of a range of tokens,
    the least and the most of each kernel are; of experts the most.

    Examples:

        ladder tune models/Llama-ladder --m 1-256

        ladder tune models/Llama-GPTQ --m 1,8,16 --device h200 --tune full

        ladder tune models/Llama-ladder --dtype bfloat16 --cache plans --json
    """
    from ladder.errors import InvalidArgument
    from ladder.nn.warmup import mode_of

    tokens_of(m)
    mode = mode_of(tuning)
    if not budget >= 0:
        raise InvalidArgument(f"--budget is {budget}, not a number of seconds")
    check_model(model, dtype)
    if dtype == "float32":
        raise InvalidArgument('--dtype is "float32", which no kernel reads: float16 or bfloat16')
    kept = cache or model
    if not os.access(kept if kept.exists() else kept.parent, os.W_OK):
        raise InvalidArgument(f"{kept} cannot be written: --cache DIR keeps the kernels elsewhere")
    import torch

    gpu = gpu_called(device)
    from ladder.checkpoints.packed import packed_layers
    from ladder.checkpoints.shards import read_json
    from ladder.cuda import kernels
    from ladder.cuda.tune import tune_all
    from ladder.cuda.tune_experts import tune_layers
    from ladder.ops import activations

    layers, experts = packed_layers(model)
    config = read_json(model / "config.json")
    chosen = dtype or _dtype_of(config)
    kernels.use_store(kept)
    how: Any = (config, gpu, getattr(torch, chosen), merged, dependent_launch)
    kinds, mixtures = _asked(layers, experts, m, *how)
    # Fewer tokens come as they are, whatever is said of sums: engines have the same kernels.
    if many := above(m, activations.MOST_TOKENS_AS_THEY_COME):
        of_engines = [each for layer in layers if (each := layer.in_engines())]
        more, _ = _asked(of_engines, [], many, *how)
        kinds += [kind for kind in more if kind.activation_type]
    if many := above(m, activations.MOST_EXPERT_TOKENS_AS_THEY_COME):
        experts_of_engines = [alike for layer in experts if (alike := layer.in_engines())]
        _, mixed = _asked([], experts_of_engines, many, *how)
        mixtures += [kind for kind in mixed if kind.activation_type]
    start = time.monotonic()
    with progress_bar("Tuning", as_json) as progress:
        asked = [kind.request for kind in kinds if kind.request]
        tuned = tune_all(asked, mode=mode, budget_s=budget, progress=progress)
    left = max(0.0, budget - (time.monotonic() - start))
    with progress_bar("Tuning experts", as_json) as progress:
        of_experts = [mixture.request for mixture in mixtures if mixture.request]
        tuned_experts = tune_layers(of_experts, mode=mode, budget_s=left, progress=progress)
    tuned.late += tuned_experts.late
    tuned.seconds = time.monotonic() - start
    found = [mixture.described(tuned_experts) for mixture in mixtures]
    print_kinds(model, kept, gpu, chosen, mode, kinds, tuned, found if as_json else None)
    if not as_json:
        print_experts(model, mixtures, tuned_experts)
    if tuned.late and not as_json:
        from ladder.cli.output import console

        console.print(f"{tuned.late} kernels were not timed: run it again, or with --budget")


def _asked(
    layers: Sequence[PackedLayer],
    experts: Sequence[PackedExperts],
    m: str,
    config: dict[str, Any],
    gpu: torch.device,
    dtype: torch.dtype,
    merged: bool,
    dependent_launch: bool,
) -> tuple[list[Kind], list[ExpertKind]]:
    """What is to be tuned for the numbers of tokens ``m``."""
    from ladder.checkpoints.packed import merged_layers

    gating, together = gating_of(config), merged_layers(layers) if merged else []
    kinds = [*kinds_of([*layers, *together], gpu), *gated_kinds_of(together, gating, gpu)]
    mixtures = expert_kinds_of(experts)
    for kind in kinds:
        kind.ask(gpu, dtype, tokens_of(m, kind.activation_type), dependent_launch)
    for mixture in mixtures:
        mixture.ask(gpu, dtype, ranges_of(m), of_token(config), gating)
    return kinds, mixtures


def gpu_called(name: str) -> torch.device:
    """The GPU of this machine with that index or name: "cuda", "cuda:1", or a device of
    `ladder devices`.

    Raises:
        Unsupported: there is no GPU. InvalidArgument: none of that index or name.
    """
    import torch

    from ladder.cli.devices import gpus
    from ladder.errors import InvalidArgument, Unsupported

    if not torch.cuda.is_available():
        raise Unsupported("ladder tune needs a CUDA device, and torch finds none on this machine")
    kind, _, index = name.partition(":")
    if kind == "cuda" and (index.isdigit() or name == "cuda"):
        ordinal = int(index) if index else torch.cuda.current_device()
        if ordinal < torch.cuda.device_count():
            return torch.device("cuda", ordinal)
    found = gpus()
    for ordinal, gpu in enumerate(found):
        row = gpu["row"]
        if name.lower() in (gpu["name"].lower(), row["name"].lower() if row else ""):
            return torch.device("cuda", ordinal)
    here = "; ".join(
        f"cuda:{ordinal} is {gpu['name']}" + (f" ({gpu['row']['name']})" if gpu["row"] else "")
        for ordinal, gpu in enumerate(found)
    )
    raise InvalidArgument(f'--device is "{name}", and this machine has others: {here}')


def _dtype_of(config: dict[str, Any]) -> str:
    config = {**config, **(config.get("text_config") or {})}
    given = config.get("dtype") or config.get("torch_dtype")
    return "bfloat16" if given == "bfloat16" else "float16"
