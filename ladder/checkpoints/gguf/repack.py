# SPDX-License-Identifier: Apache-2.0
"""A GGUF file becomes a ladder folder with the same weights."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ladder.checkpoints.folder import StoredConfig, without_ties
from ladder.checkpoints.gguf.header import GgufFile
from ladder.checkpoints.gguf.model import GgufModel, open_model
from ladder.checkpoints.gguf.parts import read_model
from ladder.checkpoints.gguf.pieces import Dense, Joined, Packed, Plan
from ladder.checkpoints.gguf.plan import make_plan
from ladder.checkpoints.gguf.read import dense_rows, joined, weights
from ladder.checkpoints.header import DTYPE_NAMES
from ladder.checkpoints.model_files import Described, ShardFiller, nbytes, write_shards
from ladder.checkpoints.report import Report, TypeRow
from ladder.checkpoints.tables import KEPT_WITH
from ladder.checkpoints.writer import check_destination, new_folder, write_json
from ladder.errors import CheckpointError
from ladder.nn.report import Progress
from ladder.weight import Weight

#: Bytes of a weight file, about, as the hub has them.
_SHARD_BYTES = 5 << 30


@dataclass
class Rounding:
    """How far weights are from those of the file, where scales were rounded to float16."""

    most: float = 0.0  #: difference of one weight
    squares: float = 0.0
    of_weights: float = 0.0  #: squares of the weights

    def add(self, stored: Weight, exact: Weight) -> None:
        values = exact.dequantize()
        difference = stored.dequantize() - values
        self.most = max(self.most, difference.abs().max().item())
        self.squares += difference.double().square().sum().item()
        self.of_weights += values.double().square().sum().item()

    def __str__(self) -> str:
        relative = (self.squares / self.of_weights) ** 0.5 if self.of_weights else 0.0
        return f"{relative:.2g} of the weights' root mean square, at most {self.most:.2g}"


def repack_gguf(
    src: Path,
    dst: Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
    float16_scales: bool = False,
    embeddings: bool = False,
    head: bool = False,
) -> Report:
    """Write the GGUF file ``src``, or the model that it is a part of, as the ladder folder ``dst``.

    Weights of linear layers and of experts keep their codes. What is computed from them in float32
    is what llama.cpp computes, bit by bit. Rows of q and k are in transformers' order again. Other
    quantised tensors, such as embeddings unless asked for, become float32; floats stay as they
    are.

    Args, errors: as :func:`ladder.checkpoints.repack`.
    """
    start = time.perf_counter()
    check_destination(dst, force=force)
    file = read_model(src)
    found = open_model(file)
    plan = make_plan(found, float16=float16_scales, embeddings=embeddings, head=head)
    if len(plan.packed) == len(plan.embeddings):
        raise CheckpointError(f"{src}: no linear layer is quantised")
    report = Report(
        source=str(src),
        destination=str(dst),
        quant_method="gguf",
        modules=len(plan.packed),
        tensors_carried=len(plan.dense) + len(plan.joined),
        bytes_before=sum(entry.nbytes for entry in file.entries.values()),
    )
    for each in plan.packed:
        count = max(each.experts, 1)
        report.types.setdefault(str(each.ttype), TypeRow()).add(count * each.n, each.k, each.nbytes)
    roundings: dict[str, Rounding] = {}
    stored = StoredConfig.describing(
        {each.name: str(each.ttype) for each in plan.packed},
        plan.left,
        source=_source(file),
        embeddings=plan.embeddings,
    )
    with new_folder(dst, force=force) as temporary:
        shards = _shards(plan)
        report.shards, report.bytes_after = write_shards(
            temporary,
            [_described(shard) for shard in shards],
            partial(_fill, found, shards, roundings),
            progress=progress,
        )
        if not found.save_tokenizer(temporary):
            report.notes.append("the file has no tokenizer, so the folder has none")
        config = found.config_entries()
        config = without_ties(config) if plan.untied else config
        write_json(temporary / "config.json", stored.put_in(config))
    if wide := [each for each in plan.dense if each.block is not None]:
        size = sum(nbytes("F32", each.shape) for each in wide)
        names = ", ".join(each.name for each in wide[:3]) + (" ..." if wide[3:] else "")
        report.notes.append(
            f"as float32, {size / 1e6:,.0f} MB, because no layer packs them: {names}"
        )
        if not embeddings:
            report.notes.append(KEPT_WITH)
    report.notes += plan.notes
    for block, rounding in roundings.items():
        report.notes.append(f"{block}: scales rounded to float16 change weights by {rounding}")
    report.seconds = time.perf_counter() - start
    return report


def _source(file: GgufFile) -> dict[str, object]:
    kept = ("general.architecture", "general.name", "general.file_type")
    return {"quant_method": "gguf"} | {k: file.fields[k] for k in kept if k in file.fields}


_Planned = Packed | Dense | Joined


def _shards(plan: Plan) -> list[list[_Planned]]:
    """Tensors in files of about the usual size."""
    shards: list[list[_Planned]] = [[]]
    size = 0
    every: list[_Planned] = [*plan.dense, *plan.joined, *plan.packed]
    for each in every:
        more = sum(nbytes(*what) for what in _described([each]).values())
        if shards[-1] and size + more > _SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(each)
        size += more
    return shards


def _described(shard: list[_Planned]) -> dict[str, Described]:
    described: dict[str, Described] = {}
    for each in shard:
        if not isinstance(each, Packed):
            described[each.name] = (DTYPE_NAMES[each.dtype], each.shape)
        else:
            described |= {f"{each.name}.{part}": what for part, what in each.tensors.items()}
    return described


def _fill(
    found: GgufModel,
    shards: list[list[_Planned]],
    roundings: dict[str, Rounding],
    index: int,
    filler: ShardFiller,
) -> None:
    for each in shards[index]:
        if isinstance(each, Dense):
            for at, values in dense_rows(found.file, found, each):
                filler.write(each.name, values, at)
            continue
        if isinstance(each, Joined):
            filler.write(each.name, joined(found.file, each))
            continue
        for first, stored, exact in weights(found.file, each):
            if stored is not exact:
                roundings.setdefault(each.block.name, Rounding()).add(stored, exact)
            for part, tensor in stored.tensors().items():
                row = tensor[:1].nbytes
                filler.write(f"{each.name}.{part}", tensor, first * row)
