# SPDX-License-Identifier: Apache-2.0
"""``ladder export``."""

from __future__ import annotations

from typing import Annotated

import typer

from ladder.cli.checkpoint import Destination, Force, Source, megabytes_of, print_report
from ladder.cli.output import Json, progress_bar


def export(
    src: Source,
    dst: Destination,
    form: Annotated[
        str,
        typer.Option("--format", help="What to write: compressed-tensors, gptq or mlx."),
    ] = "compressed-tensors",
    dense: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A module to decode: a name, or whole parts of names. Repeatable.",
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a ladder folder as one of another package, with the same weights, for programs that do
    not know ladder.

    Examples:

        ladder export models/Llama-uint4 models/Llama-W4A16

        ladder export models/Llama-uint4 models/Llama-gptq --format gptq --dense lm_head
    """
    from ladder.checkpoints.export import export

    with progress_bar("export", quiet=as_json) as progress:
        report = export(
            src, dst, form, dense=dense or (), force=force, progress=megabytes_of(progress)
        )
    print_report(report, as_json)
