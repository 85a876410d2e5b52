# SPDX-License-Identifier: Apache-2.0
"""What of a model in memory is to be quantised, to which types, and what is left and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.arguments import check_model
from ladder.nn.layer_types import LayerTypes, every_name, layer_types
from ladder.nn.mixtures import FoundExperts
from ladder.nn.outputs import always_ties, heads
from ladder.nn.select import (
    PREPARED,
    Found,
    Left,
    dense_weight,
    entries_of,
    is_linear,
    survey,
)
from ladder.nn.select_conv import convolutions as convolutions_of
from ladder.nn.select_conv import matrix_of
from ladder.nn.select_embedding import embeddings as embeddings_of
from ladder.nn.select_embedding import kept_heads
from ladder.ops import activations
from ladder.types import TType


@dataclass(frozen=True)
class Targets:
    """Linear layers, then experts, then convolutions, then embeddings to be quantised, their types,
    and the rest."""

    layers: list[Found | FoundExperts]
    types: LayerTypes
    left: dict[str, Left]
    heads: frozenset[str]  #: of ``layers``, the names of output embeddings that may be tied
    untied: frozenset[str]  #: names of output embeddings that keep the weight of an input embedding


def targets(
    model: nn.Module,
    weight_type: str | TType,
    group_size: int | None,
    symmetric: bool | None,
    *,
    types: Mapping[str, str | TType] | None,
    skip: Iterable[str] | None,
    activation_type: str | None,
    convolutions: bool,
    head: bool,
    embeddings: bool = False,
) -> Targets:
    """What :func:`ladder.convert` replaces when it is given these arguments, which may raise as it
    says. Changes nothing."""
    check_dense(model)
    if is_linear(model):
        raise InvalidArgument("model is a linear layer itself: use ladder.Linear.from_linear")
    if convolutions and isinstance(model, nn.Conv2d):
        raise InvalidArgument("model is a convolution itself: use ladder.Conv2d.from_float")
    if embeddings and isinstance(model, nn.Embedding):
        raise InvalidArgument("model is an embedding itself: use ladder.Embedding.from_embedding")
    chosen = layer_types(weight_type, group_size, symmetric, types)
    skip = None if skip is None else entries_of("skip", skip)
    untied = heads_of(model) if head else ()
    found = survey(model, skip, untied=untied)
    layers: list[Found | FoundExperts] = [*found.found, *found.experts]
    left = found.left
    if convolutions:
        packed, dense = convolutions_of(model, skip, chosen)
        for conv in packed:
            left.pop(f"{conv.name}.weight", None)
        left.update(dense)
        layers.extend(packed)
    kept: frozenset[str] = frozenset()
    if embeddings:
        rows, dense = embeddings_of(model, skip, chosen)
        for embedding in rows:
            left.pop(f"{embedding.name}.weight", None)
        left.update(dense)
        kept, reasons = kept_heads(model, rows, left)
        left.update(reasons)
        layers.extend(rows)
    chosen.check_named(every_name(layers), left, () if head else heads(model))
    for layer in layers:
        if why := _superblock_objection(layer, chosen):
            raise InvalidArgument(f"{layer.name}: {why}")
        if why := _activation_objection(layer, chosen, activation_type):
            raise Unsupported(f"{layer.name}: {why}")
    names = {name for layer in layers for name in layer.names}
    packed_heads = frozenset(names.intersection(untied))
    return Targets(layers, chosen, left, packed_heads, kept)


def heads_of(model: nn.Module) -> set[str]:
    """The names of the output embeddings of ``model``.

    Raises:
        InvalidArgument: it has none, or says so of none.
        Unsupported: its configuration ties them whatever is said.
    """
    found = heads(model)
    if not found:
        raise InvalidArgument(
            "head is given, and the model says of no module that it is an output embedding "
            "(get_output_embeddings of transformers' models)"
        )
    ties = getattr(model, "all_tied_weights_keys", None) or {}
    if any(f"{name}.weight" in ties for name in found) and always_ties(model):
        raise Unsupported(
            f"head is given, and {type(model).__name__} is loaded with its output embedding tied "
            "to the input embedding, whatever its configuration says (tie_word_embeddings): leave "
            "out head"
        )
    return found


def check_dense(model: nn.Module) -> None:
    """Raise InvalidArgument unless ``model`` is a module, none of whose layers is being trained by
    :mod:`ladder.qat`."""
    check_model(model)
    for name, module in model.named_modules():
        if PREPARED in vars(module):
            raise InvalidArgument(
                f'layer "{name}" is prepared for training: ladder.qat.convert packs what '
                "ladder.qat.prepare has prepared, and ladder.qat.restore makes it dense"
            )


def _superblock_objection(layer: Found | FoundExperts, types: LayerTypes) -> str:
    """Why the layer's weights have no such superblocks as their ``types`` want; or ""."""
    if isinstance(layer, FoundExperts):
        sizes = [*zip(types.of_stacks(layer), layer.layout.shape[1:], strict=True)]
    else:
        module: Any = layer.module
        sizes = [(types.of_layer(layer), matrix_of(module, module.weight).shape[1])]
    return next((why for ttype, k in sizes if (why := ttype.superblock_objection(k))), "")


def _activation_objection(
    layer: Found | FoundExperts, types: LayerTypes, activation_type: str | None
) -> str:
    """Why the layer's weights, of their ``types``, take no such activations; "" when they do."""
    device = next(layer.module.parameters()).device.type
    if isinstance(layer, FoundExperts):
        sizes = zip(types.of_stacks(layer), layer.layout.shape[1:], strict=True)
    elif isinstance(layer.module, (nn.Conv2d, nn.Embedding)):
        return ""
    else:
        sizes = zip((types.of_layer(layer),), dense_weight(layer.module).shape[1:], strict=True)
    every = (activations.objection(activation_type, ttype, k, device) for ttype, k in sizes)
    return next((why for why in every if why), "")
