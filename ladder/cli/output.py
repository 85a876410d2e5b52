# SPDX-License-Identifier: Apache-2.0
"""What every subcommand prints with: tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

#: The option that every subcommand has.
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
#: Of commands that name a format by its parts: ladder/cli/spelling.py.
Group = Annotated[
    int | None,
    typer.Option(
        help="Weights of a row that share a scale; 0: no scales, -1: all. "
        "\\[default: 128 of formats of 8 bits and fewer]"
    ),
]
Scale = Annotated[
    str | None, typer.Option(help="Format of the scales, with --group. \\[default: float16]")
]

_stdout = Console()
#: A pipe has no width: wide enough that nothing wraps.
console = _stdout if _stdout.is_terminal else Console(width=200)
#: Progress goes to stderr, so that stdout stays a table or JSON.
progress_console = Console(stderr=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(_json(value), indent=1, default=str, allow_nan=False))


def _json(value: Any) -> Any:
    """``value``, of numbers that JSON has not their names: "nan", "inf", "-inf"."""
    if isinstance(value, Mapping):
        return {key: _json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table; columns whose cells are all numbers are aligned to the right."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    console.print(table)


def megabytes(count: int) -> str:
    """12345678 -> '12.3 MB'."""
    return f"{count / 1e6:,.1f} MB"


@contextmanager
def progress_bar(title: str, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A callback (name, done, total) that draws a bar on stderr while the context lives."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[name]}", style="dim"),
    )
    with Progress(
        *columns,
        console=progress_console,
        disable=quiet or not progress_console.is_terminal,
        transient=True,
    ) as progress:
        task = progress.add_task(title, total=None, name="")

        def update(name: str, done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, name=name)

        yield update
