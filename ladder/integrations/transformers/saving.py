# SPDX-License-Identifier: Apache-2.0
"""What config.json says of a model that is saved: its layers as they are then.

A layer may have been packed, changed or made dense after the model was loaded. transformers asks a
model's quantizer when it saves, and writes plain folders of models without one, whose packed layers
would be read as random numbers. transformers has no public place for that, so ladder wraps
``PreTrainedModel.save_pretrained``, which gives such a model a quantizer for that call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.model import file_names
from ladder.checkpoints.shards import remove_older_weights, times_of_weights
from ladder.errors import Unsupported
from ladder.integrations.transformers.single_experts import only
from ladder.nn.batched import BatchedLinear
from ladder.nn.conv import Conv2d
from ladder.nn.dense_experts import STACKS
from ladder.nn.experts import Experts
from ladder.nn.linear import Linear
from ladder.nn.select import packable

_PACKED = (Linear, Experts, Conv2d, BatchedLinear)
_WRAPPED = "_ladder_saves_packed_layers"


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
        elif isinstance(module, Linear):
            types[called(name)] = str(module.weight_type)
            rounded[called(name)] = _wish(module)
        elif isinstance(module, Experts):
            stacks = {called(f"{name}.{s}"): getattr(module, s) for s in STACKS.values()}
            types |= {stored: str(stack.weight_type) for stored, stack in stacks.items()}
            rounded |= _of_stacks(_wish(module), [*stacks], before)
    dense = [called(name) for name in packable(model)]
    if before is None:
        return StoredConfig.describing(types, dense, activation_types=rounded, convolutions=filters)
    if not types or (before.convolutions == filters and _says(before, types, rounded, dense)):
        return before
    return StoredConfig.describing(
        types,
        dense,
        usual=before.weight_type,
        source=before.source,
        activation_types=rounded,
        convolutions=filters,
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


def _wish(module: Linear | Experts) -> str | None:
    """What the x of a layer is to be rounded to, on devices that have kernels for it."""
    offered = module._offered_activation_type
    return module.activation_type if offered is None else offered


def _of_stacks(
    wanted: str | None, stacks: list[str], before: StoredConfig | None
) -> dict[str, str | None]:
    """Experts have one wish; what a folder says of their stacks one by one is kept."""
    said = {} if before is None else {name: before.activation_type_of(name) for name in stacks}
    return said if said and only(said.values()) == wanted else dict.fromkeys(stacks, wanted)


def register() -> None:
    """Wrap ``save_pretrained``. Doing it again is harmless."""
    kind: Any = sys.modules["transformers.modeling_utils"].PreTrainedModel
    if not getattr(kind.save_pretrained, _WRAPPED, False):
        kind.save_pretrained = _with_packed_layers(kind.save_pretrained)


def _with_packed_layers(save_pretrained: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save_pretrained)
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(module, _PACKED) for module in self.modules()):
            return save_pretrained(self, *args, **kwargs)
        folder = Path(*args[:1] or (kwargs["save_directory"],))
        before = times_of_weights(folder)
        saved = save_packed(self, *args, **kwargs)
        remove_older_weights(folder, before)
        return saved

    def save_packed(self: Any, *args: Any, **kwargs: Any) -> Any:
        adapters = getattr(self, "_hf_peft_config_loaded", False)  # which alone are saved
        if adapters or getattr(self, "hf_quantizer", None) is not None:
            return save_pretrained(self, *args, **kwargs)
        from ladder.integrations.transformers.config import LadderConfig
        from ladder.integrations.transformers.quantizer import LadderHfQuantizer

        before = vars(self.config).get("quantization_config")
        config = LadderConfig.from_stored(describe_model(self))
        self.hf_quantizer, self.config.quantization_config = LadderHfQuantizer(config), config
        try:
            return save_pretrained(self, *args, **kwargs)
        finally:
            del self.hf_quantizer
            if before is None:
                del self.config.quantization_config
            else:
                self.config.quantization_config = before

    setattr(save, _WRAPPED, True)
    return save
