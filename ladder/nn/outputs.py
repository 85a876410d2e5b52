# SPDX-License-Identifier: Apache-2.0
"""Which modules of a model stay dense where nobody says."""

from __future__ import annotations

from typing import Any

from torch import nn

#: The name by which an output embedding is known in models that do not say which module it is.
LM_HEAD = "lm_head"
#: Why they stay dense.
REASON = "an output embedding, dense unless asked for"


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


def _head(part: Any) -> nn.Module | None:
    try:
        head = part.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    return head if isinstance(head, nn.Module) else None
