# SPDX-License-Identifier: Apache-2.0
"""Which quantised modules the files of a model hold, known before any tensor is loaded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ladder.checkpoints.header import merge_metadata, read_header, read_metadata
from ladder.checkpoints.layer import Stored, refuse_bare_codes, split, stored_as
from ladder.checkpoints.model import class_of, renamer
from ladder.checkpoints.shards import shards_of
from ladder.errors import CheckpointError, Unsupported
from ladder.nn.select import called_as_linear, is_linear, linears


@dataclass(frozen=True)
class StoredModule:
    """One quantised Linear. transformers may call a module otherwise than its files do."""

    name: str  #: in the model
    stored_name: str  #: in the files
    parts: dict[str, Stored]  #: what the headers say of "qweight", "scales", ..., "bias"


def read_headers(files: Iterable[str] | None) -> dict[str, Stored] | None:
    """dtype and shape of every tensor, or None when the files are not safetensors."""
    files = [str(file) for file in files or ()]
    if not files or not all(file.endswith(".safetensors") for file in files):
        return None
    tensors: dict[str, Stored] = {}
    for file in files:
        for name, entry in read_header(file).items():
            tensors[name] = stored_as(entry.dtype, entry.shape)
    return tensors


def settings_of(format: Any, fields: Mapping[str, Any], files: Iterable[str]) -> Any:
    """The Config of ``format`` (ladder.checkpoints.layer) by a ``quantization_config`` and, where
    the format asks for it, by what the files say beside their tensors."""
    settings = format.Config.from_dict(fields)
    if hasattr(settings, "with_metadata"):
        settings = settings.with_metadata(
            merge_metadata((Path(file), read_metadata(file)) for file in files)
        )
    if hasattr(settings, "with_tensors"):
        settings = settings.with_tensors(shards_of(map(Path, files)))
    return settings


def parts_by_module(
    headers: Mapping[str, Stored], parts: Collection[str]
) -> dict[str, dict[str, Stored]]:
    """What the headers say of the tensors of each module of which one is called as in ``parts``."""
    stored: dict[str, dict[str, Stored]] = {}
    for tensor, header in headers.items():
        name, part = split(tensor, parts)
        if part in parts:
            stored.setdefault(name, {})[part] = header
    return stored


def find_modules(
    model: Any,
    headers: dict[str, Stored],
    parts: Sequence[str],
    codes_part: Callable[[Mapping[str, Stored]], str | None],
) -> list[StoredModule]:
    """The Linear modules of ``model`` whose weight is stored quantised.

    Args:
        parts: names that the parts of a weight can have.
        codes_part: of those that a module has, the part that holds its codes, or should; None of a
            module that is not quantised.
    Raises:
        CheckpointError: parts without their codes, a Linear that the model ties to another weight,
            or a Linear of the base model of which the files hold nothing.
        Unsupported: modules that the model keeps in one fused tensor (experts), embeddings, and
            subclasses of nn.Linear that may compute something else.
    """
    rename, exact = renamer(model)
    ties = getattr(model, "all_tied_weights_keys", {})  # of which transformers wants parameters
    found = []
    for name, present in parts_by_module(headers, parts).items():
        codes = codes_part(present)
        if codes is None:
            if "weight" in present:
                refuse_bare_codes(name, present["weight"])
            continue
        if f"{name}.bias" in headers:
            present["bias"] = headers[f"{name}.bias"]
        target = rename(f"{name}.weight").removesuffix(".weight")
        if not _is_linear(model, target):
            _check_known(model, target, name)
            continue  # not of this model: transformers reports the keys as unexpected
        kind = type(model.get_submodule(target))
        if not called_as_linear(kind):
            raise Unsupported(
                f"{name} is quantised, and {target} a {kind.__name__}, which is more than a linear "
                "layer: ladder cannot be in its place"
            )
        if codes not in present:
            raise CheckpointError(
                f"{name}.{codes} is missing; {name} has {', '.join(sorted(present))}"
            )
        if tied := ties.get(f"{target}.weight"):
            raise CheckpointError(
                f"{name} is quantised, but the configuration ties {target} to "
                f"{tied.removesuffix('.weight')}: tie_word_embeddings is true, and such files need "
                "false"
            )
        found.append(StoredModule(target, name, present))
    dense = {rename(name) for name in headers if name.endswith(".weight")} if exact else None
    _check_complete(model, {module.name for module in found}, dense)
    return found


def submodule(model: nn.Module, name: str) -> nn.Module | None:
    """The module of that name; None where there is none."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _is_linear(model: nn.Module, name: str) -> bool:
    module = submodule(model, name)
    return module is not None and is_linear(module)


def _check_known(model: nn.Module, name: str, stored_name: str) -> None:
    """Raise Unsupported where the model has the module, but not as a linear layer."""
    if isinstance(submodule(model, name), nn.Embedding):
        raise Unsupported(
            f"{stored_name} is a quantised embedding: `ladder repack` takes it with --embeddings"
        )
    while name:
        name = name.rpartition(".")[0]
        holder = submodule(model, name)
        if holder is None:
            continue
        if any(p.dim() == 3 for p in holder.parameters(recurse=False)):
            raise Unsupported(
                f"{stored_name} is quantised on its own, but {type(model).__name__} keeps all of "
                f"{name} in one tensor, which ladder cannot fill"
            )
        return


def _check_complete(model: Any, found: set[str], dense: set[str] | None) -> None:
    """A Linear that the files do not mention would start from random numbers."""
    if dense is None:
        return
    whole = getattr(model, "base_model", model) is model
    base = "" if whole else f"{model.base_model_prefix}."
    inside = {name for name in linears(model) if name.startswith(base)}
    missing = [name for name in sorted(inside - found) if f"{name}.weight" not in dense]
    missing = [name for name in missing if not _is_output(model, name)]
    if missing and (others := _written(model)) is not None:
        # What the class that wrote the files has not is new, of which transformers tells.
        missing = [name for name in missing if name.removeprefix(base) in others]
    for name in missing:
        raise CheckpointError(f"{name} is missing: no codes of it, and no {name}.weight")


def _written(model: Any) -> set[str] | None:
    """The linear layers of the class that wrote the folder of ``model``, by their names inside of
    its base model; None where it is that class, or not known."""
    config = getattr(model, "config", None)
    kind = class_of(config) if hasattr(model, "base_model_prefix") else None
    if kind is None or kind is type(model):
        return None
    with torch.device("meta"):
        other = kind._from_config(copy.deepcopy(config))
    prefix = f"{other.base_model_prefix}."
    return {name.removeprefix(prefix) for name in linears(other)}


def _is_output(model: Any, name: str) -> bool:
    output = getattr(model, "get_output_embeddings", lambda: None)()
    return model.get_submodule(name) is output
