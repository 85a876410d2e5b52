# SPDX-License-Identifier: Apache-2.0
"""``ladder repack`` and ``ladder info``, and what commands that write a folder print."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ladder.cli.output import Json, console, megabytes, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from ladder.checkpoints import Report
    from ladder.nn.report import Progress

Source = Annotated[Path, typer.Argument(help="Folder of the model to read.")]
Quantised = Annotated[Path, typer.Argument(help="Folder, or GGUF file, of the model to read.")]
Destination = Annotated[Path, typer.Argument(help="Folder to write; must not exist.")]
#: Of commands that quantise to a type that may be a name alone.
GroupSize = Annotated[
    int | None, typer.Option(help="Elements that share a scale; -1: all of K. \\[default: 128]")
]
Symmetric = Annotated[
    bool | None, typer.Option(help="Unsigned integers: fix the zero point at the middle.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Text in UTF-8, or token ids (.npy): codes are chosen by what layers are given for "
        "it, of any type (docs/calibration.md)."
    ),
]
Windows = Annotated[
    int | None, typer.Option(help="--calibration: use this many windows. \\[default: 128]")
]
Chunk = Annotated[
    int | None,
    typer.Option(
        help="--calibration: tokens in one window. \\[default: 2048, or the model's most]"
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace DST if it exists.")]


def repack(
    src: Quantised,
    dst: Destination,
    weights_only: Annotated[
        bool,
        typer.Option("--weights-only", help="Take activations as they come, whatever SRC says."),
    ] = False,
    float16_scales: Annotated[
        bool,
        typer.Option(
            "--float16-scales",
            help="GGUF: round scales that only float32 holds, and say how far weights move.",
        ),
    ] = False,
    embeddings: Annotated[
        bool,
        typer.Option("--embeddings", help="Keep a quantised input embedding packed, too."),
    ] = False,
    head: Annotated[
        bool,
        typer.Option("--head", help="Pack an output embedding that is tied to a quantised one."),
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Turn a GPTQ, AWQ, FP8, MXFP4 (gpt-oss), ModelOpt, compressed-tensors, bitsandbytes,
    torchao, HQQ, MLX, AutoRound, Quark, BitNet, Gemma or GGUF checkpoint into a ladder one,
    value by value.

    Examples:

        ladder repack models/Llama-GPTQ models/Llama-ladder

        ladder repack models/Llama-AWQ out --force --json

        ladder repack models/llama-Q4_K_M.gguf out --embeddings --head
    """
    from ladder.checkpoints.repack import repack

    with progress_bar("repack", quiet=as_json) as progress:
        report = repack(
            src,
            dst,
            force=force,
            progress=megabytes_of(progress),
            weights_only=weights_only,
            float16_scales=float16_scales,
            embeddings=embeddings,
            head=head,
        )
    print_report(report, as_json)


def info(
    path: Annotated[Path, typer.Argument(help="Folder of a model, quantised or not.")],
    modules: Annotated[bool, typer.Option("--modules", help="List every module.")] = False,
    as_json: Json = False,
) -> None:
    """Say how a checkpoint is stored, from its headers alone.

    Examples:

        ladder info models/Llama-ladder

        ladder info models/Llama-GPTQ --modules --json
    """
    from ladder.checkpoints.info import describe

    summary = describe(path)
    if as_json:
        print_json(summary)
        return
    rows = [
        (
            row["type"],
            row["modules"],
            f"{row['weights'] / 1e6:,.2f} M",
            megabytes(row["bytes"]),
            f"{row['bits_per_weight']:.3f}",
        )
        for row in summary["types"]
    ]
    print_table(
        f"{path}: {summary['quant_method']}, {megabytes(summary['bytes'])} of tensors"
        + _others(summary["modules"])
        + _rounded(summary["modules"]),
        ("type", "modules", "weights", "size", "bits/weight"),
        rows,
    )
    if modules:
        print_table(
            "Modules",
            ("module", "N", "K", "type", "activations", "act-order"),
            [
                (_named(m), m["n"], m["k"], m["type"], m["activation_type"] or "as they come",
                 "yes" if m["act_order"] else "no")
                for m in summary["modules"]
            ],
        )  # fmt: skip


def _others(modules: list[dict[str, Any]]) -> str:
    """How many of the modules are convolutions and embeddings."""
    kinds = {"convolutions": "filters", "embeddings": "embedding"}
    counts = {what: sum(key in module for module in modules) for what, key in kinds.items()}
    return "".join(f", {count} {what}" for what, count in counts.items() if count)


def _rounded(modules: list[dict[str, Any]]) -> str:
    """What activations are rounded to: of how many modules, where not of all."""
    from ladder.checkpoints.info import multiplies

    modules = [module for module in modules if multiplies(module)]
    counts = Counter(m["activation_type"] for m in modules if m["activation_type"])
    if len(counts) == 1 and counts.total() == len(modules):
        return f", activations {next(iter(counts))}"
    said = (f"{name} of {count} modules" for name, count in counts.items())
    return ", activations " + ", ".join(said) if counts else ""


def _named(module: dict[str, Any]) -> str:
    """A stack of experts says how many weights it has, a convolution the size of its filters, an
    embedding that it is one."""
    if "filters" in module:
        return f"{module['name']} (filters of {'x'.join(map(str, module['filters'][1:]))})"
    if "embedding" in module:
        return f"{module['name']} (embedding)"
    return module["name"] + (f" ({module['experts']} experts)" if "experts" in module else "")


def megabytes_of(progress: Progress) -> Progress:
    """Who writes folders counts bytes; the bar shows MB."""
    return lambda name, done, total: progress(name, done // 10**6, max(1, total // 10**6))


def print_report(report: Report, as_json: bool) -> None:
    """What writing a folder did, as tables or as JSON."""
    if as_json:
        print_json(report.to_dict())
        return
    rows = [
        (text, row.modules, f"{row.weights / 1e6:,.2f} M", megabytes(row.bytes))
        for text, row in report.types.items()
    ]
    print_table(
        f"{report.destination}: {report.modules} modules in {report.seconds:.1f} s, "
        f"{megabytes(report.bytes_before)} to {megabytes(report.bytes_after)}",
        ("type", "modules", "weights", "size"),
        rows,
    )
    if report.chosen is not None:
        columns = ("modules", "type", "bits/weight", "cost")
        print_table("Types for the bits that are allowed", columns, report.chosen.rows())
        for line in report.chosen.summary():
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    for note in report.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    if report.conversion is not None:
        for line in report.conversion.lines():
            console.print(line, highlight=False, markup=False, soft_wrap=True)
