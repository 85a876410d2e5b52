# SPDX-License-Identifier: Apache-2.0
"""Writing a model folder so that it is either whole or not there."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ladder.checkpoints import leftovers
from ladder.checkpoints.header import DTYPE_BITS
from ladder.errors import CheckpointError, InvalidArgument, LadderError

#: Folders that belong to download tools, not to the model.
NOT_CARRIED = (".git", ".cache")

#: Of one write: macOS refuses 2 GiB and more (EINVAL of write(2) there).
MOST_BYTES = 1 << 30


class DestinationError(LadderError, OSError):
    """The destination cannot be written: full, read-only, or gone."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the enclosed code into a DestinationError that names ``path``."""
    try:
        yield
    except DestinationError:
        raise
    except OSError as error:
        raise DestinationError(f"{path}: cannot be written: {error.strerror}") from error


@contextmanager
def new_folder(destination: Path, *, force: bool) -> Iterator[Path]:
    """Give a temporary folder beside ``destination``, which takes that name if all goes well.

    On any exception the temporary folder is removed and ``destination`` is as it was; what a killed
    process leaves, the next one removes (:mod:`ladder.checkpoints.leftovers`).

    Raises:
        InvalidArgument: ``destination`` exists and is not an empty folder, and ``force`` is false;
            or it is something that ``force`` must not delete.
        DestinationError: it cannot be created.
    """
    check_destination(destination, force=force)
    parent = destination.parent
    with writing(destination):
        made = [p for p in (parent, *parent.parents) if not p.exists()]
    try:
        with writing(destination):
            parent.mkdir(parents=True, exist_ok=True)
            leftovers.remove_leftovers(destination)
        check_destination(destination, force=force)  # a leftover may have been the folder itself
        with ExitStack() as held:
            with writing(destination):
                temporary = held.enter_context(leftovers.new_partial(destination))
                held.callback(shutil.rmtree, temporary, ignore_errors=True)
            try:
                yield temporary
            except DestinationError as error:
                # Nobody has asked for the temporary folder, which is gone when this is read.
                told = str(error).replace(str(temporary), str(destination))
                raise DestinationError(told) from error.__cause__
            with writing(destination):
                _sync(temporary)
            check_destination(destination, force=force)  # another process may have been quicker
            old = leftovers.replaced(temporary)
            with writing(destination):
                if force and destination.exists():
                    held.enter_context(leftovers.held(destination))
                    destination.rename(old)
                try:
                    # The system refuses a name that another process gave to its folder since.
                    temporary.rename(destination)
                except OSError:
                    if old.exists():
                        old.rename(destination)
                    check_destination(destination, force=force)
                    raise
            _sync(parent)
            shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def check_destination(destination: Path, *, force: bool) -> None:
    """Raise as :func:`new_folder` would, without touching anything."""
    with writing(destination):
        if not os.path.lexists(destination):
            return
        if destination.is_symlink():
            raise InvalidArgument(f"{destination} is a link: name the folder that is to be written")
        if not destination.is_dir():
            raise InvalidArgument(f"{destination} exists and is not a folder")
        if not force and any(destination.iterdir()):
            raise InvalidArgument(f"{destination} exists; pass force (--force) to replace it")
        here = destination.resolve()
        if is_one_of(here, (Path.cwd(), *Path.cwd().parents, Path.home())) or here.is_mount():
            raise InvalidArgument(f"{destination} is the current or home folder or above it")


def is_one_of(path: Path, others: Iterable[Path]) -> bool:
    """Whether ``path`` exists and is one of these, however spelt: on macOS case is ignored."""
    return os.path.exists(path) and any(os.path.exists(o) and path.samefile(o) for o in others)


def _flush(descriptor: int) -> None:
    """Put a file on disk; by ``fsync`` alone macOS leaves it in the drive's cache (fsync(2))."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        with suppress(OSError):  # not on this file system
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def _sync(folder: Path) -> None:
    """Put a folder's names on disk where its file system can; their files are there already."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            _flush(descriptor)
        finally:
            os.close(descriptor)


def require_space(folder: Path, needed: int) -> None:
    """Raise DestinationError when the disk of ``folder`` has less than ``needed`` bytes left."""
    with writing(folder):
        free = shutil.disk_usage(folder).free
    if free < needed:
        raise DestinationError(f"{folder}: needs {needed} bytes, the disk has {free} left")


class ShardWriter:
    """A safetensors file whose tensors are known beforehand and filled in any order.

    Space for all of it is taken at once, so a full disk shows before the work.
    Wide dtypes come first, which aligns every tensor to its element.

    Args:
        path: of the file, which must not exist.
        tensors: dtype ("I32", ...) and shape of each tensor.
    Raises:
        DestinationError: here and in every method: the file cannot be written.
    """

    def __init__(self, path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        self.path = path
        self._left: dict[str, int] = {}
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        self._begin: dict[str, int] = {}
        at = 0
        for name in sorted(tensors, key=lambda n: -DTYPE_BITS[tensors[n][0]]):
            dtype, shape = tensors[name]
            nbytes = math.prod(shape) * DTYPE_BITS[dtype] // 8
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
            self._begin[name], self._left[name] = at, nbytes
            at += nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._data = 8 + len(text)
        self.nbytes = self._data + at
        with writing(path):
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115, closed by __exit__
            try:
                reserve(self._file.fileno(), self.nbytes)
                self._write(len(text).to_bytes(8, "little") + text, 0)
            except BaseException:
                self._file.close()
                raise

    def write(self, name: str, data: memoryview, offset: int = 0) -> None:
        """Write ``data`` at byte ``offset`` of a tensor."""
        self._left[name] -= data.nbytes
        with writing(self.path):
            self._write(data, self._data + self._begin[name] + offset)

    def _write(self, data: memoryview | bytes, at: int) -> None:
        view = memoryview(data).cast("B")
        while view:
            done = os.pwrite(self._file.fileno(), view[:MOST_BYTES], at)
            view, at = view[done:], at + done

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        with writing(self.path):
            if kind is None:
                _flush(self._file.fileno())
            self._file.close()
        if kind is None and (short := [name for name, left in self._left.items() if left]):
            raise LadderError(f"{self.path}: {short[0]} was not written whole, a bug in ladder")


def reserve(descriptor: int, nbytes: int) -> None:
    """Take room on the disk for a file, where its file system can. Raises OSError."""
    try:
        if hasattr(os, "posix_fallocate"):  # macOS has none
            os.posix_fallocate(descriptor, 0, nbytes)
            return
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
    os.ftruncate(descriptor, nbytes)


def carried_files(folder: Path, leave: frozenset[str]) -> list[Path]:
    """Return the files under ``folder``, relative to it, without the names in ``leave`` at its top.

    Links are followed, as in the cache of the Hugging Face hub, whose folders are all links.

    Raises:
        CheckpointError: one is not a regular file, or a link leads nowhere.
    """
    found: list[Path] = []
    seen: set[str] = set()
    for top, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(top)
        folders[:] = [] if real in seen else sorted(set(folders) - set(NOT_CARRIED))
        names = [] if real in seen else sorted(names)
        seen.add(real)
        for path in (Path(top, name) for name in names):
            relative = path.relative_to(folder)
            if relative.as_posix() in leave:
                continue
            try:
                regular = stat.S_ISREG(path.stat().st_mode)
            except OSError as error:
                raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
            if not regular:
                raise CheckpointError(f"{path}: is not a regular file")
            found.append(relative)
    return found


def carry(source: Path, target: Path, files: list[Path]) -> int:
    """Copy ``files`` from folder to folder. Returns the bytes copied."""
    copied = 0
    for file in files:
        try:
            with writing(target / file):
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source / file, target / file)
                copied += (target / file).stat().st_size
        except DestinationError as error:
            if getattr(error.__cause__, "filename", None) == str(source / file):
                raise CheckpointError(f"{source / file}: cannot be read: {error}") from error
            raise
    return copied


def write_json(path: Path, fields: Mapping[str, Any]) -> None:
    with writing(path):
        text = json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            _flush(file.fileno())
