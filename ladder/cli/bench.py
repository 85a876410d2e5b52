# SPDX-License-Identifier: Apache-2.0
"""``ladder bench``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ladder.cli.output import Json, print_json, print_table


def bench(
    weight_type: Annotated[str, typer.Option("--type", help="Weight type.")] = "uint4",
    group: Annotated[int | None, typer.Option(help="Group size; -1 for all of K.")] = None,
    n: Annotated[int, typer.Option(help="out_features.")] = 4096,
    k: Annotated[int, typer.Option(help="in_features.")] = 4096,
    m: Annotated[list[int] | None, typer.Option(help="Tokens; may be repeated.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Of activations. \\[default: float16 on a GPU, float32 elsewhere]"),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ... or auto.")] = "auto",
    as_json: Json = False,
) -> None:
    """Time a packed Linear of one shape beside torch's dense one.

    Weights are random and rotate through more memory than the last cache holds;
    times are medians. On a GPU kernels are tuned first, times are those of CUDA
    graphs, without the host, and the table has the schedule of each kernel, or
    "torch" and why there is none.

    Examples:

        ladder bench --type uint4 --group 128

        ladder bench --type uint4 --device cuda --m 1 --m 8 --m 16 --dtype bfloat16

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
    title = f"{rows[0]['type']}, N={n} K={k}, {rows[0]['dtype']} activations on {rows[0]['device']}"
    columns = ["M", "ladder us", "dense us", "dense/ladder", "weight GB/s"]
    kernels = "kernel" in rows[0]
    digits = 2 if kernels else 1
    print_table(
        title,
        [*columns, "kernel"] if kernels else columns,
        [
            (
                row["m"],
                round(row["ladder_us"], digits),
                round(row["dense_us"], digits),
                round(row["dense_us"] / row["ladder_us"], 2),
                round(row["weight_gb_per_s"], 1),
                *([_kernel(row)] if kernels else []),
            )
            for row in rows
        ],
    )


def _kernel(row: dict[str, Any]) -> str:
    return f"{row['kernel']} ({row['reason']})" if row["reason"] else row["kernel"]
