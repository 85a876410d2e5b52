# SPDX-License-Identifier: Apache-2.0
"""What a killed process leaves beside the folder that it was writing, and who removes it.

A process holds a lock (flock) on the folders that it has under other names. The system drops the
lock with the process, however that ends; so a folder of such a name that nobody holds is a
leftover, on another machine of a shared disk too. Where a file system has no such locks nothing is
known, and nothing is removed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_log = logging.getLogger("ladder")


@contextmanager
def new_partial(destination: Path) -> Iterator[Path]:
    """Make an empty folder for what is to become ``destination``, and hold it. Raises OSError."""
    while True:
        folder = destination.parent / f".{destination.name}.partial-{secrets.token_hex(4)}"
        folder.mkdir()
        with ExitStack() as stack:
            # Another process may take it for a leftover before it is held.
            with suppress(FileNotFoundError):
                stack.enter_context(held(folder))
            if folder.exists():
                yield folder
                return


def replaced(partial: Path) -> Path:
    """The name of the old destination while that of :func:`new_partial` takes its place."""
    start, _, token = partial.name.rpartition(".partial-")
    return partial.parent / f"{start}.old-{token}"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold ``folder``, whatever it is called later, so that no other process removes it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # no locks on this file system
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_leftovers(destination: Path) -> None:
    """Remove what killed processes left of writing ``destination``. One that was killed between its
    two renames has taken ``destination`` away: that is put back."""
    for kind in ("old", "partial"):
        start = f".{destination.name}.{kind}-"
        for folder in sorted(destination.parent.glob(f".*.{kind}-*")):
            if not folder.name.startswith(start) or not folder.name[len(start) :].isalnum():
                continue
            with suppress(OSError):
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if kind == "old" and not os.path.lexists(destination):
                        folder.rename(destination)
                        _log.warning("%s is back, which a killed process had moved", destination)
                    else:
                        shutil.rmtree(folder)
                        _log.warning("removed %s, which a killed process had left", folder)
                finally:
                    os.close(descriptor)
