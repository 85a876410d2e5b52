# SPDX-License-Identifier: Apache-2.0
"""``ladder warmup``."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from ladder.cli.model import check_model, load_model
from ladder.cli.output import Json, print_json, print_table


def warmup(
    model: Annotated[Path, typer.Argument(help="Folder of a ladder, GPTQ or AWQ model.")],
    m: Annotated[str, typer.Option("--m", help="Numbers of tokens at once.")] = "1,2,4,8,16",
    dtype: Annotated[
        str | None,
        typer.Option(help="float16 or bfloat16. \\[default: the model's; float16 of float32]"),
    ] = None,
    device: Annotated[str, typer.Option(help="cuda, cuda:1, ...")] = "cuda",
    cache: Annotated[
        Path | None, typer.Option(help="Keep kernels and plans there, not beside the model.")
    ] = None,
    tune: Annotated[
        bool, typer.Option(help="Time the best schedules; else take the first proposal.")
    ] = True,
    dependent_launch: Annotated[
        bool, typer.Option("--dependent-launch", help="Kernels for a chain: docs/cuda.md.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compile and tune the kernels of a model on this machine's GPU, and keep them beside it.

    plans.json and kernels/ appear in the folder. A process that has loaded the
    model finds them by ladder.warmup(model, m=..., cache=FOLDER), which then
    neither compiles nor measures.

    Examples:

        ladder warmup models/Llama-ladder --m 1,8,16

        ladder warmup models/Llama-ladder --m 1 --dtype bfloat16 --dependent-launch --json
    """
    from ladder.errors import InvalidArgument, Unsupported

    tokens = _tokens(m)
    check_model(model, dtype)
    if dtype == "float32":
        raise InvalidArgument('--dtype is "float32", which no kernel reads: float16 or bfloat16')
    kept = cache or model
    if not os.access(kept if kept.exists() else kept.parent, os.W_OK):
        raise InvalidArgument(f"{kept} cannot be written: --cache DIR keeps the kernels elsewhere")
    import torch

    if not torch.cuda.is_available():
        raise Unsupported("ladder warmup needs a CUDA device, and torch finds none on this machine")
    from ladder.evaluate.measure import device_of
    from ladder.nn.linear import Linear
    from ladder.nn.warmup import warmup

    device = device_of(device)
    chosen = dtype or _dtype_of(model)
    loaded = load_model("warmup", model, chosen, device)
    layers = {name: each for name, each in loaded.named_modules() if isinstance(each, Linear)}
    if not layers:
        raise InvalidArgument(
            f"{model} has no packed layer: `ladder convert` makes a folder of such"
        )
    start = time.perf_counter()
    done = warmup(
        loaded,
        tokens,
        dtype=getattr(torch, chosen),
        tune=tune,
        dependent_launch=dependent_launch or None,
        cache=kept,
    )
    seconds = time.perf_counter() - start
    kernels = {name: done.get(name, dict.fromkeys(tokens, "")) for name in layers}
    if as_json:
        print_json(
            {
                "model": str(model),
                "cache": str(kept),
                "device": device,
                "dtype": chosen,
                "seconds": round(seconds, 2),
                "layers": kernels,
            }
        )
        return
    rows = Counter(
        (str(layer.weight_type), layer.out_features, layer.in_features, each, kernels[name][each])
        for name, layer in layers.items()
        for each in tokens
    )
    print_table(
        f"{model}: {len(layers)} layers, {chosen} on {device}, {seconds:.1f} s, kept in {kept}",
        ("type", "N", "K", "layers", "M", "kernel"),
        [(t, n, k, count, each, name or "torch") for (t, n, k, each, name), count in rows.items()],
    )


def _tokens(text: str) -> tuple[int, ...]:
    """ "1,8,16" -> (1, 8, 16)."""
    from ladder.errors import InvalidArgument

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) for part in parts):
        raise InvalidArgument(f'--m is "{text}", not numbers of tokens such as 1,8,16')
    return tuple(dict.fromkeys(map(int, parts)))


def _dtype_of(folder: Path) -> str:
    from ladder.checkpoints.shards import read_json

    config: dict[str, Any] = read_json(folder / "config.json")
    config = {**config, **(config.get("text_config") or {})}
    given = config.get("dtype") or config.get("torch_dtype")
    return "bfloat16" if given == "bfloat16" else "float16"
