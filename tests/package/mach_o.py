# SPDX-License-Identifier: Apache-2.0
"""What a library or program of macOS for 64-bit ARM says of itself.

Sources: Apple's <mach-o/loader.h> and <mach-o/nlist.h>, and XNU's osfmk/kern/cs_blobs.h for the
signature, whose numbers are big-endian.
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MAGIC, ARM64 = 0xFEEDFACF, 0x0100000C
ID, NEEDS, NEEDS_WEAKLY, RPATH = 0x0D, 0x0C, 0x80000018, 0x8000001C
SYMBOLS, SIGNATURE, BUILD_VERSION = 0x02, 0x1D, 0x32
MACOS = 1
#: Instead of a library's number: whatever the process has loaded.
ANY_LIBRARY = 254


@dataclass
class MachO:
    """A file of one processor."""

    data: bytes
    name: str = ""  #: by which others need it
    needs: list[str] = field(default_factory=list)
    rpaths: list[str] = field(default_factory=list)
    oldest: tuple[int, int] = (0, 0)  #: macOS
    #: By symbol: the library that has it ("": any) and whether it may lack it.
    takes: dict[str, tuple[str, bool]] = field(default_factory=dict)
    gives: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path) -> "MachO":
        """Raises ValueError where the file is none, or of another processor or system."""
        data = path.read_bytes()
        if struct.unpack_from("<2I", data) != (MAGIC, ARM64):
            raise ValueError(f"{path.name} is not for macOS on arm64")
        self = cls(data)
        for kind, at in self._commands():
            if kind in (ID, NEEDS, NEEDS_WEAKLY, RPATH):
                text = self._text(at + struct.unpack_from("<I", data, at + 8)[0])
                if kind == ID:
                    self.name = text
                else:
                    (self.rpaths if kind == RPATH else self.needs).append(text)
            elif kind == BUILD_VERSION:
                system, version = struct.unpack_from("<2I", data, at + 8)
                if system != MACOS:
                    raise ValueError(f"{path.name} is for Apple's system {system}, not macOS")
                self.oldest = version >> 16, version >> 8 & 255
        for kind, at in self._commands():
            if kind == SYMBOLS:
                self._read_symbols(*struct.unpack_from("<4I", data, at + 8))
        return self

    def unsigned(self) -> str:
        """Why the kernel would end a process that loads it; "" where it would not: the signature,
        an ad-hoc one, has the digest of each page of what precedes it."""
        for kind, at in self._commands():
            if kind == SIGNATURE:
                return self._objection(struct.unpack_from("<I", self.data, at + 8)[0])
        return "it has no signature"

    def _objection(self, start: int) -> str:
        magic, _, count = struct.unpack_from(">3I", self.data, start)
        blobs = dict(struct.iter_unpack(">2I", self.data[start + 12 : start + 12 + 8 * count]))
        if magic != 0xFADE0CC0 or 0 not in blobs:
            return "its signature has no digests"
        at = start + blobs[0]
        magic, _, _, flags, digests, _, _, pages, end = struct.unpack_from(">9I", self.data, at)
        size, kind, _, log_page = struct.unpack_from("4B", self.data, at + 36)
        if magic != 0xFADE0C02 or not flags & 2 or (size, kind) != (32, 2) or end != start:
            return "its signature is not an ad-hoc one, by SHA-256, of all that precedes it"
        page = 1 << log_page
        for number in range(pages):
            part = self.data[number * page : min((number + 1) * page, end)]
            signed = self.data[at + digests + size * number :][:size]
            if hashlib.sha256(part).digest() != signed:
                return f"page {number} is not what was signed"
        return "" if pages * page >= end else "its signature is of a part only"

    def _commands(self) -> Iterator[tuple[int, int]]:
        """Kind and place of each load command."""
        at = 32
        for _ in range(struct.unpack_from("<I", self.data, 16)[0]):
            kind, size = struct.unpack_from("<2I", self.data, at)
            yield kind, at
            at += size

    def _text(self, at: int) -> str:
        return self.data[at : self.data.index(0, at)].decode()

    def _read_symbols(self, at: int, count: int, texts: int, _: int) -> None:
        rows = struct.iter_unpack("<IBBHQ", self.data[at : at + 16 * count])
        for text, kind, _, about, _ in rows:
            if kind & 0xE0 or not kind & 1:  # of a debugger, or of this file alone
                continue
            symbol = self._text(texts + text)
            if kind & 0x0E:
                self.gives.add(symbol)
            else:
                library = about >> 8
                owner = "" if library == ANY_LIBRARY else self.needs[library - 1]
                self.takes[symbol] = owner, bool(about & 0x40)
