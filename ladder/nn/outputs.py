# SPDX-License-Identifier: Apache-2.0
"""Which modules of a model stay dense where nobody says."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from torch import nn

#: The name by which an output embedding is known in models that do not say which module it is.
LM_HEAD = "lm_head"
#: Why they stay dense.
#: The methods by which models of transformers tell their input embeddings.
_INPUTS = ("get_input_embeddings", "get_per_layer_input_embeddings")
REASON = "an output embedding, dense unless asked for"
KEPT = "its model keeps it in float32 (_keep_in_fp32_modules)"


def outputs(model: nn.Module) -> set[str]:
    """The names of the output embeddings of ``model`` and of its parts, as
    ``get_output_embeddings`` of transformers' models gives them, and of what is tied to them or to
    anything else. Where no part has any: those of modules called "lm_head", and modules in these.
    """
    # transformers' own list has the module of the last parameter, too, whatever that is: the head
    # of a model that has no method for it, or the projection of CLIP, or a layer in the middle.
    heads = {id(head) for part in model.modules() if (head := _head(part)) is not None}
    names = [*model.named_modules(remove_duplicate=False)]
    found = {name for name, module in names if id(module) in heads}
    if not found:
        found = {name for name, _ in names if f".{LM_HEAD}." in f".{name}."}
    ties: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    return found | {key.removesuffix(".weight") for each in ties.items() for key in each}


def heads(model: nn.Module) -> set[str]:
    """All names of the output embeddings of ``model`` and of its parts, as
    ``get_output_embeddings`` gives them, but those that are the input embedding itself."""
    found = {id(head) for part in model.modules() if (head := _head(part)) is not None}
    every = model.named_modules(remove_duplicate=False)
    return {
        name for name, each in every if id(each) in found and not isinstance(each, nn.Embedding)
    }


def inputs(model: nn.Module) -> set[str]:
    """All names of the input embeddings of ``model`` and of its parts, as ``get_input_embeddings``
    of transformers' models gives them, and ``get_per_layer_input_embeddings`` of Gemma's; those
    that are packed included. Where no part has such a method: of every ``nn.Embedding``."""
    every = [*model.named_modules(remove_duplicate=False)]
    asked = [part for _, part in every if hasattr(part, "get_input_embeddings")]
    given = [_called(part, method) for part in asked for method in _INPUTS]
    found = {id(each) for each in given if each is not None}
    return {
        name
        for name, each in every
        if isinstance(each, nn.Embedding) and (id(each) in found or not asked)
    }


def always_ties(model: Any) -> bool:
    """Whether the configuration of ``model`` says that embeddings are tied even where it is made of
    values that say otherwise, as T5's."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return False
    values = config.to_dict()
    for each in (values, values.get("text_config")):  # either may have the word
        if isinstance(each, dict):
            each["tie_word_embeddings"] = False
    return getattr(type(config).from_dict(values), "tie_word_embeddings", False) is True


def untie(model: nn.Module, names: Collection[str]) -> dict[str, tuple[str, int]]:
    """Note that the modules ``names``, which may have been tied to others, are so no more: in
    what transformers knows of ties, and in the configuration, which is saved.

    The entry of the configuration is for all ties of a model, so that other parameters (the bias of
    BERT's head, the embeddings of BART's encoder) become copies of their own, too.

    Returns:
        These parameters: of what they are copies, and how many numbers they have.
    """
    copies: dict[str, tuple[str, int]] = {}
    keys = {f"{name}.weight" for name in names}
    for holder, part in model.named_modules():
        ties = getattr(part, "all_tied_weights_keys", None)
        if not isinstance(ties, dict):
            continue
        prefix = f"{holder}." if holder else ""
        left = {key: at for key, at in ties.items() if not keys & {prefix + key, prefix + at}}
        if left == ties:
            continue
        part.all_tied_weights_keys = {}
        for key, at in left.items():
            if count := _give_own(part, key, at):
                copies[prefix + key] = prefix + at, count
        config = getattr(part, "config", None)
        both: tuple[Any, ...] = (config, getattr(config, "text_config", None))
        for each in both:
            if getattr(each, "tie_word_embeddings", False):
                each.tie_word_embeddings = False
    return copies


#: Why a parameter is there that was not, with a name.
COPIED = "a copy, because the output embedding is no longer tied to"


def _give_own(model: nn.Module, key: str, at: str) -> int:
    """Copy parameter ``key`` of ``model`` if it is the parameter ``at``; the numbers copied."""
    holder, _, name = key.rpartition(".")
    other, _, of = at.rpartition(".")
    try:
        module, its = model.get_submodule(holder), model.get_submodule(other)
    except AttributeError:
        return 0
    parameter = module._parameters.get(name)
    if parameter is not None and parameter is its._parameters.get(of):
        own = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        module._parameters[name] = own
        return own.numel()
    return 0


def kept(model: nn.Module) -> set[str]:
    """The names of modules that models of diffusers keep in float32 whatever the dtype of the rest:
    those of time embeddings, whose small differences count in every layer."""
    found: set[str] = set()
    kind = getattr(sys.modules.get("diffusers.models.modeling_utils"), "ModelMixin", None)
    if kind is None:  # not imported, so that no model can be one of its
        return found
    for holder, part in model.named_modules():
        entries = getattr(part, "_keep_in_fp32_modules", None) if isinstance(part, kind) else None
        words = {entries} if isinstance(entries, str) else set(entries or ())
        for name, _ in part.named_modules(remove_duplicate=False) if words else ():
            if words.intersection(name.split(".")):
                found.add(f"{holder}.{name}".lstrip("."))
    return found


def _head(part: Any) -> nn.Module | None:
    return _called(part, "get_output_embeddings")


def _called(part: Any, method: str) -> nn.Module | None:
    try:
        found = getattr(part, method)()
    except (AttributeError, NotImplementedError):
        return None
    return found if isinstance(found, nn.Module) else None
