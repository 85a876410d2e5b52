# SPDX-License-Identifier: Apache-2.0
"""``ladder repack``: a folder of another package becomes a ladder folder with the same weights."""

from __future__ import annotations

import os
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ladder.checkpoints import diffusion
from ladder.checkpoints.activation_schemes import recorded, say_without_scale
from ladder.checkpoints.folder import StoredConfig, without_ties
from ladder.checkpoints.gguf.repack import repack_gguf
from ladder.checkpoints.header import DTYPE_NAMES
from ladder.checkpoints.layer import Layer, check_input_scale, is_embedding, ttype_of
from ladder.checkpoints.model_files import (
    Described,
    ShardFiller,
    check_apart,
    describe_tensors,
    nbytes,
    write_model,
)
from ladder.checkpoints.report import Report, TypeRow
from ladder.checkpoints.shards import read_json
from ladder.checkpoints.source import (
    FALLBACKS,
    OLD_KEY,
    TRANSLATED,
    Source,
    open_folder,
    read_quantization,
    require_folder,
)
from ladder.checkpoints.tables import KEPT_WITH, tables_of
from ladder.checkpoints.translated import repack_translated
from ladder.checkpoints.writer import carried_files, check_destination
from ladder.errors import InvalidArgument
from ladder.nn.report import Progress
from ladder.types import parse

_NAMED = 4  #: decoded modules that a report names


@dataclass(frozen=True)
class _Planned:
    """One module, checked: everything of it but the codes has been looked at."""

    layer: Layer
    type: str
    tensors: dict[str, Described]  #: part -> dtype, shape

    @property
    def nbytes(self) -> int:
        return sum(nbytes(*described) for described in self.tensors.values())


def repack(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    force: bool = False,
    progress: Progress | None = None,
    v1_zeros: str = "word",
    weights_only: bool = False,
    float16_scales: bool = False,
    embeddings: bool = False,
    head: bool = False,
) -> Report:
    """Write the folder of another package, or GGUF file, ``src`` as the ladder folder ``dst``.

    Codes, scales and zeros stay what they are; only their order changes (docs/format.md). Layers
    whose activations ``src`` quantises get an ``activation_type``, where some device has kernels
    for it; else the log says why not. Tensors that are not quantised and all other files are
    copied, sub-folders too, except the old weights, their index, quantize_config.json,
    quant_config.json, .git and .cache. Shards follow the source's.

    Tensors are streamed: memory holds the largest quantised tensor and about 100 MiB, and disk
    needs room for the whole result beside ``src``. The result appears under its name when whole.

    Args:
        src: a folder of a ``quant_method`` of ``source.METHODS``, or a file of llama.cpp ending in
            ".gguf".
        dst: a folder that does not exist or is empty, outside ``src``.
        force: replace an existing ``dst``.
        progress: called with (tensor, bytes written, bytes in all) after each piece.
        v1_zeros: "word" or "field": how GPTQ v1 zeros are read, see ``gptq.Config``.
        weights_only: no ``activation_type``, whatever ``src`` says of activations.
        float16_scales: of a GGUF file, round scales that only float32 holds to float16, which takes
            one bit less for each weight, or two (docs/format.md); the report says how far weights
            move.
        embeddings: a quantised input embedding stays packed, as :class:`ladder.Embedding`, where
            it is one that :func:`ladder.convert` would pack. By default it is decoded. An output
            embedding that is tied to it is decoded, unless ``head`` is given, and the folder says
            ``tie_word_embeddings: false``.
        head: an output embedding that is tied to a quantised embedding is packed, from the same
            codes. One with a weight of its own is packed where ``src`` has it quantised, whatever
            is said here.
    Raises:
        InvalidArgument: ``dst`` exists, or one of the folders lies in the other, or as open_folder.
        CheckpointError, Unsupported: as open_folder; a tensor is missing, damaged or not finite; a
            GGUF file has a tensor that no tType holds, or a model that transformers does not know.
        DestinationError: ``dst`` cannot be written: read-only, or a full disk.
    """
    start = time.perf_counter()
    folder, destination = Path(src), Path(os.path.abspath(dst))
    if folder.suffix == ".gguf" and not folder.is_dir():
        return repack_gguf(
            folder,
            destination,
            force=force,
            progress=progress,
            float16_scales=float16_scales,
            embeddings=embeddings,
            head=head,
        )
    if float16_scales:
        raise InvalidArgument(f"float16_scales is for GGUF files, and {folder} is none")
    check_apart(folder, destination)
    check_destination(destination, force=force)
    require_folder(folder)
    config = read_json(folder / "config.json")
    if read_quantization(folder, config)[1] in TRANSLATED:
        report = repack_translated(folder, config, destination, force=force, progress=progress)
        report.destination = str(dst)
        if embeddings or head:
            report.notes.append("no embedding is quantised: embeddings and head change nothing")
        return report
    source = open_folder(folder, v1_zeros=v1_zeros)
    source = getattr(source.format, "sized", lambda source: source)(source)
    source = source.with_embeddings() if embeddings else source
    plans = {module: _plan(source, module, weights_only) for module in source.modules}
    tables = tables_of(source, embeddings=embeddings, head=head)
    dense = {name: source.layer(name) for name in source.embeddings}
    if hasattr(source.format, "check_source"):
        layers = {module: plan.layer for module, plan in plans.items()} | dense
        source.format.check_source(source, layers)
    if not weights_only:
        say_without_scale([
            module
            for module, plan in plans.items()
            if plan.layer.keeps_input_scale(parse(plan.type), act_order="g_idx" in plan.tensors)
            and "input_scale" not in plan.tensors
        ])  # fmt: skip
    plans |= {name: _plan(source, of, weights_only=True) for name, of in tables.packed.items()}
    dense = {name: layer for name, layer in dense.items() if name not in tables.packed}
    if dense:
        more = f" and {len(dense) - _NAMED} more" if len(dense) > _NAMED else ""
        names = ", ".join([*dense][:_NAMED]) + more
        tables.notes.insert(0, f"decoded, as no linear layer has their weight: {names}")
        if not embeddings and any(map(is_embedding, dense)):
            tables.notes.append(KEPT_WITH)
    dense |= {name: source.layer(of) for name, of in tables.decoded.items()}
    files = carried_files(folder, source.shards.files | {"config.json", *FALLBACKS})
    report = Report(
        source=str(folder),
        destination=str(dst),
        quant_method=source.method,
        modules=len(plans),
        tensors_carried=len(source.others),
        files_carried=len(files),
        bytes_before=source.shards.nbytes,
    )
    report.notes += tables.notes
    for plan in plans.values():
        row = report.types.setdefault(plan.type, TypeRow())
        row.add(plan.layer.n, plan.layer.k, plan.nbytes)
    stored = StoredConfig.describing(
        {module: plan.type for module, plan in plans.items()},
        [name for name in source.unquantised() if name not in plans],
        source={"quant_method": source.method} | source.quantization,
        activation_types={} if weights_only else _activation_types(plans, tables.packed),
        embeddings=tables.embeddings,
    )
    dropped = {OLD_KEY, *getattr(source.format, "KEYS", ())}
    config = {key: value for key, value in source.config.items() if key not in dropped}
    config = without_ties(config) if tables.untied else config
    report.shards, report.bytes_after = write_model(
        folder,
        destination,
        _described(source, plans, dense),
        partial(_fill, source, plans, dense),
        files=files,
        force=force,
        progress=progress,
        **diffusion.config_and_stem(stored, config),
    )
    report.seconds = time.perf_counter() - start
    return report


def _activation_types(
    plans: Mapping[str, _Planned], tables: Container[str]
) -> dict[str, str | None]:
    return recorded(
        (module, plan.layer, parse(plan.type), "g_idx" in plan.tensors)
        for module, plan in plans.items()
        if module not in tables
    )


def _plan(source: Source, module: str, weights_only: bool) -> _Planned:
    layer = source.layer(module)
    side = source.side(layer)
    tensors: dict[str, Described]
    tensors = {"qweight": ("I32", (layer.n, layer.words))}
    tensors |= describe_tensors(side.tensors())
    ttype = ttype_of(layer, side)
    scale = None if weights_only else side.input_scale
    if scale is not None and layer.keeps_input_scale(ttype, act_order=side.g_idx is not None):
        check_input_scale(scale, layer.name)
        tensors |= describe_tensors({"input_scale": scale})
    if side.pre_scale is not None:
        tensors |= describe_tensors({"pre_scale": side.pre_scale})
    return _Planned(layer, str(ttype), tensors)


def _described(
    source: Source, plans: dict[str, _Planned], dense: dict[str, Layer]
) -> list[dict[str, Described]]:
    """The tensors of each shard; shards follow the source's. ``dense``: embeddings, and output
    embeddings that were tied to them."""
    described: list[dict[str, Described]] = [{} for _ in source.shards.shards]
    for module, plan in plans.items():
        described[source.home(plan.layer.name)] |= {
            f"{module}.{part}": what for part, what in plan.tensors.items()
        }
    for name, layer in dense.items():
        dtype = DTYPE_NAMES[source.decoded_dtype(layer)]
        described[source.home(layer.name)][f"{name}.weight"] = dtype, (layer.n, layer.k)
    for name in source.others:
        entry = source.shards.entry(name)
        described[source.shards.home[name]][name] = (entry.dtype, entry.shape)
    return described


def _fill(
    source: Source,
    plans: dict[str, _Planned],
    dense: dict[str, Layer],
    index: int,
    file: ShardFiller,
) -> None:
    for module, plan in plans.items():
        layer = plan.layer
        if source.home(layer.name) == index:
            for rows, words in source.words(layer):
                file.write(f"{module}.qweight", words, rows.start * layer.words * 4)
            side = source.side(layer)
            for part, tensor in side.tensors().items():
                file.write(f"{module}.{part}", tensor)
            of_x = {"input_scale": side.input_scale, "pre_scale": side.pre_scale}
            for part, scale in of_x.items():
                if part in plan.tensors and scale is not None:
                    file.write(f"{module}.{part}", scale)
    for name, layer in dense.items():
        if source.home(layer.name) == index:
            for rows, values in source.decoded(layer):
                file.write(f"{name}.weight", values, rows.start * layer.k * values.itemsize)
    for other in source.others:
        if source.shards.home[other] == index:
            file.copy(source.shards, other)
