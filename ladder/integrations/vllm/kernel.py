# SPDX-License-Identifier: Apache-2.0
"""A kernel for vLLM's own mixed-precision methods (GPTQ, AWQ, compressed-tensors).

It comes first in vLLM's list, and says no to every layer unless the user asked for it by
``LADDER_VLLM=kernel`` or ``linear_backend="ladder"``.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from ladder.integrations.serving.layer import Run, finish_weight
from ladder.integrations.vllm import asked
from ladder.integrations.vllm.warm import Warmer
from ladder.types import FLOAT_DTYPES, dtype_name, parse
from ladder.weight import Weight

#: vLLM's names of integers and the bits of each; those with "b" have their midpoint as zero point.
_INTEGERS = {
    "uint2b2": 2, "uint3b4": 3, "uint4b8": 4, "uint5b16": 5, "uint6b32": 6, "uint7b64": 7,
    "uint8b128": 8, "uint4": 4, "uint8": 8,
}  # fmt: skip


def _bits_of(weight_type: Any) -> int | None:
    from vllm.scalar_type import scalar_types

    for name, bits in _INTEGERS.items():
        if getattr(scalar_types, name, None) == weight_type:
            return bits
    return None


def _wanted() -> bool:
    if "kernel" in asked():
        return True
    from vllm.config import get_current_vllm_config

    kernel_config = getattr(get_current_vllm_config(), "kernel_config", None)
    return getattr(kernel_config, "linear_backend", None) == "ladder"


@functools.cache
def kernel_class() -> type:
    """The class, made when vLLM's kernels are first asked for: importing them takes seconds."""
    from vllm.model_executor.kernels.linear import MPLinearKernel

    class LadderMPLinearKernel(MPLinearKernel):
        """W2 to W8 with 16-bit activations."""

        @classmethod
        def get_min_capability(cls) -> int:
            return 80

        @classmethod
        def can_implement(cls, c: Any) -> tuple[bool, str | None]:
            if not _wanted():
                return False, "ladder serves these layers only when LADDER_VLLM=kernel asks for it"
            if _bits_of(c.weight_type) is None:
                return False, f"ladder has no type for {c.weight_type}"
            if c.act_type not in FLOAT_DTYPES.values():
                return False, f"activations are {c.act_type}, not float16, bfloat16 or float32"
            k = c.partition_weight_shape[0]
            if getattr(c, "has_g_idx", False) and k != c.full_weight_shape[0]:
                return False, "act-order cannot be cut along its columns"
            if c.group_size > 0 and k % c.group_size:
                return False, f"{k} columns cut groups of {c.group_size}"
            return True, None

        def process_weights_after_loading(self, layer: nn.Module) -> None:
            from vllm.config import get_current_vllm_config

            weight = self._weight(layer)
            for name in self._names():
                if getattr(layer, name, None) is not None:
                    delattr(layer, name)
            warm = Warmer.of(get_current_vllm_config(), self.config.act_type)
            self.run, tensors = finish_weight(weight, self.config.act_type, warm=warm)
            for name, tensor in tensors.items():
                layer.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

        def apply_weights(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
            run: Run = self.run
            return run(layer, x, bias)

        def _names(self) -> list[str]:
            names = ("w_q_name", "w_s_name", "w_zp_name", "w_gidx_name")
            return [name for each in names if (name := getattr(self, each, None))]

        def _weight(self, layer: nn.Module) -> Weight:
            from vllm.model_executor.parameter import permute_param_layout_

            c = self.config
            k, n = c.partition_weight_shape
            bits = _bits_of(c.weight_type)
            codes = permute_param_layout_(
                getattr(layer, self.w_q_name), input_dim=1, output_dim=0, packed_dim=1
            )
            scales = permute_param_layout_(getattr(layer, self.w_s_name), input_dim=1, output_dim=0)
            zeros = self._zeros(layer, n, bits) if c.zero_points else None
            g_idx = getattr(layer, getattr(self, "w_gidx_name", None) or "", None)
            if not getattr(c, "has_g_idx", False) or g_idx is None or not g_idx.numel():
                g_idx = None
            group = "channel" if c.group_size in (-1, k) else f"group={c.group_size}"
            zero = "midpoint" if zeros is None else "integer"
            text = f"uint{bits},{group},scale={dtype_name(scales.dtype)},zero={zero}"
            weight = Weight(
                parse(text),
                (n, k),
                codes.data.contiguous(),
                scales.data.contiguous(),
                zeros,
                g_idx=None if g_idx is None else g_idx.data.to(torch.int32),
            )
            weight.check(getattr(layer, "prefix", "weight"))
            return weight

        def _zeros(self, layer: nn.Module, n: int, bits: int) -> Tensor:
            """[N, groups], of words that are packed along N."""
            from vllm.model_executor.parameter import permute_param_layout_

            packed = permute_param_layout_(
                getattr(layer, self.w_zp_name), input_dim=1, output_dim=0, packed_dim=0
            ).data
            shifts = torch.arange(0, 32, bits, device=packed.device, dtype=torch.int32)
            fields = (packed.unsqueeze(1) >> shifts[None, :, None]) & ((1 << bits) - 1)
            return fields.reshape(-1, packed.shape[-1])[:n].to(torch.uint8).contiguous()

    return LadderMPLinearKernel


def register() -> None:
    """Put the kernel where ``linear_backend="ladder"`` finds it. Doing it again is harmless."""
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    kind = kernel_class()
    for platform in (PlatformEnum.CUDA, PlatformEnum.CPU):
        kernels = linear._POSSIBLE_KERNELS.setdefault(platform, [])
        if kind not in kernels:
            kernels.insert(0, kind)
    linear._LINEAR_BACKEND_KERNEL_MAP.setdefault("ladder", set()).add(kind)
