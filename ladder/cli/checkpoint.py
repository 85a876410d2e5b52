# SPDX-License-Identifier: Apache-2.0
"""``ladder repack``, ``ladder convert`` and ``ladder info``."""

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
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Turn a GPTQ, AWQ, FP8, MXFP4 (gpt-oss), ModelOpt, compressed-tensors, bitsandbytes,
    torchao, HQQ, MLX, AutoRound, Quark, BitNet, Gemma or GGUF checkpoint into a ladder one,
    value by value.

    Examples:

        ladder repack models/Llama-GPTQ models/Llama-ladder

        ladder repack models/Llama-AWQ out --force --json

        ladder repack models/llama-Q4_K_M.gguf out
    """
    from ladder.checkpoints.repack import repack

    with progress_bar("repack", quiet=as_json) as progress:
        report = repack(
            src,
            dst,
            force=force,
            progress=_bytes_to_mb(progress),
            weights_only=weights_only,
            float16_scales=float16_scales,
        )
    _print_report(report, as_json)


def convert(
    src: Source,
    dst: Destination,
    weight_type: Annotated[
        str, typer.Option("--type", help='Type of the weights: "uint4", "nf4", "mxfp4", ...')
    ] = "uint4",
    formats: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of formats of your own, for --type: "
            '{"thirds": {"bits": 1, "values": \\[-0.3, 0.3]}}.'
        ),
    ] = None,
    group: Annotated[
        int | None, typer.Option(help="Elements that share a scale; -1: all of K. \\[default: 128]")
    ] = None,
    symmetric: Annotated[
        bool | None, typer.Option(help="Unsigned integers: fix the zero point at the middle.")
    ] = None,
    method: Annotated[str, typer.Option(help="nearest, or search for the best scale.")] = "search",
    activations: Annotated[
        str | None,
        typer.Option(
            help="int8, or on GPUs float8_e4m3 and float8_e4m3,fast_accum: x is rounded to 8 bits. "
            "\\[default: as it comes]"
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            help="Modules to leave: a name, or whole parts of names. Repeatable. "
            "\\[default: the output embedding]"
        ),
    ] = None,
    convolutions: Annotated[
        bool, typer.Option("--convolutions", help="Quantise convolutions (nn.Conv2d), too.")
    ] = False,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Of a pipeline of diffusers: a model to quantise. Repeatable. "
            "\\[default: transformer, unet]"
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="SRC is a ladder folder, of `ladder repack` say: quantise its packed weights "
            "anew, which rounds them twice.",
        ),
    ] = False,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Text in UTF-8, or token ids (.npy): codes are chosen by what layers are given "
            "for it, of any type (docs/calibration.md)."
        ),
    ] = None,
    windows: Annotated[
        int | None, typer.Option(help="--calibration: use this many windows. \\[default: 128]")
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            help="--calibration: tokens in one window. \[default: 2048, or the model's most]"
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="--calibration: where the model runs: cpu, cuda, ... \\[default: a GPU if any]"
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Quantise a floating-point checkpoint, each weight to its nearest code or by calibration
    data, and say what stays dense.

    Examples:

        ladder convert models/Llama out --type uint4 --group 128

        ladder convert models/Llama out --type mxfp4 --skip lm_head --skip model.layers.0

        ladder convert models/ResNet out --type int8 --convolutions

        ladder convert models/FLUX out --part transformer --part text_encoder_2

        ladder convert models/Llama out --type thirds --formats thirds.json

        ladder convert models/Llama-FP8-ladder out --type uint4 --again

        ladder convert models/Llama out --type uint3 --calibration wikitext-2.txt
    """
    from ladder.checkpoints.convert import convert
    from ladder.checkpoints.folder import define_from
    from ladder.checkpoints.source import require_folder
    from ladder.checkpoints.writer import check_destination
    from ladder.cli.calibration import calibration_of
    from ladder.errors import InvalidArgument

    if formats is not None:
        define_from(formats)
    loaded = None
    given = {"--windows": windows, "--chunk": chunk, "--device": device}
    if calibration is None and (unused := [n for n, value in given.items() if value is not None]):
        raise InvalidArgument(f"{unused[0]} is for --calibration, which is not given")
    if calibration is not None:
        require_folder(src, or_pipeline=True)  # before a model is loaded
        check_destination(dst, force=force)
        loaded = calibration_of(src, calibration, windows, chunk, device)
    with progress_bar("convert", quiet=as_json) as progress:
        report = convert(
            src,
            dst,
            weight_type,
            group_size=group,
            symmetric=symmetric,
            method=method,
            activation_type=activations,
            skip=tuple(skip) if skip else None,
            convolutions=convolutions,
            parts=tuple(part) if part else None,
            again=again,
            calibration=loaded,
            force=force,
            progress=progress,
        )
    _print_report(report, as_json)


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
        + _convolutions(summary["modules"])
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


def _convolutions(modules: list[dict[str, Any]]) -> str:
    """How many of the modules are such."""
    count = sum("filters" in module for module in modules)
    return f", {count} convolutions" if count else ""


def _rounded(modules: list[dict[str, Any]]) -> str:
    """What activations are rounded to: of how many modules, where not of all."""
    modules = [module for module in modules if "filters" not in module]
    counts = Counter(m["activation_type"] for m in modules if m["activation_type"])
    if len(counts) == 1 and counts.total() == len(modules):
        return f", activations {next(iter(counts))}"
    said = (f"{name} of {count} modules" for name, count in counts.items())
    return ", activations " + ", ".join(said) if counts else ""


def _named(module: dict[str, Any]) -> str:
    """A stack of experts says how many weights it has, a convolution the size of its filters."""
    if "filters" in module:
        return f"{module['name']} (filters of {'x'.join(map(str, module['filters'][1:]))})"
    return module["name"] + (f" ({module['experts']} experts)" if "experts" in module else "")


def _bytes_to_mb(progress: Progress) -> Progress:
    """repack counts bytes; the bar shows MB."""
    return lambda name, done, total: progress(name, done // 10**6, max(1, total // 10**6))


def _print_report(report: Report, as_json: bool) -> None:
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
    for note in report.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    if report.conversion is not None:
        for line in report.conversion.lines():
            console.print(line, highlight=False, markup=False, soft_wrap=True)
