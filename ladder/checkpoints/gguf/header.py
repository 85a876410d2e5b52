# SPDX-License-Identifier: Apache-2.0
"""What a GGUF file says of itself: its fields, and where its tensors lie.

A file is "GGUF", the version, the numbers of tensors and of fields, the fields (a name, a type, a
value), the tensors (name, sizes with the fastest first, type, offset), padding, then the bytes of
all tensors. Numbers are little-endian.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ladder.checkpoints.gguf.blocks import BLOCKS, FLOATS, OTHERS
from ladder.errors import CheckpointError, InvalidArgument, Unsupported

VERSIONS = (2, 3)
_MAGIC = b"GGUF"
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_MOST_SIZES = 4
_ALIGNMENT = "general.alignment"
#: Of a file that is one of several: how many, and which, from 0.
SPLIT_COUNT, SPLIT_NUMBER = "split.count", "split.no"
#: Bytes before the fields: magic, version, how many tensors and fields.
FIXED_BYTES = 24


@dataclass(frozen=True)
class Entry:
    """One tensor. ``begin`` and ``nbytes`` are its place in the file ``path``."""

    name: str
    shape: tuple[int, ...]  #: as torch has it, the columns last
    format: int  #: a key of BLOCKS, FLOATS or OTHERS
    begin: int
    nbytes: int
    path: Path

    @property
    def format_name(self) -> str:
        """As llama.cpp spells it."""
        if self.format in FLOATS:
            return {0: "f32", 1: "f16", 30: "bf16"}[self.format]
        return BLOCKS[self.format].name if self.format in BLOCKS else OTHERS[self.format]


@dataclass(frozen=True)
class GgufFile:
    """A file, or the files of one model, of which only the headers have been read."""

    path: Path  #: of several the first
    version: int
    fields: dict[str, Any]  #: numbers, texts and lists of numbers; lists of texts are left out
    entries: dict[str, Entry]
    alignment: int = 32  #: of tensors, in bytes
    count: int = 0  #: of fields, lists of texts included
    fields_end: int = FIXED_BYTES  #: the byte behind the last field
    parts: tuple[Path, ...] = ()  #: all files, where there are several

    @property
    def architecture(self) -> str:
        return str(self.fields["general.architecture"])

    def of_model(self, key: str) -> Any:
        """A field of the architecture, as "rope.freq_base"; None where there is none."""
        return self.fields.get(f"{self.architecture}.{key}")

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        """Rows [begin, end) of a tensor, of whose shape all but the columns make rows: as bytes
        [rows, bytes of a row]."""
        entry = self.entries[name]
        width = entry.nbytes // math.prod(entry.shape[:-1])
        wanted = (end - begin) * width
        try:
            with entry.path.open("rb") as file:
                file.seek(entry.begin + begin * width)
                data = bytearray(file.read(wanted))
        except OSError as error:
            raise CheckpointError(f"{entry.path}: {name}: {error.strerror}") from error
        if len(data) != wanted:
            raise CheckpointError(f"{entry.path}: {name} lacks its last {wanted - len(data)} bytes")
        return torch.frombuffer(data, dtype=torch.uint8).reshape(end - begin, width)


def read_file(path: str | os.PathLike[str]) -> GgufFile:
    """Read the header of one GGUF file; :func:`ladder.checkpoints.gguf.parts.read_model` reads the
    others of a model that is in several.

    Raises:
        InvalidArgument: there is no such file.
        CheckpointError: it is no GGUF file, or damaged.
        Unsupported: its version, or a format of its tensors, is unknown.
    """
    file = Path(path)
    if not file.is_file():
        raise InvalidArgument(f"{file} is not a file")
    try:
        with file.open("rb") as opened:
            if os.fstat(opened.fileno()).st_size < len(_MAGIC):
                raise CheckpointError(f"{file}: is empty or too short for a GGUF file")
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(file, data).read()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error


class _Reader:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size, self.at = path, data, len(data), 0
        self.within = "the header"  # of which the next bytes are, for messages

    def read(self) -> GgufFile:
        if (magic := self.take(4)) != _MAGIC:
            self.fail(f"begins with {magic!r}, not {_MAGIC!r}: no GGUF file")
        version = self.number("I")
        if version not in VERSIONS:
            kind = " (big-endian)" if not version & 0xFFFF else ""
            raise Unsupported(f"{self.path}: GGUF version {version}{kind}, ladder reads 2 and 3")
        tensors, count = self.number("Q"), self.number("Q")
        fields: dict[str, Any] = {}
        for _ in range(count):
            key = self.text()
            self.within = f"the field {key!r}"
            if (value := self.value(self.number("I"))) is not None:
                fields[key] = value
        fields_end = self.at
        # Of several files the first alone says what the model is.
        is_first = fields.get(SPLIT_NUMBER, 0) == 0
        if is_first and not isinstance(fields.get("general.architecture"), str):
            self.fail("has no field general.architecture")
        alignment = fields.get(_ALIGNMENT, 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            self.fail(f"{_ALIGNMENT} is {alignment!r}, not a power of two")
        told = []
        for number in range(tensors):
            self.within = f"what it says of tensor {number} of {tensors}"
            told.append(self.tensor())
        begin = -(-self.at // alignment) * alignment
        entries: dict[str, Entry] = {}
        for name, shape, number, offset in told:
            if name in entries:
                self.fail(f"has two tensors {name}")
            entries[name] = self.entry(name, shape, number, begin, offset)
        return GgufFile(self.path, version, fields, entries, alignment, count, fields_end)

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.text()
        self.within = f"what it says of {name}"
        count = self.number("I")
        if not 1 <= count <= _MOST_SIZES:
            self.fail(f"{name} has {count} sizes, not 1 to {_MOST_SIZES}")
        shape = tuple(reversed([self.number("Q") for _ in range(count)]))
        return name, shape, self.number("I"), self.number("Q")

    def entry(
        self, name: str, shape: tuple[int, ...], number: int, begin: int, offset: int
    ) -> Entry:
        if 0 in shape:
            self.fail(f"{name} has shape {list(shape)}, which has no element")
        if number in BLOCKS:
            elements, of_block = BLOCKS[number].elements, BLOCKS[number].nbytes
        elif number in FLOATS:
            elements, of_block = 1, FLOATS[number].itemsize
        elif number in OTHERS:  # known by name, refused where it is needed
            return Entry(name, shape, number, begin + offset, 0, self.path)
        else:
            raise Unsupported(f"{self.path}: {name} has the unknown format {number}")
        if shape[-1] % elements:
            what = BLOCKS[number].name
            self.fail(f"{name} is {what} of {shape[-1]} columns, not a multiple of {elements}")
        nbytes = math.prod(shape) // elements * of_block
        if (missing := begin + offset + nbytes - self.size) > 0:
            self.fail(f"{name} ends {missing} bytes after the file: is it whole?")
        return Entry(name, shape, number, begin + offset, nbytes, self.path)

    def value(self, kind: int) -> Any:
        """A value; None of a list of texts or of lists, which nothing here needs."""
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            self.fail(f"{self.within} has the unknown type {kind}")
        of, count = self.number("I"), self.number("Q")
        if of in _NUMBERS:
            form = f"<{self.fits(count, struct.calcsize('<' + _NUMBERS[of]))}{_NUMBERS[of]}"
            return list(struct.unpack(form, self.take(struct.calcsize(form))))
        skip: Callable[[], object] = self.skip_text if of == _TEXT else lambda: self.value(of)
        for _ in range(self.fits(count, 8)):
            skip()
        return None

    def fits(self, count: int, least: int) -> int:
        """``count`` things of ``least`` bytes or more, which the file must have."""
        if count * least > self.size - self.at:
            self.fail(f"ends within {self.within}, at byte {self.size}")
        return count

    def text(self) -> str:
        data = self.take(self.number("Q"))
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.fail(f"{self.within} is not UTF-8: {data[:32]!r}")

    def skip_text(self) -> None:
        count = self.number("Q")
        self.at += self.fits(count, 1)

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def take(self, count: int) -> bytes:
        begin, self.at = self.at, self.at + self.fits(count, 1)
        return self.data[begin : self.at]

    def fail(self, what: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: {what}")
