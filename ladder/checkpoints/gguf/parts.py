# SPDX-License-Identifier: Apache-2.0
"""A model in several GGUF files, as ``llama-gguf-split`` and the hub have large ones.

Each file says how many there are and which it is; its name says the same, counted from 1:
``model-00002-of-00003.gguf``. The first has the fields of the model, perhaps no tensor; the others
have tensors and no fields of their own.
"""

from __future__ import annotations

import os
import re
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ladder.checkpoints.gguf.header import (
    FIXED_BYTES,
    SPLIT_COUNT,
    SPLIT_NUMBER,
    GgufFile,
    read_file,
)
from ladder.errors import CheckpointError

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_TENSORS = "split.tensors.count"


def read_model(path: str | os.PathLike[str]) -> GgufFile:
    """Read the header of a GGUF file, and those of all its parts where it is one of several,
    whichever is named.

    Raises:
        CheckpointError: a part is missing, is another than its name says, or has a tensor of
            another; and what :func:`read_file` raises.
    """
    file = read_file(path)
    count = file.fields.get(SPLIT_COUNT, 0)
    if not isinstance(count, int) or count < 2:
        return file
    matched = _NAME.fullmatch(file.path.name)
    number = file.fields.get(SPLIT_NUMBER)
    if matched is None or (int(matched[2]), int(matched[3])) != (_counted(number), count):
        raise CheckpointError(
            f"{file.path}: says that it is part {_counted(number)} of {count}, and is not named "
            f"...-{_counted(number):05}-of-{count:05}.gguf, so the other parts cannot be found"
        )
    paths = [
        file.path.with_name(f"{matched[1]}-{number + 1:05}-of-{count:05}.gguf")
        for number in range(count)
    ]
    if missing := [part for part in paths if not part.is_file()]:
        names = ", ".join(part.name for part in missing[:5]) + (" ..." if missing[5:] else "")
        raise CheckpointError(f"{file.path}: is one of {count} parts, of which {names} is missing")
    files = [read_file(part) for part in paths]
    for number, part in enumerate(files):
        said = part.fields.get(SPLIT_NUMBER), part.fields.get(SPLIT_COUNT)
        if said != (number, count):
            raise CheckpointError(
                f"{part.path}: says that it is part {_counted(said[0])} of {said[1]}"
            )
    first = files[0]
    entries = dict(first.entries)
    for part in files[1:]:
        for name, entry in part.entries.items():
            if name in entries:
                raise CheckpointError(f"{part.path}: has {name}, as {entries[name].path} does")
            entries[name] = entry
    if (told := first.fields.get(_TENSORS, len(entries))) != len(entries):
        raise CheckpointError(
            f"{first.path}: says that its {count} parts have {told} tensors, and they have "
            f"{len(entries)}"
        )
    return replace(first, entries=entries, parts=tuple(paths))


def _counted(number: object) -> int:
    """A part's number as names have it, from 1; 0 for what is no number."""
    return number + 1 if isinstance(number, int) else 0


@contextmanager
def described_in_one(file: GgufFile) -> Iterator[Path]:
    """A file that has the fields and the names of the tensors of the whole model, for readers that
    know nothing of parts: ``file`` itself, or a small temporary one, whose tensors are no more than
    their names."""
    if not file.parts:
        yield file.path
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        path.write_bytes(_names_alone(file))
        yield path


def _names_alone(file: GgufFile) -> bytes:
    """``file`` as if each of its tensors were one float32."""
    with file.path.open("rb") as opened:
        fixed = bytearray(opened.read(FIXED_BYTES))
        fields = opened.read(file.fields_end - FIXED_BYTES)
    struct.pack_into("<Q", fixed, 8, len(file.entries))
    told = bytearray()
    for number, name in enumerate(file.entries):
        text = name.encode()
        told += struct.pack("<Q", len(text)) + text
        told += struct.pack("<IQIQ", 1, 1, 0, number * file.alignment)
    header = bytes(fixed) + fields + told
    padding = -len(header) % file.alignment
    return header + bytes(padding + file.alignment * len(file.entries))
