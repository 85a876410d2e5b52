# SPDX-License-Identifier: Apache-2.0
"""Folders whose tensors are those of a ladder folder by other names: ladder.checkpoints.mxfp4."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.header import DTYPE_NAMES, Entry
from ladder.checkpoints.layer import is_embedding, stored_as
from ladder.checkpoints.model_files import Described, ShardFiller, write_model
from ladder.checkpoints.mxfp4 import Translation, translate
from ladder.checkpoints.report import Report, TypeRow
from ladder.checkpoints.shards import ShardSet, open_shards
from ladder.checkpoints.writer import carried_files
from ladder.errors import CheckpointError
from ladder.nn.report import Progress
from ladder.types import parse


@dataclass(frozen=True)
class TranslatedShards(ShardSet):
    """Files of weights whose tensors have the names, shapes and values of a ladder folder's."""

    translation: Translation
    theirs: Mapping[str, str]  #: names in the files, by those of :attr:`home`

    def entry(self, name: str) -> Entry:
        found = self.shards[self.home[name]].entries[self.theirs[name]]
        if self.theirs[name] not in self.translation.names:
            return found
        dtype, shape = self.translation.headers[name]
        kept = DTYPE_NAMES[dtype] if isinstance(dtype, torch.dtype) else found.dtype
        return Entry(kept, shape, found.begin, found.end)

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        tensors = {}
        for name in names:
            theirs = self.theirs[name]
            tensor = self.shards[self.home[name]].read([theirs])[theirs]
            known = theirs in self.translation.names
            tensors[name] = translate(theirs, tensor) if known else tensor
        return tensors


def open_translated(
    folder: Path, fields: Mapping[str, Any]
) -> tuple[TranslatedShards, StoredConfig]:
    """The files of ``folder`` and their config, as if it were a ladder folder.

    Args:
        fields: ``quantization_config`` of config.json, whose quant_method is "mxfp4".
    Raises:
        CheckpointError: the folder is damaged, or nothing in it is packed. Unsupported: as
            :class:`Translation`.
    """
    files = open_shards(folder)
    entries = {name: files.entry(name) for name in files.home}
    headers = {name: stored_as(entry.dtype, entry.shape) for name, entry in entries.items()}
    translation = Translation(fields, headers)
    if not translation.stacks:
        raise CheckpointError(f"{folder}: quant_method is mxfp4, but no tensor is a *_proj_blocks")
    names = {name: translation.names.get(name, name) for name in files.home}
    shards = TranslatedShards(
        files.shards,
        {names[name]: index for name, index in files.home.items()},
        files.files,
        translation,
        {ours: theirs for theirs, ours in names.items()},
    )
    dense = {
        name.removesuffix(".weight")
        for name, stored in headers.items()
        if name.endswith(".weight") and len(stored.shape) == 2 and not is_embedding(name[:-7])
    }
    return shards, translation.stored_config(fields, tuple(sorted({*dense, "lm_head"})))


def _check_finite(tensor: Tensor, name: str) -> None:
    """Raise CheckpointError where scales or biases are NaN or infinite."""
    if name.endswith("_scales"):
        not_finite = tensor.view(torch.uint8) == 255  # NaN, of e8m0
    elif name.endswith("_bias"):
        not_finite = ~torch.isfinite(tensor)
    else:
        return
    if bool(not_finite.any()):
        at = torch.nonzero(not_finite)[0].tolist()
        raise CheckpointError(f"{name}{at} is not finite")


def repack_translated(
    folder: Path,
    config: Mapping[str, Any],
    destination: Path,
    *,
    force: bool,
    progress: Progress | None,
) -> Report:
    """As :func:`ladder.checkpoints.repack`, which has looked at the destination; ``config`` is
    config.json. Memory holds the largest tensor twice."""
    start = time.perf_counter()
    fields = config["quantization_config"]
    shards, stored = open_translated(folder, fields)
    files = carried_files(folder, shards.files | {"config.json"})
    described: list[dict[str, Described]] = [{} for _ in shards.shards]
    for name, index in shards.home.items():
        entry = shards.entry(name)
        described[index][name] = entry.dtype, entry.shape
    translation = shards.translation
    report = Report(
        source=str(folder),
        destination=str(destination),
        quant_method=fields["quant_method"],
        modules=len(translation.stacks),
        tensors_carried=len(shards.home) - len(translation.names),
        files_carried=len(files),
        bytes_before=shards.nbytes,
    )
    for stack in translation.stacks:
        text = stored.type_of(stack)
        assert text is not None
        experts, rows, words = shards.entry(f"{stack}.qweight").shape
        parts = [shards.entry(f"{stack}.{part}").nbytes for part in ("qweight", "scales")]
        row = report.types.setdefault(text, TypeRow())
        row.add(experts * rows, words * 32 // parse(text).bits, sum(parts))

    def fill(index: int, file: ShardFiller) -> None:
        for name in described[index]:
            if shards.theirs[name] in translation.names:
                tensor = shards.read([name])[name]
                _check_finite(tensor, shards.theirs[name])
                file.write(name, tensor)
            else:
                file.copy(shards, name)

    report.shards, report.bytes_after = write_model(
        folder,
        destination,
        described,
        fill,
        files=files,
        config=stored.put_in(config),
        force=force,
        progress=progress,
    )
    report.seconds = time.perf_counter() - start
    return report
