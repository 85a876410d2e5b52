# SPDX-License-Identifier: Apache-2.0
"""Packed embeddings of ladder folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.layer import Stored
from ladder.checkpoints.model import renamer
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.folders.checkpoint import parts_by_module, submodule
from ladder.integrations.folders.convolutions import type_in, weight_of_headers
from ladder.integrations.folders.loading import NotesParts, check_loaded, keep_dtypes, require
from ladder.nn.embedding import Embedding, packed_class
from ladder.nn.linear import Linear
from ladder.nn.packed import PackedModule
from ladder.nn.select_embedding import objection, rows_objection
from ladder.weight import PARTS


class LoadingEmbedding(NotesParts, Embedding):
    """A :class:`ladder.Embedding` until ``finish``, which checks it and makes it a plain one."""

    def finish(self, name: str) -> None:
        """Raise CheckpointError naming a tensor that was not loaded or does not fit."""
        require(self, name)
        keep_dtypes(self)
        self.__dict__.pop("_given", None)
        made: Any = self
        made.__class__ = packed_class(self._dense_class)
        check_loaded(self, name)


def swap_embeddings(
    model: Any, headers: dict[str, Stored], config: StoredConfig, *, cut: bool
) -> dict[str, Stored]:
    """As :func:`ladder.integrations.transformers.experts.swap_experts`, of packed embeddings.

    Raises:
        CheckpointError: an embedding that lacks a part, does not fit the model or its type, is tied
            to another module, or of which the config does not speak.
        Unsupported: ``cut``, or an embedding that may do more than giving rows.
    """
    if not any(isinstance(module, nn.Embedding) for module in model.modules()):
        return headers
    rename, _ = renamer(model)
    stored = parts_by_module(headers, PARTS)
    taken: set[str] = set()
    for name in sorted(stored.keys() | {*config.embeddings}):
        target = rename(f"{name}.weight").removesuffix(".weight")
        embedding = submodule(model, target)
        if not isinstance(embedding, nn.Embedding):
            if name in config.embeddings and embedding is not None:
                raise CheckpointError(
                    f"quantization_config.embeddings has {name}, and {target} of the model is a "
                    f"{type(embedding).__name__}"
                )
            continue  # not of this model, or no embedding
        parts = stored.get(name, {})
        _check(model, name, parts, target, embedding, config, cut=cut)
        shape = (embedding.num_embeddings, embedding.embedding_dim)
        weight = weight_of_headers(name, parts, shape, type_in(config, name))
        model.set_submodule(target, LoadingEmbedding.in_place_of(embedding, weight))
        taken |= {f"{name}.{part}" for part in parts}
    return {name: header for name, header in headers.items() if name not in taken}


def swap_embeddings_by_config(model: Any, config: StoredConfig, *, cut: bool) -> None:
    """The same where the files cannot be read ahead."""
    for name in config.embeddings:
        embedding = submodule(model, name)
        if isinstance(embedding, nn.Embedding) and not isinstance(embedding, PackedModule):
            _check(model, name, {}, name, embedding, config, cut=cut)
            sizes = (embedding.embedding_dim, embedding.num_embeddings)
            room = Linear(*sizes, False, type_in(config, name), device="meta")
            packed = LoadingEmbedding.in_place_of(embedding, room.packed_weight)
            model.set_submodule(name, packed)


def _check(
    model: Any,
    name: str,
    parts: Mapping[str, Stored],
    target: str,
    embedding: nn.Embedding,
    config: StoredConfig,
    *,
    cut: bool,
) -> None:
    """Compare what the config says of one embedding with the model's, which it calls
    ``target``."""
    if name not in config.embeddings:
        raise CheckpointError(
            f"{name}.{next(iter(parts))} is there, but quantization_config.embeddings does not "
            f"have {name}"
        )
    if cut:
        raise Unsupported(
            f"{name} is a packed embedding, which cannot be in a model that is cut over processes: "
            "load without tp_plan, with device_map say"
        )
    if why := objection(embedding, loaded=False):
        raise Unsupported(f"{name} is packed, and ladder cannot be in the place of {target}: {why}")
    if why := rows_objection(type_in(config, name)):
        raise CheckpointError(f"{name}: {why}")
    ties: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    for pair in ties.items():
        modules = [each.removesuffix(".weight") for each in pair]
        if target in modules:
            modules.remove(target)
            raise CheckpointError(
                f"{name} is a packed embedding, but the configuration ties {modules[0]} to it: "
                "tie_word_embeddings is true, and such files need false"
            )
