# SPDX-License-Identifier: Apache-2.0
"""``ladder types``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ladder.cli.output import Json, print_json, print_table

if TYPE_CHECKING:
    from ladder.types import TType


def types(
    name: Annotated[
        str | None, typer.Argument(help="A type to show in full, with the value of every code.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the formats that a weight can have, or show one.

    Examples:

        ladder types

        ladder types float6_e3m2

        ladder types "uint4,group=128,scale=float16,zero=midpoint" --json
    """
    from ladder.types import parse, type_names

    if name is not None:
        _show(parse(name), as_json)
        return
    rows = [_row(parse(each), each) for each in type_names()]
    if as_json:
        print_json(rows)
        return
    columns = ("type", "bits", "bits/weight", "least", "greatest", "block", "exact in")
    print_table(
        "Formats",
        columns,
        [
            (
                row["name"],
                row["bits"],
                f"{row['bits_per_weight']:g}",
                f"{row['min']:g}",
                f"{row['max']:g}",
                row["block"],
                row["exact_in"][0] if row["exact_in"] else "-",
            )
            for row in rows
        ],
    )


def _row(type: TType, name: str) -> dict[str, Any]:
    values = type.element.values
    finite = values[values.isfinite()]
    targets = [t for t in type.element.exact_targets if t in ("float16", "bfloat16", "float32")]
    return {
        "name": name,
        "element": type.element.name,
        "bits": type.bits,
        "bits_per_weight": type.bits_per_weight(4096, 4096) if type.scale else float(type.bits),
        "min": finite.min().item(),
        "max": finite.max().item(),
        "block": f"{type.rows}x{type.columns}" if type.columns else "any",
        "scale": type.scale,
        "exact_in": targets,
        "source": type.element.source,
    }


def _show(type: TType, as_json: bool) -> None:
    values = type.element.values.tolist()
    if as_json:
        print_json({**_row(type, str(type)), "zero": type.zero, "values": values})
        return
    row = _row(type, str(type))
    print_table(str(type), ("property", "value"), [(key, str(value)) for key, value in row.items()])
    width = -(-type.bits // 4)
    print_table(
        f"{len(values)} codes",
        ("code", "bits", "value"),
        [(f"0x{c:0{width}x}", f"{c:0{type.bits}b}", f"{v:.9g}") for c, v in enumerate(values)],
    )
