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
    """Of ``ModulesToSaveWrapper.check_module``: also raises Unsupported where a module of
    ``modules_to_save`` is packed or has packed ones in it."""

    def check(self: Any) -> None:
        others(self)
        saved = self.original_module
        for name, module in saved.named_modules():
            if isinstance(module, (PackedModule, PackedStack)):
                what = f"{name} of a {type(saved).__name__}" if name else f"{module}"
                raise Unsupported(
                    f"modules_to_save: {what} is packed, and packed weights are not trained; keep "
                    "it dense (skip of ladder.convert, modules_to_not_convert of LadderConfig), "
                    "make it dense (dequantize()), or give it an adapter"
                )

    check._ladder = True
    return check


def parameters_wrapper(others: Callable[..., Any]) -> Callable[..., Any]:
    """Of ``BaseTuner._inject_parameters``: also raises Unsupported, before anything is changed,
    where ``target_parameters`` names a packed weight."""

    def inject(self: Any, peft_config: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for name, module in model.named_modules():
            packed = isinstance(module, PackedModule)
            names = ("weight",) if packed else STACKS if isinstance(module, PackedExperts) else ()
            for parameter in names:
                whole = f"{name}.{parameter}".replace(".base_layer", "")
                for target in peft_config.target_parameters:
                    if whole == target or whole.endswith(f".{target}"):
                        raise Unsupported(
                            f"target_parameters: {whole} is packed, and no parameter; adapters "
                            "come to packed linear layers by target_modules, to packed experts not"
                        )
        return others(self, peft_config, model, *args, **kwargs)

    inject._ladder = True
    return inject
