# SPDX-License-Identifier: Apache-2.0
"""What config.json says of a model: its layers as they are now. A layer may have been packed,
changed or made dense after the model was loaded."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.model import file_names
from ladder.errors import Unsupported
from ladder.nn.batched import BatchedLinear
from ladder.nn.conv import Conv2d
from ladder.nn.dense_experts import STACKS
from ladder.nn.embedding import Embedding
from ladder.nn.experts import Experts
from ladder.nn.linear import Linear
from ladder.nn.offered import wish_of
from ladder.nn.select import packable
from ladder.nn.stack import PackedStack

_PACKED = (Linear, Experts, Conv2d, Embedding, BatchedLinear)


def has_packed(model: nn.Module) -> bool:
    """Whether a module of ``model`` is packed."""
    return any(isinstance(module, _PACKED) for module in model.modules())


def describe_quantised(model: nn.Module, wanted: StoredConfig) -> StoredConfig:
    """What config.json will say of ``model``, which has been quantised as ``wanted`` says."""
    return StoredConfig.describing(
        packed_types(model),
        map(file_names(model), packable(model)),
        usual=wanted.weight_type,
        activation_type=wanted.activation_type,
        convolutions=_filters(model),
        embeddings=_embeddings(model),
    )


def packed_types(model: nn.Module) -> dict[str, str]:
    """tTypes of linear layers, stacks of experts, convolutions and embeddings, by their names in
    files."""
    called = file_names(model)
    return {
        called(name): str(module.weight_type)
        for name, module in model.named_modules()
        if isinstance(module, (Linear, PackedStack, Conv2d, Embedding))
    }


def _filters(model: nn.Module) -> dict[str, tuple[int, ...]]:
    called = file_names(model)
    return {
        called(name): tuple(module.weight.shape)
        for name, module in model.named_modules()
        if isinstance(module, Conv2d)
    }


def _embeddings(model: nn.Module) -> tuple[str, ...]:
    called = file_names(model)
    return tuple(
        called(name) for name, module in model.named_modules() if isinstance(module, Embedding)
    )


def only(values: Iterable[str | None]) -> str | None:
    """What all ``values`` are; None where they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def describe_model(model: nn.Module, before: StoredConfig | None = None) -> StoredConfig:
    """What config.json has to say of ``model`` as it is now.

    Args:
        before: what it said. It is returned where it says nothing else of the packed layers.
    Raises:
        Unsupported: a packed layer that model folders do not have, naming it.
    """
    called = file_names(model)
    types: dict[str, str] = {}
    rounded: dict[str, str | None] = {}
    filters: dict[str, tuple[int, ...]] = {}
    for name, module in model.named_modules():
        if isinstance(module, BatchedLinear):
            raise Unsupported(
                f"{name} is a ladder.BatchedLinear, which model folders do not have: save the "
                "state_dict, or put the dense module in its place"
            )
        if isinstance(module, Conv2d):
            types[called(name)] = str(module.weight_type)
            filters[called(name)] = tuple(module.weight.shape)
        elif isinstance(module, Embedding):
            types[called(name)] = str(module.weight_type)
        elif isinstance(module, Linear):
            types[called(name)] = str(module.weight_type)
            rounded[called(name)] = wish_of(module)
        elif isinstance(module, Experts):
            stacks = {called(f"{name}.{s}"): getattr(module, s) for s in STACKS.values()}
            types |= {stored: str(stack.weight_type) for stored, stack in stacks.items()}
            rounded |= _of_stacks(wish_of(module), [*stacks], before)
    dense = [called(name) for name in packable(model)]
    rows = _embeddings(model)
    if before is None:
        return StoredConfig.describing(
            types, dense, activation_types=rounded, convolutions=filters, embeddings=rows
        )
    same = before.convolutions == filters and {*before.embeddings} == {*rows}
    if not types or (same and _says(before, types, rounded, dense)):
        return before
    return StoredConfig.describing(
        types,
        dense,
        usual=before.weight_type,
        source=before.source,
        activation_types=rounded,
        convolutions=filters,
        embeddings=rows,
    )


def _says(
    config: StoredConfig, types: dict[str, str], rounded: dict[str, str | None], dense: list[str]
) -> bool:
    """Whether ``config`` says so of the packed layers, and gives no dense one a type by name."""
    if config.modules.keys() & {*dense}:
        return False
    if any(config.type_of(name) != text for name, text in types.items()):
        return False
    return all(config.activation_type_of(name) == wanted for name, wanted in rounded.items())


def _of_stacks(
    wanted: str | None, stacks: list[str], before: StoredConfig | None
) -> dict[str, str | None]:
    """Experts have one wish; what a folder says of their stacks one by one is kept."""
    said = {} if before is None else {name: before.activation_type_of(name) for name in stacks}
    return said if said and only(said.values()) == wanted else dict.fromkeys(stacks, wanted)
