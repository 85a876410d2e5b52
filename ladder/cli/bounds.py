# SPDX-License-Identifier: Apache-2.0
"""``ladder bounds``: the least data that a computation can move."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ladder.cli.output import Group, Json, Scale, console, print_json, print_table
from ladder.cli.spelling import spelled

app = typer.Typer(
    name="bounds",
    help="The least data that a matmul, convolution, chain or model can move.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

A = Annotated[str, typer.Option("--a", help="Format of the activations.")]
W = Annotated[str, typer.Option("--w", help="Format of the weights, such as uint4 or mxfp4.")]
O = Annotated[str, typer.Option("--o", help="Format of the output.")]  # noqa: E741
Accumulator = Annotated[
    str | None, typer.Option(help="Format of outputs in the buffer; else as stored.")
]
At = Annotated[list[str] | None, typer.Option(help="A buffer, such as 50MiB. Repeatable.")]
Measured = Annotated[
    list[str] | None,
    typer.Option(help="Traffic measured with the buffer of --at, in order. Repeatable."),
]
Plot = Annotated[
    list[Path] | None, typer.Option(help="Write a picture: .svg, .png or .pdf. Repeatable.")
]
OnDevice = Annotated[str | None, typer.Option("--device", help="Mark the memories of this GPU.")]
Factors = Annotated[str, typer.Option(help="Tile sizes: integers, or divisors as in the paper.")]
Space = Annotated[str, typer.Option(help="Buffer use: streaming, or uniform as in the paper.")]


@app.command()
def gemm(
    m: int,
    n: int,
    k: int,
    a: A = "float16",
    w: W = "float16",
    o: O = "float16",
    group: Group = None,
    scale: Scale = None,
    accumulator: Accumulator = None,
    at: At = None,
    measured: Measured = None,
    plot: Plot = None,
    device: OnDevice = None,
    factors: Factors = "integers",
    space: Space = "streaming",
    as_json: Json = False,
) -> None:
    """One matmul, c[M, N] = a[M, K] w[N, K].

    Examples:

        ladder bounds gemm 4096 4096 4096 --a float16 --w uint4 --group 128 --at 50MiB
        --measured 411MiB --plot slope.svg
    """
    from ladder import bounds

    widths = _widths(a, w, o, group, scale, accumulator)
    einsum = bounds.matmul(m, n, k, **widths)
    title = f"matmul M={m} N={n} K={k}, {widths['a']} x {widths['w']}"
    _report(einsum, title, at, measured, plot, device, factors, space, as_json)


@app.command()
def bmm(
    heads: int,
    m: int,
    n: int,
    k: int,
    groups: Annotated[int, typer.Option(help="Heads that have a w of their own; 0: all.")] = 0,
    a: A = "float16",
    w: W = "float16",
    o: O = "float16",
    group: Group = None,
    scale: Scale = None,
    accumulator: Accumulator = None,
    at: At = None,
    measured: Measured = None,
    plot: Plot = None,
    device: OnDevice = None,
    factors: Factors = "integers",
    space: Space = "streaming",
    as_json: Json = False,
) -> None:
    """Matmuls side by side; with --groups, several share a w (grouped-query attention).

    Examples:

        ladder bounds bmm 32 2048 2048 128 --groups 8 --device h200
    """
    from ladder import bounds

    widths = _widths(a, w, o, group, scale, accumulator)
    if groups:
        einsum = bounds.grouped_matmul(heads, groups, m, n, k, **widths)
    else:
        einsum = bounds.batched_matmul(heads, m, n, k, **widths)
    shared = f", {groups} groups" if groups else ""
    title = f"{heads} matmuls M={m} N={n} K={k}{shared}, {widths['a']} x {widths['w']}"
    _report(einsum, title, at, measured, plot, device, factors, space, as_json)


@app.command()
def conv(
    in_channels: Annotated[int, typer.Option("--in", help="Input channels.")],
    out_channels: Annotated[int, typer.Option("--out", help="Output channels.")],
    size: Annotated[str, typer.Option(help="Of the output: 56 or 56x56; 1D: x128.")],
    kernel: Annotated[str, typer.Option(help="3 or 3x3; 1D: x3.")] = "1",
    stride: int = 1,
    dilation: int = 1,
    batch: int = 1,
    a: A = "float16",
    w: W = "float16",
    o: O = "float16",
    accumulator: Accumulator = None,
    at: At = None,
    measured: Measured = None,
    plot: Plot = None,
    device: OnDevice = None,
    factors: Factors = "divisors",
    space: Space = "streaming",
    as_json: Json = False,
) -> None:
    """A convolution; windows that overlap keep what they share.

    Examples:

        ladder bounds conv --in 64 --out 64 --size 56 --kernel 3 --at 256KiB
    """
    from ladder import bounds
    from ladder.errors import InvalidArgument

    height, width, two = _plane(size)
    kernel_height, kernel_width, kernel_two = _plane(kernel)
    if two != kernel_two and kernel != "1":
        raise InvalidArgument(f"size {size} and kernel {kernel} differ in dimensions")
    common: dict[str, Any] = {
        "in_channels": in_channels, "out_channels": out_channels, "width": width,
        "kernel_width": kernel_width, "stride": stride, "dilation": dilation, "batch": batch,
        **_widths(a, w, o, 0, None, accumulator),
    }  # fmt: skip
    if two:
        einsum = bounds.conv2d(height=height, kernel_height=kernel_height, **common)
    else:
        einsum = bounds.conv1d(**common)
    title = f"convolution {in_channels} to {out_channels} channels, {size}, kernel {kernel}"
    if stride > 1 or dilation > 1:
        title += f", stride {stride}, dilation {dilation}"
    _report(einsum, title, at, measured, plot, device, factors, space, as_json)


@app.command()
def chain(
    file: Annotated[Path, typer.Argument(help="YAML with layers; see docs/bounds.md.")],
    segment: Annotated[
        bool, typer.Option("--segment", help="Cut the chain where that moves least.")
    ] = False,
    accounting: Annotated[
        str, typer.Option(help="Buffer space: sound, or paper, which leaves tiles out.")
    ] = "sound",
    at: At = None,
    plot: Plot = None,
    device: OnDevice = None,
    as_json: Json = False,
) -> None:
    """Matmuls that feed each other: what fusing them saves.

    Examples:

        ladder bounds chain mlp.yaml --segment --at 50MiB --plot mlp.svg
    """
    from ladder.bounds import report
    from ladder.bounds.chains import read_chain

    result = report.chain_report(
        read_chain(file), segment=segment, accounting=accounting, at=at, device=device
    )
    report.write_plots(result.panels, plot, title=f"chain {file.stem}")
    if as_json:
        print_json(result.summary)
        return
    print_table(f"chain {file.stem}", result.columns, result.rows)
    _print_lines(result.lines)


@app.command()
def model(
    folder: Annotated[Path, typer.Argument(help="A folder with a Hugging Face config.json.")],
    m: Annotated[int, typer.Option("--m", help="Tokens at once.")] = 16,
    context: Annotated[int, typer.Option(help="Keys that attention reads.")] = 2048,
    w: Annotated[
        str | None, typer.Option("--w", help="Format of the weights; else as the folder has them.")
    ] = None,
    group: Group = None,
    scale: Scale = None,
    device: Annotated[str, typer.Option(help="GPU whose memories and rates count.")] = "h200",
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Every distinct matmul of a model: least traffic and time on a device. Weights of a
    quantised folder have the types of its tensors.

    Examples:

        ladder bounds model ./Llama-ladder --m 1 --device h200

        ladder bounds model ./Llama-3.1-8B --m 16 --w uint4 --group 128 --plot model.svg
    """
    from ladder.bounds import report
    from ladder.bounds.models import read_model
    from ladder.errors import InvalidArgument

    for option, given in (("--group", group), ("--scale", scale)):
        if w is None and given is not None:
            raise InvalidArgument(
                f"{option} is {given}, but without --w weights are as the folder has them"
            )
    known = read_model(folder, weight=spelled(w, group, scale) if w else None)
    result = report.model_report(known, m=m, context=context, device=device)
    report.write_plots(result.panels, plot, title=result.title)
    if as_json:
        print_json(result.summary)
        return
    print_table(result.title, result.columns, result.rows)
    _print_lines(result.lines)


def _report(
    einsum: Any,
    title: str,
    at: Any,
    measured: Any,
    plot: Any,
    device: str | None,
    factors: str,
    space: str,
    as_json: bool,
) -> None:
    from ladder.bounds import report

    result = report.einsum_report(
        einsum, title, at=at, measured=measured, device=device, factors=factors, space=space
    )
    report.write_plots(result.panels, plot)
    if as_json:
        print_json(result.summary)
        return
    print_table(title, result.columns, result.rows)
    _print_lines(result.lines)


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False)


def _widths(
    a: str, w: str, o: str, group: int | None, scale: str | None, accumulator: str | None
) -> dict[str, Any]:
    return {"a": a, "w": spelled(w, group, scale), "c": o, "accumulator": accumulator}


def _plane(text: str) -> tuple[int, int, bool]:
    """``"56x28"`` -> (56, 28, True); ``"56"`` is a square; ``"x128"`` has one dimension."""
    height, by, width = text.partition("x")
    if not all(part.isdecimal() for part in (height, width) if part) or not (height or width):
        from ladder.errors import InvalidArgument

        raise InvalidArgument(f"{text!r} is not a size such as 56, 56x28 or x128")
    if by and not height:
        return 1, int(width), False
    return int(height), int(width or height), True
