# SPDX-License-Identifier: Apache-2.0
"""MLPs of vLLM's models whose layer of gate and up gives the product of both, in one launch.

A layer knows nothing of the module that holds it. torch tells a hook of every module that becomes
another's child (``register_module_module_registration_hook``), while the model is made.
"""

from __future__ import annotations

import functools
import logging
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from vllm.model_executor.layers.linear import ColumnParallelLinear, MergedColumnParallelLinear

from ladder.cuda import image, kernels
from ladder.integrations.serving.gated import FusedActivation, Product, product_after
from ladder.integrations.serving.layer import Run
from ladder.integrations.serving.loading import Room
from ladder.integrations.vllm.options import options_of
from ladder.nn.gated import device_objection

_log = logging.getLogger("vllm.ladder")

#: Looks the class of the activation up among those whose kernels quantise, too, and calls it:
#: FusedActivation is none of vLLM's.
_APPLIERS = ("vllm.model_executor.layers.fusion.fused_act_quant.maybe_fused_act_quant",)
#: The modules that hold a layer, and its name in each.
Holders = list[tuple["weakref.ref[nn.Module]", str]]


@functools.cache
def watch_holders() -> None:
    """From now on, note of each layer whose method has ``holders`` which modules hold it."""
    register_module_module_registration_hook(_note)


def _note(holder: nn.Module, name: str, child: nn.Module | None) -> None:
    # From the dictionary: this runs for every module of the process.
    method = None if child is None else vars(child).get("quant_method")
    holders: Holders | None = getattr(method, "holders", None)
    if holders is not None:
        holders.append((weakref.ref(holder), name))


class GatedMLPs:
    """Those of one engine. Says once, when all its layers are loaded, how many there are.

    Args:
        off: why there are none; "" where there may be some.
    """

    def __init__(self, off: str) -> None:
        self.off = off
        self._left, self._layers, self._fused = 0, 0, 0

    @classmethod
    def of(cls, vllm_config: Any) -> GatedMLPs:
        """That of the engine: every layer of it has the same."""
        found: GatedMLPs | None = getattr(vllm_config, "_ladder_gated_mlps", None)
        if found is None:
            off = ""
            if not options_of(vllm_config)["fuse_gated_mlp"]:
                off = 'additional_config["ladder"]["fuse_gated_mlp"] is false'
            elif getattr(vllm_config, "lora_config", None) is not None:
                off = "LoRA adapters (enable_lora) add to gate and up"
            found = cls(off)
            object.__setattr__(vllm_config, "_ladder_gated_mlps", found)
        return found

    def is_candidate(self, layer: nn.Module, room: Room) -> bool:
        """Whether ``layer`` may be a gate and up: a merged layer of two parts."""
        return isinstance(layer, MergedColumnParallelLinear) and len(room.rows) == 2

    def expect(self) -> None:
        """There is a candidate, which will be :meth:`finished`."""
        watch_holders()
        self._left, self._layers = self._left + 1, self._layers + 1

    def product(
        self, layer: Any, room: Room, holders: Holders, dtype: torch.dtype
    ) -> Product | str:
        """What a candidate's result becomes in the module that holds it, or why the layer cannot
        give that itself."""
        if why := self.off or _objection(layer, room, dtype):
            return why
        held = [(module, name) for ref, name in holders if (module := ref()) is not None]
        if len(held) != 1:
            return f"{len(held)} modules hold it"
        ((module, name),) = held
        if module._modules.get(name) is not layer:
            return f"something has replaced it in {type(module).__name__}"
        return product_after(module, name, layer.return_bias, _APPLIERS)

    def finished(
        self, prefix: str, product: Product | str, runs: tuple[Run, ...], holders: Holders
    ) -> None:
        """A candidate has its ``runs``, which give ``product`` or not."""
        if isinstance(product, Product) and runs[0].gating is not None:
            ((ref, _),) = [each for each in holders if each[0]() is not None]
            holder: Any = ref()
            theirs = holder.get_submodule(product.activation)
            setattr(holder, product.activation, FusedActivation(theirs, runs[0].n))
            self._fused += 1
        else:
            why = product if isinstance(product, str) else f"it has {len(runs)} launches"
            _log.debug("ladder: %s gives gate and up, not their product: %s", prefix, why)
        self._left -= 1
        if not self._left and self._fused:
            _log.info(
                "ladder: %d of %d layers of two parts give act(gate) * up in their launch",
                self._fused, self._layers,
            )  # fmt: skip


def _objection(layer: Any, room: Room, dtype: torch.dtype) -> str:
    """Why ``layer`` itself cannot give the product of its parts; "" where it can."""
    gate, up = (rows.count for rows in room.rows)
    if gate != up or not image.alternates(gate + up):
        return f"its parts have {gate} and {up} rows on this rank, not one multiple of 8"
    if type(layer).forward is not ColumnParallelLinear.forward:
        return f"{type(layer).__name__} has a forward of its own"
    if layer.gather_output and layer.tp_size > 1:
        return "its rows are gathered from all ranks (gather_output)"
    if layer.skip_bias_add and layer.bias is not None:
        return "its bias is added by another module (skip_bias_add)"
    device = next(layer.parameters()).device
    if kernels.possible(device) and dtype not in kernels.HALVES:
        return f"kernels have no product of gate and up of {dtype}"
    return device_objection(device)
