# SPDX-License-Identifier: Apache-2.0
"""Kernels that vLLM has for weights of 4 bits, through the classes by which its engine calls them.

Needs vLLM 0.26 or later with its compiled code, and for Humming the package ``humming-kernels``.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

GROUP = 128


@contextlib.contextmanager
def engine() -> Iterator[None]:
    """What layers of vLLM ask for where no engine runs: a configuration, groups of one process."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment

    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
        where = f"file://{folder}/store"
        init_distributed_environment(
            world_size=1, rank=0, local_rank=0, distributed_init_method=where, backend="gloo"
        )
        ensure_model_parallel_initialized(1, 1)
        yield


class _Layer(nn.Module):
    """A layer of uint4b8 weights with groups of 128, as one of vLLM's kernels keeps it."""

    def __init__(self, name: str, codes: Tensor, scales: Tensor) -> None:
        from vllm.model_executor.kernels.linear import mixed_precision
        from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import (
            MPLinearLayerConfig,
        )
        from vllm.model_executor.parameter import GroupQuantScaleParameter, PackedvLLMParameter
        from vllm.scalar_type import scalar_types

        super().__init__()
        n, k = codes.shape
        self.input_size_per_partition, self.output_partition_sizes = k, [n]
        self.input_size, self.output_size, self.output_size_per_partition = k, n, n
        self.params_dtype, self.has_bias, self.bias = scales.dtype, False, None
        given = {"input_dim": 0, "output_dim": 1, "weight_loader": None}
        words = _gptq(codes)
        self.qweight = PackedvLLMParameter(data=words, packed_dim=0, packed_factor=8, **given)
        self.scales = GroupQuantScaleParameter(data=scales.t().contiguous(), **given)
        config = MPLinearLayerConfig(
            full_weight_shape=(k, n),
            partition_weight_shape=(k, n),
            weight_type=scalar_types.uint4b8,
            act_type=scales.dtype,
            group_size=GROUP,
            zero_points=False,
            has_g_idx=False,
        )
        made = getattr(mixed_precision, name)
        possible, why = made.can_implement(config)
        if not possible:
            raise NotImplementedError(why)
        self.kernel = made(config, "qweight", "scales")
        self.kernel.process_weights_after_loading(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel.apply_weights(self, x)


def _gptq(codes: Tensor) -> Tensor:
    """int32 [K / 8, N] of codes [N, K]: eight codes of a row in a word, the first in its lowest
    bits."""
    parts = codes.t().reshape(-1, 8, len(codes))
    words = torch.zeros_like(parts[:, 0], dtype=torch.int32)
    for at in range(8):
        words |= parts[:, at].to(torch.int32) << 4 * at
    return words


def layer(name: str, codes: Tensor, scales: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
    """``call(x, *tensors)`` of one of vLLM's kernels, named by its class.

    Args:
        codes: uint8 [N, K], 0 to 15 for -8 to 7.
        scales: [N, K / 128], in the dtype of the activations.
    """
    made = _Layer(name, codes, scales)
    names = [name for name, _ in made.named_parameters()]

    def call(x: Tensor, *tensors: Tensor) -> Tensor:
        return functional_call(made, dict(zip(names, tensors, strict=True)), (x,))

    return call, tuple(parameter.data for parameter in made.parameters())


marlin = functools.partial(layer, "MarlinLinearKernel")
machete = functools.partial(layer, "MacheteLinearKernel")
humming = functools.partial(layer, "HummingLinearKernel")
