# SPDX-License-Identifier: Apache-2.0
"""``ladder clean``."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from ladder.cli.output import Json, print_json


def clean(
    everything: Annotated[
        bool, typer.Option("--all", help="Remove all kernels and plans of the cache.")
    ] = False,
    older_than: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS", min=0, help="Remove kernels that were not used for so many days, too."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make room in the user's cache of compiled kernels (LADDER_CACHE).

    Without options it only brings the cache under its limit of 1 GiB and removes what processes
    left that died. Kernels that are removed are compiled again when they are asked for; folders
    beside models are never touched.

    Examples:

        ladder clean --older-than 30

        ladder clean --all
    """
    from ladder.cuda.kernels import clean_cache

    done = clean_cache(older_than_days=older_than, everything=everything)
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    typer.echo(
        f"{done.folder}: removed {done.removed_kernels} kernels, {done.removed_bytes} bytes; "
        f"{done.kept_kernels} kernels, {done.kept_bytes} bytes are left"
    )
