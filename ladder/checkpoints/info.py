# SPDX-License-Identifier: Apache-2.0
"""What a model folder holds, from its headers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.layer import ttype_of
from ladder.checkpoints.shards import ShardSet, open_shards, read_json
from ladder.checkpoints.source import open_folder
from ladder.errors import CheckpointError, InvalidArgument
from ladder.types import parse
from ladder.weight import PARTS


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Types, modules and sizes of a ladder, GPTQ or AWQ folder.

    Returns:
        quant_method, bytes (of all tensors), types (type, modules, weights, bytes,
        bits_per_weight: one row per tType) and modules (name, n, k, type, act_order, bytes).
    Raises:
        InvalidArgument: no such folder. CheckpointError: damaged, or no quantised module.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InvalidArgument(f"{folder} is not a folder")
    fields = read_json(folder / "config.json").get("quantization_config")
    if isinstance(fields, dict) and fields.get("quant_method") == "ladder":
        shards = open_shards(folder)
        method, modules = "ladder", _ladder_modules(StoredConfig.from_dict(fields), shards)
    else:
        source = open_folder(folder)
        shards, method = source.shards, source.method
        modules = [_source_module(source, name) for name in source.modules]
    rows: dict[str, dict[str, Any]] = {}
    for module in modules:
        row = rows.setdefault(
            module["type"], {"type": module["type"], "modules": 0, "weights": 0, "bytes": 0}
        )
        row["modules"] += 1
        row["weights"] += module["n"] * module["k"]
        row["bytes"] += module["bytes"]
    for row in rows.values():
        row["bits_per_weight"] = 8 * row["bytes"] / row["weights"]
    return {
        "quant_method": method,
        "bytes": shards.nbytes,
        "types": list(rows.values()),
        "modules": modules,
    }


def _ladder_modules(config: StoredConfig, shards: ShardSet) -> list[dict[str, Any]]:
    found = []
    for name in sorted(n.removesuffix(".qweight") for n in shards.home if n.endswith(".qweight")):
        text = config.type_of(name)
        if text is None:
            raise CheckpointError(
                f"{name}.qweight is there, but modules_to_not_convert names {name}"
            )
        ttype, shape = parse(text), shards.entry(f"{name}.qweight").shape
        parts = [f"{name}.{part}" for part in PARTS if f"{name}.{part}" in shards.home]
        act_order = f"{name}.g_idx" in shards.home
        k = shape[1] * 32 // ttype.bits
        if act_order:
            k = shards.entry(f"{name}.g_idx").shape[0]
        found.append(
            {
                "name": name,
                "n": shape[0],
                "k": k,
                "type": str(ttype),
                "act_order": act_order,
                "bytes": sum(shards.entry(part).nbytes for part in parts),
            }
        )
    if not found:
        raise CheckpointError("quant_method is ladder, but no tensor is a *.qweight")
    return found


def _source_module(source: Any, name: str) -> dict[str, Any]:
    layer = source.layer(name)
    side = source.side(layer)
    nbytes = sum(source.shards.entry(f"{name}.{part}").nbytes for part in source.modules[name])
    return {
        "name": name,
        "n": layer.n,
        "k": layer.k,
        "type": str(ttype_of(layer, side)),
        "act_order": side.g_idx is not None,
        "bytes": nbytes,
    }
