# SPDX-License-Identifier: Apache-2.0
"""``ladder ppl``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ladder._version import install_command
from ladder.cli.output import Json, print_json, print_table, progress_bar


def ppl(
    model: Annotated[Path, typer.Argument(help="Folder of a model: ladder, GPTQ, AWQ or plain.")],
    tokens: Annotated[Path, typer.Argument(help="Token ids: .npy \\[chunks, length], or one row.")],
    chunk: Annotated[int, typer.Option(help="Tokens in one window.")] = 512,
    limit: Annotated[int | None, typer.Option(help="Use this many windows only.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ... or auto.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Dtype of the activations.")] = "float32",
    dequantize: Annotated[
        bool, typer.Option("--dequantize", help="Replace packed layers by dense ones first.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure perplexity: exp of the mean next-token loss over windows of tokens.

    Examples:

        ladder ppl build/demo/model examples/tiny-llama-gptq/val_tokens.npy

        ladder ppl MODEL tokens.npy --limit 20 --dequantize --json
    """
    import torch

    try:
        from transformers import AutoModelForCausalLM
    except ModuleNotFoundError as missing:
        hint = f"ladder ppl needs {missing.name}: {install_command('transformers')}"
        raise ImportError(hint) from None

    from ladder.errors import InvalidArgument
    from ladder.evaluate.measure import device_of
    from ladder.evaluate.perplexity import load_tokens, perplexity
    from ladder.integrations.transformers import dense, enable

    dtypes = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    if dtype not in dtypes:
        raise InvalidArgument(f'--dtype is "{dtype}", not one of {", ".join(dtypes)}')
    if not (model / "config.json").exists():
        raise InvalidArgument(f"{model} has no config.json, so it is no folder of a model")
    device = device_of(device)
    ids = load_tokens(tokens, chunk=chunk, limit=limit)
    with enable("gptq", "awq"):
        loaded = AutoModelForCausalLM.from_pretrained(str(model), dtype=dtypes[dtype]).to(device)
    if dequantize:
        dense(loaded)
    start = time.perf_counter()
    with progress_bar("perplexity", quiet=as_json) as progress:
        value = perplexity(loaded, ids, progress=progress)
    seconds = time.perf_counter() - start
    result = {
        "model": str(model),
        "perplexity": value,
        "windows": len(ids),
        "chunk": ids.shape[1],
        "device": device,
        "dtype": dtype,
        "seconds": round(seconds, 2),
    }
    if as_json:
        print_json(result)
    else:
        result["perplexity"] = f"{value:.4f}"
        print_table("Perplexity", list(result), [list(map(str, result.values()))])
