# SPDX-License-Identifier: Apache-2.0
"""ladder inside other libraries. Importing ladder imports none of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from ladder.integrations.hooks import after_import

#: Modules of other libraries, and ours that must act once they have been imported.
_WATCHED = {
    "transformers.configuration_utils": "ladder.integrations.composite",
    "transformers.quantizers.auto": "ladder.integrations.transformers",
    "transformers.modeling_utils": "ladder.integrations.transformers.saving",
    "diffusers.quantizers.auto": "ladder.integrations.diffusers",
    "diffusers.models.modeling_utils": "ladder.integrations.diffusers.saving",
    "diffusers.loaders.lora_pipeline": "ladder.integrations.diffusers.lora",
    "peft.tuners.lora.model": "ladder.integrations.peft",
    "peft.tuners.mixed.model": "ladder.integrations.peft",
    "peft.tuners.xlora.model": "ladder.integrations.peft",
    "torch.optim.swa_utils": "ladder.integrations.averaging",
    "trl.generation.vllm_generation": "ladder.integrations.trl",
    "trl.experimental.online_dpo.online_dpo_trainer": "ladder.integrations.trl",
    "trl.experimental.async_grpo.async_grpo_trainer": "ladder.integrations.trl",
    "trl.experimental.async_distillation.async_distillation_trainer": "ladder.integrations.trl",
}
_SUBMODULES = ("diffusers", "peft", "transformers")


def install() -> None:
    """Teach ladder to the libraries that are imported, and to those that will be."""
    for theirs, ours in _WATCHED.items():
        after_import(theirs, _registration(ours))


def _registration(name: str) -> Callable[[ModuleType], None]:
    return lambda _theirs: _register(name)


def _register(name: str) -> None:
    # When our module is what imported theirs, it is not whole yet; it registers when it is.
    register = getattr(importlib.import_module(name), "register", None)
    if register is not None:
        register()


def __getattr__(name: str) -> ModuleType:
    if name in _SUBMODULES:
        return importlib.import_module(f"ladder.integrations.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
