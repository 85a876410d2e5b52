# SPDX-License-Identifier: Apache-2.0
"""PEFT: merging the adapters of a whole model with packed layers: what cannot be merged is told
before anything changes, and what rounding costs once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from ladder.errors import InvalidArgument
from ladder.integrations.peft_merge import Merges, merged_into
from ladder.integrations.peft_told import telling
from ladder.nn.packed import PackedModule
from ladder.quantization import weights_of


def merge_wrapper(others: Callable[..., Any]) -> Callable[..., Any]:
    """Of ``BaseTuner.merge_adapter``: all packed layers are merged, or none."""

    def merge(self: Any, *args: Any, **kwargs: Any) -> None:
        names = kwargs.get("adapter_names", args[0] if args else None)
        layers = _checked(self.model, names)
        before = {name: list(layer.merged_adapters) for name, layer in layers.items()}
        with telling(layers):
            try:
                others(self, *args, **kwargs)
            except BaseException:
                for name, layer in layers.items():
                    if layer.merged_adapters != before[name]:
                        layer.unmerge()
                        if before[name]:
                            layer.merge(adapter_names=before[name])
                raise

    merge._ladder = True
    return merge


def unload_wrapper(others: Callable[..., Any]) -> Callable[..., Any]:
    """Of ``BaseTuner._unload_and_optionally_merge``: what cannot be merged is told first."""

    def unload(
        self: Any,
        merge: bool = True,
        progressbar: bool = False,
        safe_merge: bool = False,
        adapter_names: list[str] | None = None,
    ) -> Any:
        layers = _checked(self.model, adapter_names) if merge else {}
        with telling(layers):
            return others(
                self, merge=merge, progressbar=progressbar, safe_merge=safe_merge,
                adapter_names=adapter_names,
            )  # fmt: skip

    unload._ladder = True
    return unload


def _checked(model: nn.Module, names: list[str] | None) -> dict[str, Any]:
    """The layers of adapters on packed layers. Raises, before one is merged, what merging ``names``
    would, but for what rounding refuses."""
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, BaseTunerLayer) and isinstance(module.get_base_layer(), PackedModule)
    }
    for name, layer in layers.items():
        wanted = layer.active_adapters if names is None else names
        if isinstance(wanted, str) or not isinstance(layer, Merges):
            continue  # PEFT refuses it
        with weights_of(name):
            _check(layer, [each for each in wanted if each not in layer.merged_adapters])
    return layers


def _check(layer: Any, names: list[str]) -> None:
    merged = merged_into(layer)
    dense, _ = merged.summed({**merged.names, layer: names}, safe=False)
    for part, values in dense.named_parameters():
        if not bool(values.isfinite().all()):
            at = (~values.isfinite()).nonzero()[0].tolist()
            raise InvalidArgument(
                f"{part} at {at} would be {values[tuple(at)].item()} with {', '.join(names)} "
                "merged, not finite: the adapter seems to be broken"
            )
