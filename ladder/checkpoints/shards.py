# SPDX-License-Identifier: Apache-2.0
"""The weight files of a model folder, as one mapping from tensor name to shard.

A shard knows its tensors from its header alone, reads one tensor at a time, and copies the bytes of
tensors that nobody needs to understand. Safetensors are preferred; pickled files are opened by
``torch.load(weights_only=True, mmap=True)``, which runs no code from the file.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ladder.checkpoints.header import (
    DTYPE_NAMES,
    Entry,
    merge_metadata,
    read_header,
    read_metadata,
)
from ladder.errors import CheckpointError

_COPY_BYTES = 8 << 20
_NUMBERED = re.compile(r"-(\d{5})-of-(\d{5})\.(?:safetensors|bin)$")
_UNSAFE = "cannot be read as a state dict without running code from it"
#: The file of all weights, which transformers prefers to an index.
_SINGLE = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}
#: That of diffusers, which prefers an index.
_OF_DIFFUSERS = "diffusion_pytorch_model"
#: The same weights once more in a folder of diffusers: variants in other dtypes and their indexes,
#: and a file of all weights beside shards.
_VARIANTS = tuple(f"{_OF_DIFFUSERS}*{end}" for end in (".safetensors", ".bin", ".index.*.json"))
#: The same weights once more, beside files of safetensors.
_COPIES = ("pytorch_model*.bin", "gptq_model*.bin", "*_model.bin.index.json")
_NAMES = DTYPE_NAMES | {torch.bool: "BOOL", torch.float64: "F64"}


class Shard(Protocol):
    """One weight file."""

    path: Path

    @property
    def entries(self) -> dict[str, Entry]: ...

    @property
    def metadata(self) -> dict[str, str]:
        """What the file says beside its tensors."""

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Return the named tensors. They may be views of a mapped file: drop them soon."""

    def chunks(self, name: str) -> Iterator[memoryview]:
        """Yield the bytes of one tensor, a few MiB at a time."""


class SafetensorsShard:
    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def entries(self) -> dict[str, Entry]:
        return read_header(self.path)

    @property
    def metadata(self) -> dict[str, str]:
        return read_metadata(self.path)

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        # The file is opened anew each time, because pages of a mapping that stays open count as
        # memory of this process until it is closed.
        try:
            with safe_open(self.path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in names}
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.path}: {_first_line(error)}") from error

    def chunks(self, name: str) -> Iterator[memoryview]:
        entry = self.entries[name]
        left, buffer = entry.nbytes, memoryview(bytearray(min(entry.nbytes, _COPY_BYTES)))
        try:
            with self.path.open("rb") as file:
                file.seek(entry.begin)
                while left:
                    got = file.readinto(buffer[: min(left, len(buffer))])
                    if not got:
                        raise CheckpointError(f"{self.path}: {name} lacks its last {left} bytes")
                    left -= got
                    yield buffer[:got]
        except OSError as error:
            raise CheckpointError(f"{self.path}: {name}: {error.strerror}") from error


@dataclass(frozen=True)
class Pickles:
    """How the pickled files of a format differ from a state dict."""

    #: The tensors and the metadata that a file of safetensors would have, of what torch.load gave.
    flatten: Callable[[Any, Path], tuple[Any, dict[str, str]]]
    #: What the files may name, beyond what torch itself allows.
    allowed: Callable[[Path], list[Any]] = lambda path: []
    name: str = ""  #: of the file of all weights, of formats that have one of their own


class PickledShard:
    def __init__(self, path: Path, pickles: Pickles | None = None) -> None:
        self.path, self._pickles = path, pickles

    @property
    def metadata(self) -> dict[str, str]:
        return self._flat[1]

    @cached_property
    def _flat(self) -> tuple[Any, dict[str, str]]:
        if self._pickles is None:
            return _load_pickle(self.path), {}
        with torch.serialization.safe_globals(self._pickles.allowed(self.path)):
            return self._pickles.flatten(_load_pickle(self.path), self.path)

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        tensors = self._flat[0]
        if not isinstance(tensors, dict):
            raise CheckpointError(f"{self.path}: holds a {type(tensors).__name__}, not a dict")
        for name, tensor in tensors.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise CheckpointError(f"{self.path}: {name!r} is {type(tensor).__name__}")
            if tensor.dtype not in _NAMES or tensor.layout != torch.strided:
                raise CheckpointError(f"{self.path}: {name} is {tensor.dtype} {tensor.layout}")
        return tensors

    @cached_property
    def entries(self) -> dict[str, Entry]:
        return {
            name: Entry(_NAMES[t.dtype], tuple(t.shape), 0, t.numel() * t.element_size())
            for name, t in self._tensors.items()
        }

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        return {name: self._tensors[name].detach() for name in names}

    def chunks(self, name: str) -> Iterator[memoryview]:
        flat = self._tensors[name].detach().contiguous().reshape(-1).view(torch.uint8)
        for part in flat.split(_COPY_BYTES):
            yield memoryview(part.numpy())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _load_pickle(path: Path) -> Any:
    failures = (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, TypeError,
                LookupError, AttributeError, ImportError)  # fmt: skip
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except failures as error:
        if "mmap can only be used" not in str(error):
            raise CheckpointError(f"{path}: {_UNSAFE}: {_first_line(error)}") from error
    try:  # the format before 1.6, which cannot be mapped
        return torch.load(path, map_location="cpu", weights_only=True)
    except failures as error:
        raise CheckpointError(f"{path}: {_UNSAFE}: {_first_line(error)}") from error


@dataclass(frozen=True)
class ShardSet:
    """All weight files of a folder; ``home[name]`` is the index in ``shards`` of that tensor."""

    shards: list[Shard]
    home: dict[str, int]
    files: frozenset[str]  #: names of the files that these tensors replace, indexes included

    def entry(self, name: str) -> Entry:
        return self.shards[self.home[name]].entries[name]

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        wanted: dict[int, list[str]] = {}
        for name in names:
            wanted.setdefault(self.home[name], []).append(name)
        tensors: dict[str, Tensor] = {}
        for index, group in wanted.items():
            tensors |= self.shards[index].read(group)
        return tensors

    def metadata(self) -> dict[str, str]:
        """What the files say beside their tensors. Raises as :func:`merge_metadata`."""
        return merge_metadata((shard.path, shard.metadata) for shard in self.shards)

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for shard in self.shards for entry in shard.entries.values())


def open_shards(folder: Path, pickles: Pickles | None = None) -> ShardSet:
    """Open the weight files of ``folder`` and check that they and their index agree.

    Args:
        pickles: of a format whose pickled files are no state dicts.
    Raises:
        CheckpointError: there are none, one is damaged, a shard is missing, or a tensor is in
            another shard than the index says, in two shards, or in only one of index and shard; or
            there is one file of all weights, too, which transformers would load.
    """
    for kind in ("safetensors", "bin"):
        every = sorted(folder.glob(f"*.{kind}.index.json"))
        indexes = [index for index in every if not _is_left(index, kind)]
        if len(indexes) > 1:
            two = " and ".join(index.name for index in indexes[:2])
            raise CheckpointError(f"{folder}: has two indexes, {two}")
        weight_map = _read_index(indexes[0]) if indexes else None
        names = sorted(set(weight_map.values())) if weight_map else _unindexed(folder, kind)
        single = folder / _SINGLE[kind]
        if weight_map and single.is_file() and single.name not in names:
            raise CheckpointError(
                f"{folder}: has {single.name} beside {indexes[0].name}, which names {names[0]}: "
                "remove the older weights"
            )
        if not names:
            continue
        for name in names:
            if not (folder / name).is_file():
                raise CheckpointError(f"{folder}: {indexes[0].name} names {name}, which is missing")
        shards: list[Shard] = [
            SafetensorsShard(folder / name)
            if kind == "safetensors"
            else PickledShard(folder / name, pickles)
            for name in names
        ]
        files = {*names, *(index.name for index in every)}
        copies = (*_VARIANTS, *_COPIES) if kind == "safetensors" else _VARIANTS
        files |= {path.name for pattern in copies for path in folder.glob(pattern)}
        return ShardSet(shards, _homes(shards, weight_map), frozenset(files))
    if pickles is not None and (folder / pickles.name).is_file():
        shards = [PickledShard(folder / pickles.name, pickles)]
        return ShardSet(shards, _homes(shards, None), frozenset({pickles.name}))
    raise CheckpointError(f"{folder}: has neither *.safetensors nor *.bin weights")


def shards_of(files: Iterable[Path]) -> ShardSet:
    """These files of safetensors, whatever an index says. Raises CheckpointError for a tensor that
    is in two of them."""
    shards: list[Shard] = [SafetensorsShard(file) for file in files]
    return ShardSet(shards, _homes(shards, None), frozenset(s.path.name for s in shards))


def remove_older_weights(folder: Path, before: Mapping[str, int]) -> None:
    """Remove what transformers leaves in ``folder`` of the weights that were there when others are
    saved: the index of shards, which it removes, beside one file of all weights; and that file,
    which it would load again, beside new shards.

    Args:
        before: :func:`times_of_weights` before they were saved.
    """
    single = _SINGLE["safetensors"]
    now = times_of_weights(folder)
    for name in now.keys() - {single}:
        index, (older, newer) = folder / name, (name, single)
        if not _is_left(index, "safetensors"):
            older, newer = newer, older
        if before.get(older) == now.get(older) and before.get(newer) != now.get(newer):
            (folder / older).unlink(missing_ok=True)  # another process may be faster


def times_of_weights(folder: Path) -> dict[str, int]:
    """When the file of all weights and indexes of ``folder`` were written, as far as they are
    there."""
    names = [folder / _SINGLE["safetensors"], *folder.glob("*.safetensors.index.json")]
    return {path.name: path.stat().st_mtime_ns for path in names if path.is_file()}


def _is_left(index: Path, kind: str) -> bool:
    """Whether none of the files that an index names are there, but one of all weights is."""
    if not (index.parent / _SINGLE[kind]).is_file():
        return False
    try:
        names = {*_read_index(index).values()}
    except CheckpointError:
        return False
    return not any((index.parent / name).exists() for name in names)


def _unindexed(folder: Path, kind: str) -> list[str]:
    singles = (_SINGLE[kind], f"{_OF_DIFFUSERS}.{kind}")
    names = [name for name in singles if (folder / name).is_file()][:1]
    skip = re.compile(r"(training_args|optimizer|scheduler|rng_state|adapter_model)")
    names = names or sorted(p.name for p in folder.glob(f"*.{kind}") if not skip.match(p.name))
    for name in names:
        numbered = _NUMBERED.search(name)
        if numbered and int(numbered[2]) != len(names):
            raise CheckpointError(
                f"{folder}: {name} is one of {int(numbered[2])} shards, found {len(names)}"
            )
    return names


def _read_index(path: Path) -> dict[str, str]:
    fields = read_json(path)
    weight_map = fields.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: weight_map is not an object that names tensors")
    for name, file in weight_map.items():
        if not isinstance(file, str) or file != Path(file).name or file in ("", ".", ".."):
            raise CheckpointError(f"{path}: weight_map puts {name} in {file!r}, not a file name")
    return weight_map


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file ``path``. Raises CheckpointError naming the file."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path}: a JSON {type(fields).__name__}, not an object")
    return fields


def _homes(shards: list[Shard], weight_map: dict[str, str] | None) -> dict[str, int]:
    home: dict[str, int] = {}
    for index, shard in enumerate(shards):
        for name in shard.entries:
            if name in home:
                other = shards[home[name]].path.name
                raise CheckpointError(f"{name} is in both {other} and {shard.path.name}")
            home[name] = index
            if weight_map is not None and weight_map.get(name) != shard.path.name:
                says = weight_map.get(name, "no shard")
                raise CheckpointError(f"{name} is in {shard.path.name}, its index says {says}")
    for name, file in (weight_map or {}).items():
        if name not in home:
            raise CheckpointError(f"{name} is in {file} by the index, but that shard lacks it")
    return home
