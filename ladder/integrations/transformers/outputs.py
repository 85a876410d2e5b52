# SPDX-License-Identifier: Apache-2.0
"""Which modules of a model of transformers stay dense where nobody says."""

from __future__ import annotations

from typing import Any


def outputs(model: Any) -> list[str]:
    """The names of the output embedding and of what is tied to it or to anything else.

    transformers' own list has the module of the last parameter, too, whatever that is: the head of
    a model that has no method for it, or the projection of CLIP, or a layer in the middle.
    """
    head = model.get_output_embeddings()
    names = {name for name, module in model.named_modules() if module is head and head is not None}
    ties: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    tied = (key.removesuffix(".weight") for each in ties.items() for key in each)
    return sorted(names.union(tied))
