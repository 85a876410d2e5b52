# SPDX-License-Identifier: Apache-2.0
"""``ladder explain``: every value between a tType and a kernel."""

from __future__ import annotations

from typing import Annotated

import typer

from ladder.cli.output import Group, Json, Scale, console, print_json
from ladder.cli.spelling import spelled


def _pair(option: str, text: str) -> tuple[int, int]:
    """ "3x5" as (3, 5)."""
    from ladder.errors import InvalidArgument

    parts = text.split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InvalidArgument(f'{option} is "{text}", not two sizes, such as 3x3')
    return int(parts[0]), int(parts[1])


def explain(
    m: Annotated[
        int, typer.Option("--m", help="Tokens: the most that the kernel serves; images of --conv.")
    ],
    n: Annotated[int, typer.Option("--n", help="Out features.")],
    k: Annotated[int, typer.Option("--k", help="In features; of a convolution channels.")],
    weight: Annotated[str, typer.Option(help="A format, such as uint4, mxfp4, or a whole tType.")],
    group: Group = None,
    scale: Scale = None,
    zero: Annotated[
        str | None, typer.Option(help="Kind of zero point; else midpoint for unsigned integers.")
    ] = None,
    activation: Annotated[str, typer.Option(help="float16 or bfloat16.")] = "float16",
    device: Annotated[str, typer.Option(help="Its name; it need not be there.")] = "h200",
    candidates: Annotated[
        int, typer.Option(min=0, help="Kept schedules to print: those that tuning would measure.")
    ] = 8,
    everything: Annotated[
        bool, typer.Option("--all", help="Print all candidates, and why each was dropped.")
    ] = False,
    dependent_launch: Annotated[
        bool,
        typer.Option(
            "--dependent-launch", help="For a chain of layers: weights before the one before ends."
        ),
    ] = False,
    activation_type: Annotated[
        str,
        typer.Option(
            help="What activations are rounded to: int8, float8_e4m3 or float8_e4m3,fast_accum."
        ),
    ] = "",
    residual: Annotated[
        bool, typer.Option("--residual", help="Added to y before it is rounded.")
    ] = False,
    codes_of_y: Annotated[
        str,
        typer.Option(help="y is codes by a static scale: int8, float8_e4m3; of rounded x."),
    ] = "",
    batch: Annotated[
        int, typer.Option(min=1, help="Products side by side, each of m tokens and its own weight.")
    ] = 1,
    conv: Annotated[
        str, typer.Option(help="A convolution with windows of that size, such as 3x3.")
    ] = "",
    image: Annotated[str, typer.Option(help="Size of its images, such as 56x56.")] = "",
    stride: Annotated[int, typer.Option(min=1, help="Of its windows.")] = 1,
    padding: Annotated[int, typer.Option(min=0, help="Of its images, on each side.")] = 0,
    dilation: Annotated[int, typer.Option(min=1, help="Of its windows.")] = 1,
    source: Annotated[bool, typer.Option("--source", help="Print the emitted text too.")] = False,
    as_json: Json = False,
) -> None:
    """Compile a linear layer for a device that need not be there, and print every step.

    Examples:

        ladder explain --m 16 --n 4096 --k 4096 --weight uint4 --group 128 --device h200

        ladder explain --m 1 --n 8192 --k 8192 --weight mxfp4 --device b200 --all --source

        ladder explain --m 8 --n 128 --k 64 --weight uint4 --conv 3x3 --image 56x56 --padding 1
    """
    from ladder._C import explain as native
    from ladder.cuda.windows import Axis, Windows
    from ladder.errors import InvalidArgument

    most = 2**31 - 1  # of what kernels count by 32 bits
    for option, given in (("--m", m), ("--n", n), ("--k", k)):
        if not 1 <= given <= most:
            raise InvalidArgument(f"{option} is {given}, not from 1 to {most}")
    if codes_of_y and not activation_type:
        raise InvalidArgument(
            f'--codes-of-y is "{codes_of_y}", but without --activation-type x comes as numbers, '
            "whose products no layer makes codes of"
        )
    ttype = spelled(weight, group, scale, zero)
    windows = ""
    if conv or image:
        taps, sizes = _pair("--conv", conv), _pair("--image", image)
        axes = [Axis(s, t, stride, padding, dilation) for s, t in zip(sizes, taps, strict=True)]
        windows = Windows(axes[0], axes[1], k).spelled
        m, k = m * axes[0].positions * axes[1].positions, k * taps[0] * taps[1]
    else:
        of_windows = (
            ("--stride", stride, 1),
            ("--padding", padding, 0),
            ("--dilation", dilation, 1),
        )
        for option, given, usual in of_windows:
            if given != usual:
                raise InvalidArgument(f"{option} is {given}, but without --conv there is no window")
    sections = native(
        m, n, k, ttype, activation, device, candidates, everything, dependent_launch,
        activation_type, batch, windows, residual, codes_of_y,
    )  # fmt: skip
    if not source:
        sections = [section for section in sections if section[0] != "source"]
    if as_json:
        print_json(dict(sections))
        return
    for title, text in sections:
        console.print(f"[bold]== {title} ==[/bold]")
        # The text is what tests compare: no markup, no wrapping.
        console.print(text.rstrip("\n"), highlight=False, markup=False, soft_wrap=True)
        console.print()
