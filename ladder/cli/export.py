# SPDX-License-Identifier: Apache-2.0
"""``ladder export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ladder.cli.checkpoint import Force, Source, megabytes_of, print_report
from ladder.cli.output import Json, progress_bar


def export(
    src: Source,
    dst: Annotated[Path, typer.Argument(help="Folder, or GGUF file, to write; must not exist.")],
    form: Annotated[
        str,
        typer.Option("--format", help="What to write: compressed-tensors, gptq, mlx or gguf."),
    ] = "compressed-tensors",
    dense: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A module to decode: a name, or whole parts of names. Repeatable.",
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            help="gguf: any GGUF file of the same model, of llama.cpp's convert_hf_to_gguf.py: its "
            "fields, tokenizer and names of tensors."
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a ladder folder as one of another package, or as a GGUF file of llama.cpp, with the
    same weights, for programs that do not know ladder.

    Examples:

        ladder export models/Llama-uint4 models/Llama-W4A16

        ladder export models/Llama-uint4 models/Llama-gptq --format gptq --dense lm_head

        ladder export models/Llama-uint4 Llama-Q4_0.gguf --format gguf --like Llama-F16.gguf
    """
    from ladder.checkpoints.export import export

    with progress_bar("export", quiet=as_json) as progress:
        report = export(
            src,
            dst,
            form,
            dense=dense or (),
            like=like,
            force=force,
            progress=megabytes_of(progress),
        )
    print_report(report, as_json)
