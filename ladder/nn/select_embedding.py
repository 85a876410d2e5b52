# SPDX-License-Identifier: Apache-2.0
"""Which embeddings of a model can be packed, and why the others are not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import cast

from torch import Tensor, nn

from ladder.errors import InvalidArgument
from ladder.nn.layer_types import LayerTypes
from ladder.nn.outputs import REASON, heads, inputs
from ladder.nn.packed import PackedModule
from ladder.nn.read_weights import goes_on, reads_rows
from ladder.nn.select import (
    STATE_HOOKS,
    TIED,
    Found,
    Left,
    covers,
    entries_of,
    every_module,
    identity,
)
from ladder.types import TType
from ladder.weight import PARTS

#: Attributes of packed embeddings that those of a subclass of nn.Embedding would hide.
_TAKEN = frozenset({
    *PARTS, "image", "in_features", "out_features", "weight_type", "dtype", "packed_weight",
})  # fmt: skip


def rows_objection(ttype: TType) -> str:
    """Why embeddings cannot be of ``ttype``; "" when they can."""
    if ttype.rows == 1:
        return ""
    block = f"{ttype.rows} rows" if ttype.rows else "all rows"
    return (
        f"type {ttype} has a scale for {block}, and rows of an embedding are read one by one: give "
        "it a type with groups, or one scale for each row"
    )


def embeddings(
    model: nn.Module,
    skip: Iterable[str] | None,
    types: LayerTypes,
    *,
    loaded: bool = True,
    option: str = "skip",
) -> tuple[tuple[Found, ...], dict[str, Left]]:
    """The input embeddings of ``model`` that can be packed; and of all other embeddings, by the
    name of their weight, why not. Those that are packed already are none of both.

    Args:
        skip: modules to leave, as :func:`ladder.nn.select.covers` reads them.
        types: that they would have.
        loaded, option: as :func:`ladder.nn.select.survey`.
    Raises:
        InvalidArgument: the model has no input embedding, or its type has a scale for several
            rows, naming it.
    """
    wanted = inputs(model)
    if not wanted:
        raise InvalidArgument(
            "embeddings is given, and the model has no input embedding that is an nn.Embedding "
            "(get_input_embeddings of transformers' models, else any module)"
        )
    names, modules = every_module(model)
    tied = _tied(model, names, modules)
    kinds = {type(module) for module in modules.values()}
    entries = () if skip is None else entries_of(option, skip)
    found, left, counted = [], {}, set()
    for key, module in modules.items():
        if not isinstance(module, nn.Embedding) or isinstance(module, PackedModule):
            continue
        every, why = names[key], ""
        if any(covers(entry, name) for entry in entries for name in every):
            why = f"named by {option}"
        elif not wanted.intersection(every):
            why = "an embedding, but not the input embedding of its model"
        why = why or tied.get(key, "") or objection(module, loaded) or _readers(kinds, every)
        if why:
            weight = module._parameters.get("weight")
            count = 0
            if isinstance(weight, Tensor) and identity(weight) not in counted:
                counted.add(identity(weight))
                count = weight.numel()
            left[f"{every[0]}.weight".lstrip(".")] = Left(why, count)
            continue
        layer = Found(tuple(every), module)
        if blocks := rows_objection(types.of_layer(layer)):
            raise InvalidArgument(f"{layer.name}: {blocks} (types)")
        found.append(layer)
    return tuple(found), left


def kept_heads(
    model: nn.Module, found: Iterable[Found], left: Mapping[str, Left]
) -> tuple[frozenset[str], dict[str, Left]]:
    """Of the output embeddings that are ``left`` dense, those tied to embeddings that were
    ``found``, whose weight they keep as their own: all their names, and for each why it stays
    dense."""
    wanted = {id(layer.module) for layer in found}
    names, modules = every_module(model)
    outputs, kept, why = heads(model), set(), {}
    for one, other in _pairs(model, names, modules):
        every = names[other]
        if one in wanted and outputs.intersection(every) and every[0] in left:
            reason = left[every[0]].reason
            if reason.startswith(TIED):
                reason = REASON
            weight = cast(Tensor, modules[other].weight)
            kept.update(every)
            why[every[0]] = Left(reason, weight.numel())
    return frozenset(kept), why


def objection(embedding: nn.Embedding, loaded: bool) -> str:
    """Why an embedding cannot be packed as it is now; "" if it can."""
    kind = type(embedding)
    if hasattr(embedding, "parametrizations"):
        return "its weight is parametrized"
    if kind is not nn.Embedding and not goes_on(kind, nn.Embedding):
        return f"{kind.__name__} does more with its weight than nn.Embedding"
    if "forward" in vars(embedding) and not hasattr(embedding, "_hf_hook"):
        return "its forward has been replaced"
    weight = embedding._parameters.get("weight")
    if type(weight) is not nn.Parameter:
        kinds = "computed" if weight is None else f"a {type(weight).__name__}"
        return f"its weight is {kinds}"
    if weight.dim() != 2 or not weight.is_floating_point():
        return f"its weight is {weight.dtype} {list(weight.shape)}, not a floating-point matrix"
    if weight.is_meta and loaded:
        return "its weight is on the meta device: offloaded, or not loaded"
    if embedding.max_norm is not None:
        return "each call changes its weight (max_norm)"
    if embedding.sparse:
        return "it is trained with sparse gradients (sparse)"
    if any(getattr(embedding, hooks, None) for hooks in STATE_HOOKS):
        return "it has hooks on its state_dict"
    more = {*vars(embedding), *embedding._buffers, *embedding._parameters, *embedding._modules}
    if taken := sorted(_TAKEN.intersection(more)):
        return f"it has {', '.join(taken)}, as packed embeddings have"
    return ""


def _readers(kinds: Iterable[type[nn.Module]], names: Iterable[str]) -> str:
    """Which of the classes of a model reads elements of the weight of an embedding; "" for none."""
    last = {name.rpartition(".")[2] for name in names}
    found = sorted(kind.__name__ for kind in kinds for name in last if reads_rows(kind, name))
    return f"{found[0]} reads its weight" if found else ""


def _pairs(
    model: nn.Module, names: Mapping[int, Collection[str]], modules: Mapping[int, nn.Module]
) -> Iterable[tuple[int, int]]:
    """Every two modules that have one weight, or will have, in both orders."""
    holders: dict[object, list[int]] = {}
    for key, module in modules.items():
        weight = module._parameters.get("weight")
        if weight is not None and not nn.parameter.is_lazy(weight):
            holders.setdefault(identity(weight), []).append(key)
    by_name = {name: key for key, every in names.items() for name in every}
    ties: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    said = [
        [by_name[name.removesuffix(".weight")] for name in pair]
        for pair in ties.items()
        if all(name.removesuffix(".weight") in by_name for name in pair)
    ]
    for keys in (*holders.values(), *said):
        yield from ((one, other) for one in keys for other in keys if one != other)


def _tied(
    model: nn.Module, names: Mapping[int, Collection[str]], modules: Mapping[int, nn.Module]
) -> dict[int, str]:
    """Why modules cannot be packed alone, because something else than an output embedding has their
    weight."""
    outputs = heads(model)
    return {
        one: f"{TIED} {next(iter(names[other]))}"
        for one, other in _pairs(model, names, modules)
        if not outputs.intersection(names[other])
    }
