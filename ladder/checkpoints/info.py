# SPDX-License-Identifier: Apache-2.0
"""What a model folder holds, from its headers."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.header import TORCH_DTYPES
from ladder.checkpoints.layer import is_embedding, ttype_of
from ladder.checkpoints.shards import ShardSet, open_shards, read_json
from ladder.checkpoints.source import (
    TRANSLATED,
    is_quantized,
    open_folder,
    read_quantization,
    require_folder,
)
from ladder.checkpoints.translated import open_translated
from ladder.errors import CheckpointError
from ladder.types import FLOAT_DTYPES, dtype_name, parse
from ladder.weight import PARTS

#: quant_method of a folder whose weights are all in floating point.
DENSE = "none"
#: Where a configuration says how many experts a layer has.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
#: Where it says how many of them a token has: the name that most have, and those that stand for it
#: in the attribute_map of models of transformers.
EXPERTS_PER_TOKEN = (
    "num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k",
)  # fmt: skip
#: Models of transformers whose layers are Conv1D, which stores its weight [K, N].
CONV1D = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Types, modules and sizes of a ladder or floating-point folder, or one that repack reads.

    Returns:
        quant_method ("none" in floating point), activation_type (of most modules; None: as x
        comes), bytes (of all tensors), types (type, modules, weights, bytes, bits_per_weight: one
        row per type) and modules (name, n, k, type, activation_type, act_order, bytes; of a stack
        of experts also experts, how many weights [n, k] it has; of a convolution also filters, the
        shape [n, channels / groups, y, x]; of an embedding also embedding, true). Modules are the
        quantised ones; in floating point all that :func:`dense_modules` finds.
    Raises:
        InvalidArgument: no such folder. CheckpointError: damaged, or no module.
    """
    method, shards, modules = _opened(path)
    rounded = Counter(m["activation_type"] for m in modules if multiplies(m))
    rows: dict[str, dict[str, Any]] = {}
    for module in modules:
        row = rows.setdefault(
            module["type"], {"type": module["type"], "modules": 0, "weights": 0, "bytes": 0}
        )
        row["modules"] += 1
        row["weights"] += module["n"] * module["k"] * module.get("experts", 1)
        row["bytes"] += module["bytes"]
    for row in rows.values():
        row["bits_per_weight"] = 8 * row["bytes"] / row["weights"]
    return {
        "quant_method": method,
        "activation_type": rounded.most_common(1)[0][0] if rounded else None,
        "bytes": shards.nbytes,
        "types": list(rows.values()),
        "modules": modules,
    }


def multiplies(module: Mapping[str, Any]) -> bool:
    """Whether a row of ``modules`` of :func:`describe` is one that tokens are multiplied by."""
    return "filters" not in module and "embedding" not in module


def matrices(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Every matrix by which a model multiplies tokens, the quantised ones and then the others, as
    rows of ``modules`` of :func:`describe`. A head that is tied to an embedding has no tensor, so
    no row; convolutions multiply windows, embeddings nothing, and have none either.
    """
    method, shards, modules = _opened(path)
    modules = [module for module in modules if multiplies(module)]
    if method == DENSE:
        return modules
    return [*modules, *dense_modules(read_json(Path(path) / "config.json"), shards)]


def _opened(path: str | os.PathLike[str]) -> tuple[str, ShardSet, list[dict[str, Any]]]:
    folder = Path(path)
    require_folder(folder)
    config = read_json(folder / "config.json")
    fields = config.get("quantization_config")
    if isinstance(fields, dict) and fields.get("quant_method") == "ladder":
        shards = open_shards(folder)
        return "ladder", shards, _ladder_modules(StoredConfig.from_dict(fields), shards)
    if not is_quantized(folder, config):
        shards = open_shards(folder)
        modules = dense_modules(config, shards)
        if not modules:
            raise CheckpointError(f"{folder}: no tensor is the weight of a Linear module")
        return DENSE, shards, modules
    fields, method = read_quantization(folder, config)
    if method in TRANSLATED:
        translated, stored = open_translated(folder, fields)
        return method, translated, _ladder_modules(stored, translated)
    source = open_folder(folder)
    return (
        source.method,
        source.shards,
        [_source_module(source, name) for name in source.modules],
    )


def dense_modules(config: dict[str, Any], shards: ShardSet) -> list[dict[str, Any]]:
    """Modules whose weight is stored in floating point: tensors ``*.weight`` of two dimensions that
    are no embedding, and experts side by side in a tensor [experts, ., .], whose row has
    ``experts``, how many.

    Args:
        config: config.json of the folder.
    """
    text = {**config, **(config.get("text_config") or {})}
    counts = {text.get(key) for key in EXPERTS} - {None}
    found = []
    for name in sorted(shards.home):
        entry, module = shards.entry(name), name.removesuffix(".weight")
        if name.split(".")[-1] in PARTS:
            continue
        dtype = TORCH_DTYPES.get(entry.dtype)
        if dtype not in FLOAT_DTYPES.values() or is_embedding(module):
            continue
        if len(entry.shape) == 2 and name != module:
            n, k, more = *entry.shape, {}
            if text.get("model_type") in CONV1D and module.split(".")[-1].startswith("c_"):
                n, k = k, n
        elif len(entry.shape) == 3 and entry.shape[0] in counts:
            (_, n, k), more = entry.shape, {"experts": entry.shape[0]}
        else:
            continue
        found.append(
            {
                "name": module,
                "n": n,
                "k": k,
                "type": dtype_name(dtype),
                "activation_type": None,
                "act_order": False,
                "bytes": entry.nbytes,
                **more,
            }
        )
    return found


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
        more: dict[str, Any] = {}
        if len(shape) == 3:  # the weights of all experts
            more, shape = {"experts": shape[0]}, shape[1:]
        k = shape[1] * 32 // ttype.bits
        if act_order:
            k = shards.entry(f"{name}.g_idx").shape[-1]
        if (filters := config.convolutions.get(name)) is not None:
            more, k = {"filters": list(filters)}, math.prod(filters[1:])
            if shape != (filters[0], ttype.words(k)):
                raise CheckpointError(
                    f"{name}.qweight has shape {list(shape)}, not {[filters[0], ttype.words(k)]} "
                    f"as filters of {list(filters)} need"
                )
        if name in config.embeddings:
            more = {"embedding": True}
        found.append(
            {
                "name": name,
                "n": shape[0],
                "k": k,
                "type": str(ttype),
                "activation_type": config.activation_type_of(name),
                "act_order": act_order,
                "bytes": sum(shards.entry(part).nbytes for part in parts),
                **more,
            }
        )
    if not found:
        raise CheckpointError("quant_method is ladder, but no tensor is a *.qweight")
    return found


def _source_module(source: Any, name: str) -> dict[str, Any]:
    layer = source.layer(name)
    side = source.side(layer)
    ttype, act_order = ttype_of(layer, side), side.g_idx is not None
    nbytes = sum(source.shards.entry(f"{name}.{part}").nbytes for part in source.modules[name])
    return {
        "name": name,
        "n": layer.n,
        "k": layer.k,
        "type": str(ttype),
        "activation_type": layer.activation_type_for(ttype, act_order=act_order),
        "act_order": act_order,
        "bytes": nbytes,
    }
