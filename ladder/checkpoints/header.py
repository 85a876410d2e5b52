# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file, believed only after every number in it is checked.

A file is an unsigned 64-bit little-endian length, that many bytes of JSON, and the tensors' bytes
without holes. A downloaded file may lie about any of it, so nothing is allocated, mapped or copied
by a number that has not been compared with the size of the file.

Source: the safetensors format description, https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from ladder.errors import CheckpointError

#: Longest JSON text that the safetensors library accepts, in bytes.
MAX_HEADER_BYTES = 100_000_000
#: Largest number of elements that torch can count in one tensor.
MAX_ELEMENTS = 2**63 - 1

#: Bits per element of each dtype of the format.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16,
    "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip

#: The dtypes of quantised parts, which are the only ones that ladder itself reads and writes.
TORCH_DTYPES = {
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U32": torch.uint32, "U8": torch.uint8,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
#: The same, from torch.
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """One tensor as a header states it; ``begin`` and ``end`` are bytes from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


def _fail(path: Path, *what: object) -> NoReturn:
    raise CheckpointError(f"{path}: " + "".join(str(part) for part in what))


def read_header(path: str | os.PathLike[str]) -> dict[str, Entry]:
    """Return the tensors of the safetensors file ``path``, in order of their bytes.

    Raises:
        CheckpointError: the length is beyond the file, the text is not the JSON that the format
            asks for, a name comes twice, a dtype is unknown, a shape and its bytes disagree,
            tensors overlap or leave a hole, or the file is shorter or longer than they need.
    """
    path = Path(path)
    text, begin, size = _read_text(path)
    entries = parse_header(text, begin, size, path)
    return dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return what the header of the safetensors file ``path`` says beside its tensors.

    Raises CheckpointError as :func:`read_header` does of the text.
    """
    path = Path(path)
    return _metadata(_load(_read_text(path)[0], path), path)


def merge_metadata(files: Iterable[tuple[Path, Mapping[str, str]]]) -> dict[str, str]:
    """What files say beside their tensors, together.

    Raises CheckpointError where two of them say otherwise of one tensor.
    """
    said: dict[str, str] = {}
    for path, metadata in files:
        for key, value in metadata.items():
            if said.setdefault(key, value) != value and "." in key:  # as names of tensors have
                _fail(path, "its metadata says of ", key, " ", value[:200], ", and another file's ",
                      said[key][:200])  # fmt: skip
    return said


def _read_text(path: Path) -> tuple[bytes, int, int]:
    """The JSON of a file, where its tensors begin, and the size of the file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            if len(prefix) < 8:
                _fail(path, "has ", size, " bytes, a safetensors file has at least 8")
            length = int.from_bytes(prefix, "little")
            if length > min(size - 8, MAX_HEADER_BYTES):
                _fail(path, "header length ", length, " is beyond the ", size - 8,
                      " bytes that follow it, or the limit of ", MAX_HEADER_BYTES)  # fmt: skip
            return file.read(length), 8 + length, size
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


def _metadata(fields: dict[str, Any], path: Path) -> dict[str, str]:
    """Take the metadata out of the fields of a header."""
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _fail(path, "__metadata__ is not an object of strings")
    return metadata


def parse_header(text: bytes, data_begin: int, size: int, path: Path) -> dict[str, Entry]:
    """Return the tensors named by the JSON ``text`` of a file of ``size`` bytes."""
    fields = _load(text, path)
    _metadata(fields, path)
    entries = {name: _entry(name, value, data_begin, path) for name, value in fields.items()}
    at, before = data_begin, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin < at:
            _fail(path, name, " begins at byte ", entry.begin, ", inside ", before,
                  ", which ends at byte ", at)  # fmt: skip
        if entry.begin > at:
            _fail(path, name, " begins at byte ", entry.begin, ", leaving a hole after ", before,
                  ", which ends at byte ", at)  # fmt: skip
        at, before = entry.end, name
        if at > size:
            _fail(path, name, " ends at byte ", at, ", the file is truncated at byte ", size)
    if at != size:
        _fail(path, "its tensors end at byte ", at, ", the file at byte ", size)
    return entries


def _load(text: bytes, path: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, value in pairs:
            if name in made:
                _fail(path, "the header names ", repr(name), " twice")
            made[name] = value
        return made

    try:
        fields = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: the header is not JSON: {error}") from error
    if not isinstance(fields, dict):
        _fail(path, "the header is a JSON ", type(fields).__name__, ", not an object")
    return fields


def _entry(name: str, value: Any, data_begin: int, path: Path) -> Entry:
    if not isinstance(value, Mapping) or set(value) != {"dtype", "shape", "data_offsets"}:
        _fail(path, name, " is not {dtype, shape, data_offsets}")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        _fail(path, name, ".dtype is ", repr(dtype), ", not one of ", ", ".join(DTYPE_BITS))
    if not _naturals(shape):
        _fail(path, name, ".shape is ", shape, ", not a list of sizes")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _fail(path, name, ".data_offsets is ", offsets, ", not [begin, end]")
    elements = math.prod(shape)
    if elements > MAX_ELEMENTS:
        _fail(path, name, ".shape is ", shape, ", more than ", MAX_ELEMENTS, " elements")
    bits, given = elements * DTYPE_BITS[dtype], offsets[1] - offsets[0]
    if bits != 8 * given:
        _fail(path, name, " is ", dtype, " ", shape, ", which takes ", bits / 8, " bytes, but ",
              "its data_offsets span ", given)  # fmt: skip
    return Entry(dtype, tuple(shape), data_begin + offsets[0], data_begin + offsets[1])


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
