# SPDX-License-Identifier: Apache-2.0
"""Experts of other packages that lie in one tensor, which are taken apart while they are loaded:
ladder fills and checks them one by one (ladder.integrations.transformers.single_experts)."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor
from transformers.core_model_loading import ConversionOps, WeightConverter

from ladder.checkpoints.layer import Stored
from ladder.checkpoints.model import after_renamings
from ladder.checkpoints.source import FORMATS

_FIRST = ".experts.0."


class TakeApart(ConversionOps):
    """Makes the tensors of all experts of one tensor, whose name is made that of the first's."""

    #: See ladder.integrations.transformers.embeddings.Decode.
    hf_quantizer = True

    def convert(
        self, input_dict: dict[str, Any], *args: Any, full_layer_name: str = "", **kwargs: Any
    ) -> dict[str, Tensor]:
        (value,) = input_dict.values()
        stack = value[0] if isinstance(value, list) else value
        head, _, tail = full_layer_name.rpartition(_FIRST)
        return {f"{head}.experts.{e}.{tail}": tensor for e, tensor in enumerate(stack)}


def take_stacks(
    model: Any, headers: dict[str, Stored], method: str
) -> tuple[dict[str, Stored], list[WeightConverter]]:
    """The headers with experts one by one, and what takes stacks apart while they are loaded."""
    experts_of = getattr(FORMATS[method], "experts_of", None)
    if experts_of is None:
        return headers, []
    rename = after_renamings(model)
    kept, converters = {}, []
    for name, stored in headers.items():
        names = experts_of(name, stored)
        if not names:
            kept[name] = stored
            continue
        kept |= dict.fromkeys(names, Stored(stored.dtype, stored.shape[1:]))
        source = re.escape(rename(name))
        converters.append(WeightConverter(source, rename(names[0]), operations=[TakeApart()]))
    return kept, converters
