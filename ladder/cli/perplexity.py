# SPDX-License-Identifier: Apache-2.0
"""``ladder ppl``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, cast

import typer

from ladder.cli.model import check_model, load_model, tokenizer_of, transformers_for
from ladder.cli.output import Json, print_json, print_table, progress_bar


def ppl(
    model: Annotated[Path, typer.Argument(help="Folder of a model, quantised or not.")],
    tokens: Annotated[
        Path | None, typer.Argument(help="Token ids: .npy \\[chunks, length], or one row.")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="A text in UTF-8 instead, for the tokenizer of the model's folder."),
    ] = None,
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

    Windows do not overlap. In each, every token but the first is predicted from
    those before it in the window. What is left at the end of a row, less than a
    window, is dropped. A text is one row, with the special tokens that its
    tokenizer adds.

    Examples:

        ladder ppl build/demo/model examples/tiny-llama-gptq/val_tokens.npy

        ladder ppl MODEL --text wikitext-2.txt --chunk 2048

        ladder ppl MODEL tokens.npy --limit 20 --dequantize --json
    """
    from ladder.errors import InvalidArgument

    if (tokens is None) == (text is None):
        given = "both are" if tokens else "neither is"
        raise InvalidArgument(f"give token ids or --text FILE; {given} given")
    transformers_for("ppl")
    check_model(model, dtype)

    from ladder.evaluate.measure import device_of
    from ladder.evaluate.perplexity import load_text, load_tokens, perplexity
    from ladder.integrations.transformers import dense

    device = device_of(device)
    if tokens is not None:
        ids = load_tokens(tokens, chunk=chunk, limit=limit)
    else:
        ids = load_text(cast(Path, text), tokenizer_of(model), chunk=chunk, limit=limit)
    loaded = load_model("ppl", model, dtype, device)
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
