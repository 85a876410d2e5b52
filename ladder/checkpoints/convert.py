# SPDX-License-Identifier: Apache-2.0
"""Quantise a floating-point model folder, one tensor at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder._version import install_command
from ladder.checkpoints.folder import StoredConfig, definitions
from ladder.checkpoints.header import DTYPE_BITS, TORCH_DTYPES
from ladder.checkpoints.repack import Report, TypeRow, check_apart, shard_name, tensor_bytes
from ladder.checkpoints.shards import ShardSet, open_shards, read_json
from ladder.checkpoints.writer import (
    ShardWriter,
    carried_files,
    carry,
    check_destination,
    new_folder,
    require_space,
    write_json,
)
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.nn.convert import SKIPPED, check_skip, is_skipped
from ladder.quantization import METHODS, quantize
from ladder.types import TType, with_defaults
from ladder.weight import Weight

_FLOATS = ("F16", "BF16", "F32", "F64")
_DEFAULT_GROUP = 128


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    weight_type: str = "uint4",
    *,
    group_size: int | None = None,
    symmetric: bool | None = None,
    method: str = "search",
    skip: tuple[str, ...] = SKIPPED,
    force: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Write the model folder ``src`` as the ladder folder ``dst``, every Linear quantised.

    Tensors are streamed, other files are carried over, and ``dst`` appears when it is whole, as
    with :func:`ladder.checkpoints.repack.repack`.

    Args:
        weight_type, symmetric, method: as :func:`ladder.quantize`.
        group_size: as there; an element name alone takes groups of 128.
        skip: modules to leave as they are, as :func:`ladder.convert`; each must name one.
        force: replace an existing ``dst``.
        progress: called with (module, done, count) after each module.
    Raises:
        InvalidArgument: arguments out of range, ``dst`` exists, or a weight is not finite.
        CheckpointError: ``src`` is damaged or quantised already.
        Unsupported: transformers, which knows the model's Linear modules, is not installed.
    """
    start = time.perf_counter()
    if method not in METHODS:
        raise InvalidArgument(f'method is "{method}", not one of {", ".join(METHODS)}')
    folder, destination = Path(src), Path(os.path.abspath(dst))
    if not folder.is_dir():
        raise InvalidArgument(f"{folder} is not a folder")
    check_apart(folder, destination)
    check_destination(destination, force=force)
    config = read_json(folder / "config.json")
    if config.get("quantization_config") is not None:
        found = config["quantization_config"].get("quant_method")
        raise CheckpointError(f"{folder} is quantised already, quant_method {found!r}")
    ttype = _type(weight_type, group_size, symmetric)
    shards = open_shards(folder)
    linears = _linear_modules(folder)
    check_skip(skip, linears, str(folder))
    modules = [name for name in linears if not is_skipped(name, skip)]
    modules = [name for name in modules if f"{name}.weight" in shards.home]
    if not modules:
        raise CheckpointError(f"{folder}: no Linear module is left to convert after skip {skip}")
    shapes = {name: _shape(shards, name) for name in modules}
    files = carried_files(folder, shards.files | {"config.json"})
    report = Report(
        str(folder),
        str(dst),
        "none",
        modules=len(modules),
        files_carried=len(files),
        bytes_before=shards.nbytes,
        tensors_carried=len(shards.home) - len(modules),
    )
    quantised = StoredConfig(
        weight_type=str(ttype),
        types=definitions([str(ttype)]),
        modules_to_not_convert=tuple(name for name in linears if name not in modules),
    )
    with new_folder(destination, force=force) as temporary:
        _write(shards, shapes, ttype, method, temporary, report, progress)
        carry(folder, temporary, files)
        write_json(temporary / "config.json", config | quantised.entries())
    report.seconds = time.perf_counter() - start
    return report


def _type(weight_type: str, group_size: int | None, symmetric: bool | None) -> TType:
    plain = with_defaults(weight_type)
    if plain.bits > 8:
        raise InvalidArgument(f"type {plain} has {plain.bits} bits; convert writes 1 to 8")
    if group_size is None and plain == with_defaults(plain.element.name):
        group_size = _DEFAULT_GROUP
    return with_defaults(weight_type, group_size=group_size, symmetric=symmetric)


def _linear_modules(folder: Path) -> list[str]:
    """Names of the nn.Linear modules of the model that config.json describes."""
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise Unsupported(
            "convert needs transformers to know a model's Linear modules: "
            + install_command("transformers")
        ) from None
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, OSError) as error:
        raise CheckpointError(f"{folder}/config.json: {error}") from error
    return [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)]


def _shape(shards: ShardSet, module: str) -> tuple[int, int]:
    entry = shards.entry(f"{module}.weight")
    if len(entry.shape) != 2 or entry.dtype not in _FLOATS:
        raise CheckpointError(
            f"{module}.weight is {entry.dtype} {list(entry.shape)}, not a floating-point matrix"
        )
    return entry.shape[0], entry.shape[1]


def _described(n: int, k: int, ttype: TType) -> dict[str, tuple[str, tuple[int, ...]]]:
    names = {dtype: name for name, dtype in TORCH_DTYPES.items()}
    parts: dict[str, tuple[str, tuple[int, ...]]] = {"qweight": ("I32", (n, ttype.words(k)))}
    if ttype.scale_dtype is not None:
        parts["scales"] = (names[ttype.scale_dtype], (ttype.block_rows(n), ttype.groups(k)))
    zeros = ttype.zeros_shape(n, k)
    if ttype.zeros_dtype is not None and zeros is not None:
        parts["zeros"] = (names[ttype.zeros_dtype], zeros)
    if ttype.scale2 is not None:
        parts["scale2"] = ("F32", (1,))
    return parts


def _write(
    shards: ShardSet,
    shapes: dict[str, tuple[int, int]],
    ttype: TType,
    method: str,
    temporary: Path,
    report: Report,
    progress: Callable[[str, int, int], None] | None,
) -> None:
    described: list[dict[str, Any]] = [{} for _ in shards.shards]
    for name, home in shards.home.items():
        module = name.removesuffix(".weight")
        if name.endswith(".weight") and module in shapes:
            for part, what in _described(*shapes[module], ttype).items():
                described[home][f"{module}.{part}"] = what
        else:
            entry = shards.entry(name)
            described[home][name] = (entry.dtype, entry.shape)
    total = sum(_nbytes(*what) for tensors in described for what in tensors.values())
    require_space(temporary, total)
    report.bytes_after, report.shards = total, len(shards.shards)
    row = report.types.setdefault(str(ttype), TypeRow())
    weight_map: dict[str, str] = {}
    for index, shard in enumerate(shards.shards):
        file = shard_name(index + 1, len(shards.shards))
        weight_map |= dict.fromkeys(described[index], file)
        with ShardWriter(temporary / file, described[index]) as writer:
            for name in (name for name, home in shards.home.items() if home == index):
                module = name.removesuffix(".weight")
                if name.endswith(".weight") and module in shapes:
                    weight = _quantized(shards.read([name])[name], ttype, method, name)
                    for part, tensor in weight.tensors().items():
                        writer.write(f"{module}.{part}", tensor_bytes(tensor))
                    row.modules, row.bytes = row.modules + 1, row.bytes + weight.nbytes
                    row.weights += weight.shape[0] * weight.shape[1]
                    if progress is not None:
                        progress(module, row.modules, len(shapes))
                else:
                    at = 0
                    for data in shard.chunks(name):
                        writer.write(name, data, at)
                        at += data.nbytes
    if len(shards.shards) > 1:
        fields = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(temporary / "model.safetensors.index.json", fields)


def _quantized(tensor: Tensor, ttype: TType, method: str, name: str) -> Weight:
    try:
        return quantize(tensor, ttype, method=method)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count * DTYPE_BITS[dtype] // 8
