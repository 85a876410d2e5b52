# SPDX-License-Identifier: Apache-2.0
"""LoRA files for FLUX on packed layers.

Before adapters are put on the layers (:mod:`ladder.integrations.peft`), diffusers compares the
columns of each with the weight in the ``state_dict`` of the transformer, where packed layers have
none. So ladder wraps that comparison, and makes it itself for packed layers.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from ladder.errors import Unsupported
from ladder.integrations.folders.checkpoint import submodule
from ladder.nn.packed import PackedModule

_NAME = "_maybe_expand_lora_state_dict"
_WRAPPED = "_ladder_knows_packed_layers"
_A = ".lora_A.weight"


def register() -> None:
    """Wrap the comparison. Doing it again is harmless."""
    kind: Any = sys.modules["diffusers.loaders.lora_pipeline"].FluxLoraLoaderMixin
    theirs = getattr(getattr(kind, _NAME, None), "__func__", None)
    if theirs is not None and not getattr(theirs, _WRAPPED, False):
        setattr(kind, _NAME, classmethod(_with_packed_layers(theirs)))


def _with_packed_layers(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def expand(cls: Any, transformer: Any, lora_state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        prefix, packed = f"{cls.transformer_name}.", {}
        for key, weight in lora_state_dict.items():
            if key.startswith(prefix) and key.endswith(_A):
                name = key[len(prefix) : -len(_A)]
                layer = submodule(transformer, name)
                layer = getattr(layer, "base_layer", layer)
                if isinstance(layer, PackedModule):
                    packed[key] = _fitted(name, weight, layer.in_features)
        rest = {key: weight for key, weight in lora_state_dict.items() if key not in packed}
        rest = theirs(cls, transformer, rest)
        # The first key tells diffusers how the others are spelled.
        return {key: packed[key] if key in packed else rest[key] for key in lora_state_dict}

    setattr(expand, _WRAPPED, True)
    return expand


def _fitted(name: str, weight: Tensor, k: int) -> Tensor:
    """``lora_A`` of a packed layer with K columns, those that it lacks as zeros."""
    if weight.shape[1] > k:
        raise Unsupported(
            f"the adapter of {name} takes {weight.shape[1]} inputs, and {name}, which is packed, "
            f"{k}: diffusers makes dense layers wider for control adapters, so name this one in "
            "modules_to_not_convert (skip of ladder.convert)"
        )
    return pad(weight, (0, k - weight.shape[1]))
