# SPDX-License-Identifier: Apache-2.0
"""PEFT: what a LoraConfig asks of packed weights beside adapters of linear layers, refused by name.

PEFT would go on without it: a copy of a packed module has nothing to train, and a packed weight is
no parameter that ``target_parameters`` could find.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ladder.errors import Unsupported
from ladder.nn.dense_experts import STACKS
from ladder.nn.packed import PackedModule
from ladder.nn.packed_experts import PackedExperts
from ladder.nn.stack import PackedStack


def saved_check_wrapper(others: Callable[..., Any]) -> Callable[..., Any]:
    """Of ``ModulesToSaveWrapper.check_module``, to which prompt tuning comes, too: also raises
    Unsupported where a module of ``modules_to_save`` is packed or has packed ones in it."""

    def check(self: Any) -> None:
        others(self)
        _check_saved(type(self.original_module).__name__, self.original_module)

    check._ladder = True
    return check


def check_requests(config: Any, model: nn.Module) -> None:
    """Raises Unsupported where ``modules_to_save`` or ``target_parameters`` names what is
    packed."""
    saved = tuple(getattr(config, "modules_to_save", None) or ())
    targets = getattr(config, "target_parameters", None) or ()
    for name, module in model.named_modules():
        if saved and name.endswith(saved):  # as PEFT finds them
            _check_saved(name, module)
        for whole in _stands_for(name, module):
            if any(whole == target or whole.endswith(f".{target}") for target in targets):
                raise Unsupported(
                    f"target_parameters: {whole} is packed, and no parameter; adapters come to "
                    "packed linear layers by target_modules, to packed experts not"
                )


def _check_saved(name: str, saved: nn.Module) -> None:
    for inner, module in saved.named_modules():
        if isinstance(module, (PackedModule, PackedStack)):
            raise Unsupported(
                f"modules_to_save: {f'{inner} of {name}' if inner else name} is packed, and packed "
                "weights are not trained; keep it dense (skip of ladder.convert, "
                "modules_to_not_convert of LadderConfig), make it dense (dequantize()), or give it "
                "an adapter"
            )


def _stands_for(name: str, module: nn.Module) -> list[str]:
    """The parameters that a dense model has in the place of a packed module's weights."""
    packed = isinstance(module, PackedModule)
    names = ("weight",) if packed else STACKS if isinstance(module, PackedExperts) else ()
    return [f"{name}.{parameter}".replace(".base_layer", "") for parameter in names]
