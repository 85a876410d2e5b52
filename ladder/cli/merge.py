# SPDX-License-Identifier: Apache-2.0
"""``ladder merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ladder.cli.checkpoint import Chunk, Data, Destination, Force, GroupSize, Symmetric, Windows
from ladder.cli.output import Json, console, print_json, progress_bar


def merge(
    base: Annotated[Path, typer.Argument(help="Folder of the model: dense, or a ladder folder.")],
    adapter: Annotated[Path, typer.Argument(help="Folder of an adapter that PEFT saved.")],
    dst: Destination,
    weight_type: Annotated[
        str | None,
        typer.Option(
            "--type", help="Type of the weights. \\[default: what BASE has; uint4 of a dense one]"
        ),
    ] = None,
    group: GroupSize = None,
    symmetric: Symmetric = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(help="BASE is dense: modules to leave, as `ladder convert`. Repeatable."),
    ] = None,
    head: Annotated[
        bool, typer.Option("--head", help="BASE is dense: quantise the output embedding, too.")
    ] = False,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="BASE is dense: quantise the input embedding, too.")
    ] = False,
    calibration: Data = None,
    windows: Windows = None,
    chunk: Chunk = None,
    device: Annotated[
        str, typer.Option(help="Where the model is merged and quantised: cpu, cuda, ...")
    ] = "cpu",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Merge an adapter of PEFT into a model, and quantise the sums: one ladder folder, which
    serves without the adapter.

    Examples:

        ladder merge models/Llama-uint4 adapters/mine out

        ladder merge models/Llama-uint4 adapters/mine out --calibration text.txt

        ladder merge models/Llama adapters/mine out --type nf4 --group 64
    """
    from ladder.checkpoints.source import require_folder
    from ladder.checkpoints.writer import check_destination
    from ladder.cli.calibration import windows_of
    from ladder.cli.model import transformers_for
    from ladder.errors import InvalidArgument
    from ladder.evaluate.measure import device_of

    for option, value in {"--windows": windows, "--chunk": chunk}.items():
        if calibration is None and value is not None:
            raise InvalidArgument(f"{option} is for --calibration, which is not given")
    require_folder(base)
    check_destination(dst, force=force)
    transformers_for("merge")
    try:
        from ladder.integrations.peft_folder import merge
    except ModuleNotFoundError as missing:
        raise ImportError(f"ladder merge needs {missing.name}: pip install peft") from None
    ids = None if calibration is None else windows_of(base, calibration, windows, chunk)
    with progress_bar("merge", quiet=as_json) as progress:
        report = merge(
            base,
            adapter,
            dst,
            weight_type,
            group_size=group,
            symmetric=symmetric,
            skip=tuple(skip) if skip else None,
            head=head,
            embeddings=embeddings,
            calibration=ids,
            device=device_of(device),
            force=force,
            progress=progress,
        )
    if as_json:
        print_json(report.to_dict())
        return
    for line in report.lines():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
