# SPDX-License-Identifier: Apache-2.0
"""Parameters of which a folder holds nothing, because they are tied to others."""

from __future__ import annotations

from typing import Any

from ladder.checkpoints.model import file_names, renamer
from ladder.checkpoints.shards import ShardSet
from ladder.errors import CheckpointError


def tied_heads(model: Any, heads: set[str], stored: dict[str, str]) -> dict[str, str]:
    """For each of the ``heads`` of which the files hold no weight, because it is tied to another
    module, the tensor of that module."""
    found = {}
    ties: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    for name in heads:
        other = ties.get(f"{name}.weight", "").removesuffix(".weight")
        if other and name in stored and other not in stored:
            raise CheckpointError(
                f"the files have {stored[name]}.weight and none of {other}, which is tied to it: "
                "packed alone it would leave the model without"
            )
        if name not in stored and other in stored:
            found[name] = f"{stored[other]}.weight"
    return found


def other_ties(model: Any, shards: ShardSet, packed: set[str]) -> dict[str, str]:
    """What is to be written for parameters of ``model`` of which the files hold nothing, because
    they are tied to others: their names, and the tensors of the files that they are. The entry of
    the configuration that ties the output embedding is for all ties."""
    rename, called, found = renamer(model)[0], file_names(model), {}
    stored = {rename(name): name for name in shards.home}
    ties: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    for key, at in ties.items():
        holder, _, parameter = key.rpartition(".")
        home = called(holder)
        made = parameter == "weight" and home in packed
        if key not in stored and at in stored and not made:
            found[f"{home}.{parameter}"] = stored[at]
    return found
