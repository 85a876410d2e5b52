# SPDX-License-Identifier: Apache-2.0
"""The ``ladder`` command. One file per subcommand; heavy imports happen inside them."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ladder._version import __version__
from ladder.cli import (
    bench,
    bounds,
    calibrate,
    checkpoint,
    clean,
    convert,
    devices,
    explain,
    export,
    merge,
    perplexity,
    tune,
    types,
)

app = typer.Typer(
    name="ladder",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ladder {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print it and exit."
        ),
    ] = False,
) -> None:
    """Any number format, fast: repack, convert, inspect and measure low-bit checkpoints."""


app.command("repack")(checkpoint.repack)
app.command("convert")(convert.convert)
app.command("merge")(merge.merge)
app.command("export")(export.export)
app.command("info")(checkpoint.info)
app.command("types")(types.types)
app.command("ppl")(perplexity.ppl)
app.command("bench")(bench.bench)
app.command("tune")(tune.tune)
app.command("devices")(devices.devices)
app.command("calibrate")(calibrate.calibrate)
app.command("explain")(explain.explain)
app.command("clean")(clean.clean)
app.add_typer(bounds.app, name="bounds")


@contextmanager
def _unwinding_when_ended() -> Iterator[None]:
    """Have a termination raise, as Ctrl-C does, so that folders half written are removed."""

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    free = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        free = []
    for number in free:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in free:
            signal.signal(number, signal.SIG_DFL)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status.

    Errors that ladder or the system raise on purpose are one line on stderr. ``--debug``, anywhere
    on the line, shows the traceback instead.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        with _unwinding_when_ended():
            return app(arguments, prog_name="ladder", standalone_mode=True) or 0
    except (KeyboardInterrupt, BrokenPipeError):
        if debug:
            raise
        return 130
    except Exception as error:
        if debug:
            raise
        from ladder.errors import LadderError

        # The library raises Unsupported as NotImplementedError.
        meant = LadderError | OSError | ValueError | ImportError | NotImplementedError
        known = isinstance(error, meant)
        text = " ".join(str(error).split()) or type(error).__name__
        kind = "" if known else f"{type(error).__name__}: "
        print(f"error: {kind}{text}", file=sys.stderr)
        if not known:
            print("run again with --debug for the traceback", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
