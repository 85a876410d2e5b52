# SPDX-License-Identifier: Apache-2.0
"""``ladder bench``."""

from __future__ import annotations

from typing import Annotated

import typer

from ladder.cli.output import Json, print_json, print_table


def bench(
    weight_type: Annotated[str, typer.Option("--type", help="Weight type.")] = "uint4",
    group: Annotated[int | None, typer.Option(help="Group size; -1 for all of K.")] = None,
    n: Annotated[int, typer.Option(help="out_features.")] = 4096,
    k: Annotated[int, typer.Option(help="in_features.")] = 4096,
    m: Annotated[list[int] | None, typer.Option(help="Tokens; may be repeated.")] = None,
    dtype: Annotated[str, typer.Option(help="Dtype of the activations.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, ... or auto.")] = "auto",
    as_json: Json = False,
) -> None:
    """Time a packed Linear of one shape beside torch's dense one.

    Weights are random and rotate through more memory than the last cache holds; times are medians.

    Examples:

        ladder bench --type uint4 --group 128

        ladder bench --type float6_e3m2 --n 11008 --k 4096 --m 1 --m 16 --dtype bfloat16
    """
    from ladder.evaluate.measure import time_linear

    rows = time_linear(
        weight_type,
        group_size=group,
        n=n,
        k=k,
        tokens=m or [1, 4, 16, 64],
        dtype=dtype,
        device=device,
    )
    if as_json:
        print_json(rows)
        return
    title = f"{rows[0]['type']}, N={n} K={k}, {dtype} activations on {rows[0]['device']}"
    columns = ("M", "ladder us", "dense us", "dense/ladder", "weight GB/s")
    print_table(
        title,
        columns,
        [
            (
                row["m"],
                round(row["ladder_us"], 1),
                round(row["dense_us"], 1),
                round(row["dense_us"] / row["ladder_us"], 2),
                round(row["weight_gb_per_s"], 1),
            )
            for row in rows
        ],
    )
