# SPDX-License-Identifier: Apache-2.0
"""The method of vLLM's layers of experts (``FusedMoE``) whose weights are packed."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase

from ladder.errors import Unsupported
from ladder.integrations.serving.experts import ExpertsRoom, Share, local_experts
from ladder.integrations.serving.mixture import Mixture
from ladder.integrations.serving.stored import Folder
from ladder.integrations.vllm.expert_layers import gating_of, join_rows, loader
from ladder.integrations.vllm.warm import Warmer


class ExpertsMethod(FusedMoEMethodBase):
    """Of one layer of packed experts: the two stacks of a ladder folder (``<prefix>.gate_up``,
    ``<prefix>.down``), or linear modules ``<prefix>.<expert>.<name>`` of any format that ladder
    reads.

    Args:
        folder: what the files hold.
        prefix: the layer's name.
        moe: vLLM's FusedMoEConfig of the layer.
    Raises:
        Unsupported: what ladder has no experts for; the message names it.
    """

    def __init__(self, folder: Folder, prefix: str, moe: Any) -> None:
        super().__init__(moe)
        self.folder, self.prefix = folder, prefix
        self.gating = gating_of(moe, prefix)
        self.mixture: Mixture | None = None
        for wrong, what in (
            (getattr(moe, "is_lora_enabled", False), "LoRA adapters (enable_lora)"),
            (moe.dp_size > 1 or moe.is_sequence_parallel, "data or sequence parallelism"),
            (moe.num_experts != moe.num_logical_experts, "redundant experts"),
        ):
            if wrong:
                raise Unsupported(
                    f"{prefix} has packed experts, which ladder serves without {what}"
                )

    # --- making room ------------------------------------------------------------------------------

    def create_weights(
        self,
        layer: nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra: Any,
    ) -> None:
        """Register a parameter for each kind of tensor that the files have of the experts.

        Raises:
            CheckpointError: headers that do not fit the model.
            Unsupported: a cut for tensor parallelism that the type does not allow.
        """
        if getattr(layer, "apply_router_weight_on_input", False):
            raise Unsupported(
                f"{self.prefix} multiplies activations by the router's weights, which ladder's "
                "experts do not"
            )
        moe = self.moe
        vllm_config = get_current_vllm_config()
        self.dummy = vllm_config.load_config.load_format == "dummy"
        self.runners = vllm_config.compilation_config.static_forward_context  # of layers, by name
        model = vllm_config.model_config
        self.eager = model is None or model.enforce_eager
        self.warmer = Warmer.of(vllm_config, params_dtype)
        self.warmer.choose_sums(self.folder)
        self.top_k = moe.experts_per_token
        self.most_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        experts = layer.global_num_experts
        own = intermediate_size_per_partition
        share = Share(
            experts,
            local_experts(
                self.prefix, "vLLM", experts, num_experts,
                layer._map_global_expert_id_to_local_expert_id,
            ),
            hidden_size,
            own * moe.tp_size,
            own,
            moe.tp_rank,
            moe.tp_size,
        )  # fmt: skip
        self.room = ExpertsRoom(
            self.folder,
            self.prefix,
            share,
            (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name),
            params_dtype,
            bias=moe.has_bias,
            engine="vLLM",
            whole="tensor_parallel_size=1 or enable_expert_parallel=True",
        )
        if self.warmer.weights_only:
            self.room.activation_type = ""
        self.room.register(layer)
        device = next(layer.parameters()).device
        self.warmer.experts.expect(
            self.room, device, self.gating, len(share.local), self.top_k, self.most_tokens
        )
        layer.load_weights = types.MethodType(loader(type(layer).load_weights), layer)

    def maybe_roundup_sizes(
        self, hidden_size: int, intermediate_size_per_partition: int, *rest: Any, **more: Any
    ) -> tuple[int, int]:
        return hidden_size, intermediate_size_per_partition

    # --- after loading ----------------------------------------------------------------------------

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Bring what was loaded into the form that kernels of the device read.

        Raises:
            CheckpointError: tensors that were not loaded, by name, or cannot be a weight's.
            Unsupported: on a GPU without kernels for the type, unless the engine is eager.
        """
        if not self.room.is_open(layer):
            return  # it has been done
        if self.dummy:
            self.room.fill_dummy(layer)
        self.mixture = made = self.room.finish(layer, self.gating, self.mixture)
        join_rows(self.runners[layer.layer_name].router)
        if made.gate_up.number:
            self.warmer.experts.finish(made, layer, self.top_k, self.most_tokens)
        elif layer.w13_qweight.is_cuda and not self.eager:
            raise Unsupported(
                f"{self.prefix} is {made.gate_up.type} and {made.down.type}, for whose experts "
                "this GPU has no kernels, and what torch runs cannot be captured: serve it with "
                "enforce_eager=True"
            )

    def get_fused_moe_quant_config(self, layer: nn.Module) -> None:
        return None  # of vLLM's kernels

    def maybe_make_prepare_finalize(self, routing_tables: Any = None) -> None:
        return None  # of vLLM's kernels

    def apply(
        self,
        layer: nn.Module,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: Any = None,
        shared_experts_input: Tensor | None = None,
    ) -> Tensor:
        """[T, H] to [T, H], of the experts of this rank. Shared experts are the runner's."""
        assert self.mixture is not None
        if layer.expert_map is not None:  # -1 for those of other ranks
            topk_ids = layer.expert_map[topk_ids.long()]
        return self.mixture(layer, x, topk_ids, topk_weights)
