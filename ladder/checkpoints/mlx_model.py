# SPDX-License-Identifier: Apache-2.0
"""Whether the tensors of a folder of MLX are those of the model that transformers makes of its
config.json. mlx-lm renames, cuts, turns and leaves out tensors of some models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ladder.checkpoints.layer import Layer
from ladder.checkpoints.model import meta_model, placer
from ladder.errors import CheckpointError, Unsupported
from ladder.nn.select import is_linear


def check_source(source: Any, layers: Mapping[str, Layer]) -> None:
    """Raise Unsupported for the first tensor that has no place in the model, or another shape, for
    a packed one of no linear layer, and for one of the model that no file has. Where transformers
    is not installed, or knows no such model, nothing is known: whoever loads the folder is told.

    Args:
        source: a :class:`ladder.checkpoints.source.Source`.
        layers: every quantised module, by name.
    """
    try:
        model = meta_model(source.folder)
    except (CheckpointError, Unsupported):
        return
    place, state, kind = placer(model), model.state_dict(), type(model).__name__
    for name, layer in layers.items():
        target, pattern = place(f"{name}.weight")
        if target not in state:
            if _is_ignored(model, "unexpected", target):
                continue
            raise Unsupported(
                f"{name} has no place in {kind} of transformers: mlx-lm renames or cuts the "
                "weights of such models"
            )
        if pattern is not None:
            continue
        _check_shape(f"{name}.weight", (layer.n, layer.k), tuple(state[target].shape), kind)
        module = model.get_submodule(target.removesuffix(".weight"))
        if name in source.modules and not is_linear(module):
            raise Unsupported(
                f"{name} is quantised, and a {type(module).__name__} in {kind} of transformers: "
                "ladder packs linear layers"
            )
    for name in source.others:
        target, pattern = place(name)
        if pattern is None and target in state:
            shape = source.shards.entry(name).shape
            _check_shape(name, shape, tuple(state[target].shape), kind)
    check_whole(model, [*(f"{name}.weight" for name in layers), *source.others])


def check_whole(model: Any, names: Iterable[str], below: str = "") -> None:
    """Raise Unsupported for the first tensor of ``model`` that no tensor of the files, which are
    called ``names``, goes to.

    Args:
        below: how names begin of the tensors that must be there, beside those of the layer that
            gives the logits of tokens; others, as of a head of classes, start anew.
    """
    place, output = placer(model), _output(model)
    filled = {place(name)[0] for name in names} | {*getattr(model, "all_tied_weights_keys", {})}
    for name in model.state_dict():
        needed = name.startswith(below) or name.rpartition(".")[0] == output
        if needed and name not in filled and not _is_ignored(model, "missing", name):
            raise Unsupported(
                f"{name} of {type(model).__name__} is in no file: mlx-lm renames it or leaves it "
                "out"
            )


def _check_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...], kind: str) -> None:
    if found != wanted:
        raise Unsupported(
            f"{name} has shape {list(found)}, and {list(wanted)} in {kind} of transformers"
        )


def _output(model: Any) -> str | None:
    """The name of the layer that gives the logits of tokens."""
    layer = getattr(model, "get_output_embeddings", lambda: None)()
    return next((name for name, each in model.named_modules() if each is layer), None)


def _is_ignored(model: Any, what: str, name: str) -> bool:
    patterns = getattr(model, f"_keys_to_ignore_on_load_{what}", None) or ()
    return any(re.search(pattern, name) for pattern in patterns)
