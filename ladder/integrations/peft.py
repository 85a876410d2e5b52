# SPDX-License-Identifier: Apache-2.0
"""PEFT: LoRA adapters on packed weights; other kinds are in :mod:`ladder.integrations.peft_layers`.

PEFT chooses the LoRA layer of a linear layer by a fixed list of functions, the last of which knows
torch's own layers; ladder's comes before that one.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from peft.tuners.lora import layer as lora_layer
from peft.tuners.lora.layer import LoraLayer
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils.other import ModulesToSaveWrapper
from torch import Tensor, nn

from ladder.errors import Unsupported
from ladder.integrations.peft_dora import Dora
from ladder.integrations.peft_layers import adopt, check_base, inject_wrapper, tuner_wrapper
from ladder.integrations.peft_merge import Merges, forget
from ladder.integrations.peft_merge_model import merge_wrapper, unload_wrapper
from ladder.integrations.peft_requests import saved_check_wrapper
from ladder.nn.linear import Linear
from ladder.nn.packed import PackedModule
from ladder.ops.transforms import plus

#: Ways to start an adapter that do not look at the weight.
INITIALISATIONS = (True, False, "gaussian", "orthogonal")
#: Variants of LoRA whose fields PEFT does not mark as such in every release.
VARIANTS = ("use_qalora", "alora_invocation_tokens", "arrow_config")


class LoraLinear(Merges, nn.Module, LoraLayer):
    """``ladder.Linear`` plus ``scaling * B(A(dropout(x)))`` of each active adapter, or, of DoRA,
    what :mod:`ladder.integrations.peft_dora` makes of both, less the layer's own result."""

    fan_in_fan_out = False  #: a packed weight is [N, K], whatever it was made of
    get_delta_weight = lora_layer.Linear.get_delta_weight

    def __init__(
        self,
        base_layer: nn.Module,
        adapter_name: str,
        config: Any,
        r: int = 0,
        lora_alpha: int = 1,
        **kwargs: Any,
    ) -> None:
        check_base(base_layer)
        super().__init__()
        LoraLayer.__init__(self, base_layer, **kwargs)
        self._active_adapter = adapter_name
        self.update_layer(adapter_name, r, lora_alpha=lora_alpha, config=config)

    def update_layer(self, adapter_name: str, *args: Any, config: Any, **kwargs: Any) -> None:
        """Raises Unsupported for adapters that read or change the weight itself."""
        if config.init_lora_weights not in INITIALISATIONS:
            raise Unsupported(
                f"init_lora_weights is {config.init_lora_weights!r}, which decomposes the weight; "
                f"a packed weight takes {', '.join(map(repr, INITIALISATIONS))}"
            )
        super().update_layer(adapter_name, *args, config=config, **kwargs)

    def resolve_lora_variant(self, *, config: Any, **kwargs: Any) -> Dora | None:
        """Plain LoRA and DoRA. Raises Unsupported for variants with another forward than
        :meth:`forward`."""
        marked = (f.name for f in dataclasses.fields(config) if f.metadata.get("is_lora_variant"))
        for name in dict.fromkeys((*VARIANTS, *marked)):
            if name != "use_dora" and (value := getattr(config, name, None)):
                raise Unsupported(
                    f"{name} is {value!r}: packed weights take plain LoRA and DoRA, not other "
                    "variants"
                )
        return Dora() if getattr(config, "use_dora", False) else None

    def forward(
        self, x: Tensor, residual: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """With ``adapter_names``, one for each row of the batch, that adapter for the row;
        "__base__" is none. A residual is added to the result, rounded."""
        return plus(self._adapted(x, *args, **kwargs), residual)

    def _adapted(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self._check_forward_args(x, *args, **kwargs)
        result = own = self.base_layer(x)
        if self.disable_adapters and self.merged:
            self.unmerge()
            return self.base_layer(x)
        if self.disable_adapters or self.merged:
            return result
        names = kwargs.get("adapter_names")
        for adapter in self.active_adapters if names is None else dict.fromkeys(names):
            if adapter not in self.lora_A:
                continue
            if names is None:
                result = result + self._addend(adapter, x, own)
            else:
                rows = [row for row, name in enumerate(names) if name == adapter]
                where = torch.tensor(rows, device=x.device)
                addend = self._addend(adapter, x[where], own[where])
                result = result.index_add(0, where, addend)
        return result

    def _addend(self, adapter: str, x: Tensor, own: Tensor) -> Tensor:
        """What the adapter adds to ``own``, the layer's own result for ``x``."""
        a, b, scaling = self.lora_A[adapter], self.lora_B[adapter], self.scaling[adapter]
        dropout = self.lora_dropout[adapter]
        seen = dropout(self._cast_input_dtype(x, a.weight.dtype))
        low = b(a(seen)) * scaling
        if adapter not in self.lora_magnitude_vector:
            return low.to(own.dtype)
        base = self.get_base_layer()
        if self.training and not isinstance(dropout, nn.Identity):
            own = base(seen.to(x.dtype))  # DoRA sees x once
        sums = own if base.bias is None else own - base.bias
        factors = self.lora_magnitude_vector[adapter].factors(
            base, a.weight, b.weight, scaling, x.dtype
        )
        return ((factors - 1) * sums + factors * low).to(own.dtype)

    @property
    def weight(self) -> Tensor:
        """Shape, dtype and device, for code that asks a Linear for them: the base layer's."""
        return self.get_base_layer().weight

    def merge_dense(self, safe_merge: bool, adapter_names: list[str]) -> None:
        lora_layer.Linear.merge(self, safe_merge=safe_merge, adapter_names=adapter_names)

    def unmerge_dense(self) -> None:
        lora_layer.Linear.unmerge(self)

    def __repr__(self) -> str:
        return "lora." + super().__repr__()


def register() -> None:
    """Let ``peft.get_peft_model`` put adapters on ladder.Linear, and refuse what it would leave
    untrained in silence. Doing it again is harmless."""
    lora = importlib.import_module("peft.tuners.lora.model")
    tuners_utils = importlib.import_module("peft.tuners.tuners_utils")
    # Imported after this one, and registered then.
    mixed, xlora = (sys.modules.get(f"peft.tuners.{name}.model") for name in ("mixed", "xlora"))
    wrapped: list[tuple[Any, str, Callable[..., Any]]] = [
        (lora, "dispatch_default", _dispatcher),
        (tuners_utils, "_maybe_include_all_linear_layers", _all_linear),
        (xlora, "convert_layers_to_xlora", _xlora_converter),
        (getattr(mixed, "MixedModel", None), "_replace_module", _replacer),
        (getattr(mixed, "MixedModel", None), "_unload_and_optionally_merge", unload_wrapper),
        (lora.LoraModel, "_replace_module", _replacer),
        (BaseTuner, "_replace_module", _replacer),
        (ModulesToSaveWrapper, "check_module", saved_check_wrapper),
        (BaseTuner, "merge_adapter", merge_wrapper),
        (BaseTuner, "_unload_and_optionally_merge", unload_wrapper),
        (BaseTuner, "__init__", tuner_wrapper),
        (BaseTuner, "inject_adapter", inject_wrapper),
    ]
    for owner, name, wrapper in wrapped:
        theirs = getattr(owner, name, None)
        if theirs is not None and not getattr(theirs, "_ladder", False):
            setattr(owner, name, wrapper(theirs))


def _dispatcher(others: Callable[..., Any]) -> Callable[..., Any]:
    def dispatch(target: nn.Module, adapter_name: str, config: Any, **kwargs: Any) -> Any:
        base = target.get_base_layer() if isinstance(target, BaseTunerLayer) else target
        if isinstance(base, Linear) and kwargs.get("parameter_name") is None:
            kwargs.pop("parameter_name", None)
            return LoraLinear(target, adapter_name, config=config, **kwargs)
        made = others(target, adapter_name, config=config, **kwargs)
        if isinstance(base, PackedModule) and isinstance(made, BaseTunerLayer):
            adopt(made)
        return made

    dispatch._ladder = True
    return dispatch


def _replacer(others: Callable[..., Any]) -> Callable[..., Any]:
    """PEFT moves an adapter to the device of ``qweight``, which is None while kernels have the
    codes; ours is on the device of its layer since it was made. To a layer that is put back it
    would give its own weight anew."""

    def replace(self: Any, parent: nn.Module, name: str, new: nn.Module, child: nn.Module) -> None:
        if isinstance(new, PackedModule):
            forget(new)
        if isinstance(new, (LoraLinear, PackedModule)):
            setattr(parent, name, new)
        else:
            others(self, parent, name, new, child)

    replace._ladder = True
    return replace


def _xlora_converter(others: Callable[..., Any]) -> Callable[..., Any]:
    """X-LoRA would pass over ladder's layers, and mix nothing."""

    def convert(base: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(module, LoraLinear) for module in base.modules()):
            raise Unsupported(
                "XLORA does not mix adapters on packed layers: load, call model.dequantize(), and "
                "mix there, or give each row its adapter (adapter_names)"
            )
        return others(base, *args, **kwargs)

    convert._ladder = True
    return convert


def _all_linear(others: Callable[..., Any]) -> Callable[..., Any]:
    """target_modules="all-linear" means ladder's as well, but for the output embedding."""

    def include(peft_config: Any, model: nn.Module) -> Any:
        targets = getattr(peft_config, "target_modules", None)
        peft_config = others(peft_config, model)
        if isinstance(targets, str) and targets.lower() == "all-linear":
            head = getattr(model, "get_output_embeddings", lambda: None)()
            peft_config.target_modules |= {
                name
                for name, module in model.named_modules()
                if isinstance(module, Linear) and module is not head
                and not name.endswith(".base_layer")
            }  # fmt: skip
        return peft_config

    include._ladder = True
    return include


register()
