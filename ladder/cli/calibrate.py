# SPDX-License-Identifier: Apache-2.0
"""``ladder calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ladder.cli.output import Json, console, print_json, print_table, progress_console


def calibrate(
    device: Annotated[int, typer.Option(help="Index of the GPU.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A file to write. \\[default: in the user's cache]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a GPU, so that kernels that nobody has timed on it are chosen by its own numbers.

    Takes 10 to 20 seconds, in which the GPU should do nothing else. What was
    measured is kept for this machine and driver, is in use from the next process
    on, and changes which kernels are tried first, never a result. Kernels that
    ladder tune has timed stay. LADDER_CALIBRATION=off leaves it out, and
    LADDER_CALIBRATION=FILE takes another.

    Examples:

        ladder calibrate

        ladder calibrate --device 1 --out l4.json
    """
    from ladder._C import devices as native
    from ladder.cuda.calibrate import calibrate as measure

    with progress_console.status("") as status:
        made = measure(device, progress=status.update)
    path = str(out or "")
    native.write_calibration(device, path, list(made.numbers.items()), list(made.about.items()))
    path = path or native.calibration_path()
    machine, _, _, _, fields = native.calibration(device)
    rows = [number(name, unit, made.numbers.get(name), row) for name, unit, _, row in fields]
    if as_json:
        print_json(
            {"machine": machine, "file": path, "numbers": rows, "about": made.about,
             "unsteady": made.unsteady, "skipped": made.skipped}
        )  # fmt: skip
        return
    print_numbers(machine, rows)
    for name, spread in made.unsteady.items():
        console.print(
            f"{name} differs by {spread:.0%} from repeat to repeat: is something else running?"
        )
    for name, why in made.skipped.items():
        console.print(f"{name} was left out: {why}")
    console.print(f"written to {path}")


def number(name: str, unit: str, measured: float | None, row: float | None) -> dict[str, Any]:
    """A number of a calibration, as ``--json`` prints it; None for what is not known."""
    return {"what": name, "unit": unit, "measured": measured or None, "row": row or None}


def print_numbers(machine: str, rows: list[dict[str, Any]]) -> None:
    """A table of what was measured beside what the row of the device has."""

    def cell(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    print_table(
        machine,
        ("what", "measured", "row", "unit"),
        [(row["what"], cell(row["measured"]), cell(row["row"]), row["unit"]) for row in rows],
    )
