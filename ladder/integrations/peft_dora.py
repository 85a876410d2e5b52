# SPDX-License-Identifier: Apache-2.0
"""PEFT: DoRA beside packed weights, without a dense weight in each call.

DoRA (Liu et al., 2024) gives each row of ``W + s B A`` a magnitude m that trains, and takes its
norm for a constant: ``y = m / norm * (W + s B A) x``. The norms come from three sums,

    norm^2 = sum W^2 + 2 s sum B * (W A^T) + s^2 sum (B A A^T) * B

of which the first is found once, and ``W A^T`` is the packed layer's product of the rows of A.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from ladder.integrations.peft_layers import values_of
from ladder.nn.linear import Linear


class Magnitudes(nn.Module):
    """Of one adapter: ``weight``, float32 [N], which trains; what PEFT stores as
    ``lora_magnitude_vector``. It begins as the norms, so that ``y`` begins as the layer's."""

    def __init__(self, base: Linear, a: Tensor, b: Tensor, scaling: float) -> None:
        super().__init__()
        self._squares: tuple[list[tuple[Any, int]], Tensor] | None = None
        if a.is_meta:  # numbers are loaded later
            start = a.new_empty(b.shape[0], dtype=torch.float32)
        else:
            start = self._norms(base, a, b, scaling, torch.float32)
        self.weight = nn.Parameter(start)

    def factors(
        self, base: Linear, a: Tensor, b: Tensor, scaling: float, dtype: torch.dtype
    ) -> Tensor:
        """m / norm of each row, [N] float32. Gradients flow to m alone.

        Args:
            dtype: of activations: ``W A^T`` is multiplied as they are.
        """
        return self.weight / self._norms(base, a, b, scaling, dtype)

    @torch.no_grad()
    def _norms(
        self, base: Linear, a: Tensor, b: Tensor, scaling: float, dtype: torch.dtype
    ) -> Tensor:
        products = base(a.to(dtype)).to(torch.float32)
        if base.bias is not None:
            products = products - base.bias
        a, b = a.to(torch.float32), b.to(torch.float32)
        mixed = (b * products.t()).sum(1)
        own = ((b @ (a @ a.t())) * b).sum(1)
        # Rounding may bring what is all but nothing below it.
        squares = self._squares_of(base) + 2 * scaling * mixed + scaling**2 * own
        return squares.clamp(min=torch.finfo(torch.float32).tiny).sqrt()

    def _squares_of(self, base: Linear) -> Tensor:
        """The sum of squares of each row of the weight, [N] float32, found anew where the weight
        was changed or moved; compiled code takes those of the last call before it."""
        known, traced = self._squares, torch.compiler.is_compiling()
        if known is not None and (traced or _is_of(known[0], base)):
            return known[1]
        squares = values_of(base).square().sum(1)
        if not traced:
            state = [(weakref.ref(part), _version(part)) for part in _parts(base)]
            self._squares = state, squares
        return squares

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_squares": None}


def _parts(base: Linear) -> list[Tensor]:
    parts = (base.image, base.qweight, base.scales, base.zeros, base.scale2, base.pre_scale)
    return [part for part in parts if part is not None]


def _version(part: Tensor) -> int:
    return 0 if part.is_inference() else part._version


def _is_of(state: list[tuple[Any, int]], base: Linear) -> bool:
    """Whether the weight has the very tensors of ``state``, as they were."""
    parts = _parts(base)
    return len(parts) == len(state) and all(
        kept() is part and version == _version(part)
        for (kept, version), part in zip(state, parts, strict=True)
    )


class Dora:
    """What PEFT asks of a variant of LoRA; :class:`~ladder.integrations.peft.LoraLinear` does the
    rest."""

    @staticmethod
    def init(module: Any, adapter_name: str, **kwargs: Any) -> None:
        if not module.lora_magnitude_vector:
            names = (*module.adapter_layer_names, "lora_magnitude_vector")
            module.adapter_layer_names = names
        a, b = module.lora_A[adapter_name].weight, module.lora_B[adapter_name].weight
        base, scaling = module.get_base_layer(), module.scaling[adapter_name]
        module.lora_magnitude_vector[adapter_name] = Magnitudes(base, a, b, scaling)

    @staticmethod
    def merge_safe(module: Any, active_adapter: str, orig_weight: Tensor) -> Tensor:
        """The dense weight [N, K] with the adapter in it."""
        summed = orig_weight + module.get_delta_weight(active_adapter)
        tiny = torch.finfo(summed.dtype).tiny
        magnitudes = module.lora_magnitude_vector[active_adapter].weight
        factors: Tensor = magnitudes / summed.norm(dim=1).clamp(min=tiny**0.5)
        return summed * factors[:, None]

    @classmethod
    def merge_unsafe(cls, module: Any, active_adapter: str, orig_weight: Tensor) -> None:
        orig_weight.data = cls.merge_safe(module, active_adapter, orig_weight)
