# SPDX-License-Identifier: Apache-2.0
"""What one rank of tensor parallelism holds of the modules of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ladder.integrations.serving.stored import Folder, StoredLinear


@dataclass(frozen=True)
class Rows:
    """What a rank holds of one module: of its ``whole`` rows those from ``start`` on. ``count``
    rows of the layer, of which the first ``filled`` come from the files and the rest are 0 (the
    padding of a vocabulary)."""

    count: int
    start: int
    filled: int
    whole: int


@dataclass(frozen=True)
class Columns:
    """The columns [start, start + count) of ``whole``."""

    start: int
    count: int
    whole: int


def whole_rows(sizes: Sequence[int]) -> list[Rows]:
    """Of modules that the rank holds whole."""
    return [Rows(size, 0, size, size) for size in sizes]


def vocabulary_rows(layer: Any, count: int) -> list[Rows]:
    """Of an embedding or output layer of vLLM or SGLang, with ``count`` rows on this rank."""
    own = layer.shard_indices
    first, last = own.org_vocab_start_index, own.org_vocab_end_index
    return [Rows(count, first, last - first, layer.org_vocab_size)]


def part_rows(sizes: Sequence[int], rank: int, ranks: int, replicas: int = 1) -> list[Rows]:
    """Of modules cut along their rows, with so many rows each on this rank.

    Args:
        replicas: ranks that share the rows of each module but the first: heads of keys and values
            that are fewer than ranks.
    """
    rows = []
    for part, size in enumerate(sizes):
        each = replicas if part > 0 else 1
        rows.append(Rows(size, rank // each * size, size, size * ranks // each))
    return rows


def modules_of(
    folder: Folder, names: Sequence[str], rows: Sequence[Rows], k: int
) -> list[StoredLinear]:
    """The modules ``names`` of the files, one for each element of ``rows``, or one that has the
    rows of all."""
    whole = [each.whole for each in rows]
    if len(names) != len(rows):
        whole = [sum(whole)]
    return [folder.module(name, n, k) for name, n in zip(names, whole, strict=True)]
