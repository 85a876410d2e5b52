# SPDX-License-Identifier: Apache-2.0
"""TRL's trainers that generate with vLLM.

They merge adapters and send ``named_parameters()`` to the engine. Packed weights are buffers, so
the engine would go on with the weights of before, and nobody would be told: it is refused by name.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer

from ladder.errors import Unsupported
from ladder.nn.packed import PackedModule

#: Where models are sent, or what sends them is made of one: module, class, method.
SENDERS = (
    ("trl.generation.vllm_generation", "VLLMGeneration", "__init__"),
    (
        "trl.experimental.online_dpo.online_dpo_trainer",
        "OnlineDPOTrainer",
        "_move_model_to_vllm",
    ),
    ("trl.experimental.async_grpo.async_grpo_trainer", "AsyncGRPOTrainer", "_sync_weight_merged"),
    (
        "trl.experimental.async_distillation.async_distillation_trainer",
        "AsyncDistillationTrainer",
        "_sync_weight_merged",
    ),
)


def register() -> None:
    """Wrap what has been imported. Doing it again is harmless."""
    for module, kind, method in SENDERS:
        owner = getattr(sys.modules.get(module), kind, None)
        theirs = getattr(owner, method, None)
        if owner is not None and theirs is not None and not getattr(theirs, "_ladder", False):
            setattr(owner, method, _checked(theirs, method == "__init__"))


def _checked(theirs: Callable[..., Any], makes: bool) -> Callable[..., Any]:
    """``theirs``, which refuses packed layers. ``makes``: it is given the model, which else is an
    attribute."""

    @functools.wraps(theirs)
    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = kwargs["model"] if "model" in kwargs else args[0] if makes else self.model
        check_sent(given)
        return theirs(self, *args, **kwargs)

    send._ladder = True
    return send


def check_sent(model: Any) -> None:
    """Raise Unsupported where adapters are on packed layers."""
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer) and isinstance(module.get_base_layer(), PackedModule):
            raise Unsupported(
                f"{name}: TRL merges adapters and sends parameters to vLLM, and packed weights are "
                "buffers, which it leaves out, so that vLLM would generate without the adapter: "
                "leave use_vllm False, or train on the dense model"
            )
