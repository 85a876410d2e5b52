# SPDX-License-Identifier: Apache-2.0
"""The method of SGLang's layers of experts (``FusedMoE``) whose weights are packed."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.eplb.expert_location import get_global_expert_location_metadata
from sglang.srt.layers.moe import get_moe_a2a_backend
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
from sglang.srt.layers.moe.topk import TopKOutputChecker
from sglang.srt.layers.quantization.base_config import FusedMoEMethodBase
from torch import Tensor, nn

from ladder.errors import Unsupported
from ladder.integrations.serving.experts import ExpertsRoom, Share, local_experts
from ladder.integrations.serving.mixture import Mixture
from ladder.integrations.serving.stored import Folder
from ladder.integrations.sglang.versions import is_dummy
from ladder.ops.gating import SWIGLU_OAI, Gating

#: What models call gate, up and down in files that have each expert by itself.
_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))


def gating_of(config: Any, prefix: str) -> Gating:
    """What SGLang's layer computes between its two products, by its MoeRunnerConfig.

    Raises:
        Unsupported: ladder has no such function; the message names it.
    """
    name, limit = config.activation, config.swiglu_limit
    alpha, late = config.gemm1_alpha, config.gemm1_clamp_limit
    beta = getattr(config, "gemm1_beta", None)  # 0.5.16 has none
    # Without alpha, SGLang clamps after silu by gemm1_clamp_limit, which Gating does not.
    of_gpt_oss = alpha is not None and late is not None and beta in (None, 1)
    if config.is_gated and name == "silu" and of_gpt_oss and limit is None:
        return Gating(SWIGLU_OAI, float(late), float(alpha))
    plain = config.is_gated and alpha is None and late is None
    if plain and (name == "silu" or (name == "gelu" and limit is None)):
        return Gating(name, None if limit is None else float(limit))
    raise Unsupported(
        f"{prefix} has packed experts with activation {name} (gated {config.is_gated}, "
        f"swiglu_limit {limit}, gemm1_alpha {alpha}, gemm1_beta {beta}, gemm1_clamp_limit {late}), "
        "which ladder does not have"
    )


class ExpertsMethod(FusedMoEMethodBase):
    """Of one layer of packed experts, in the two stacks of a ladder folder or one by one.

    Args:
        folder: what the files hold.
        prefix: the layer's name.
    """

    def __init__(self, folder: Folder, prefix: str) -> None:
        self.folder, self.prefix = folder, prefix
        self.mixture: Mixture | None = None
        self.runner = None  # experts are called directly, with places on this rank
        self._before: dict[str, Tensor] = {}  # what graphs read, while new weights are loaded

    def create_weights(
        self,
        layer: nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        with_bias: bool = False,
        **extra: Any,
    ) -> None:
        """Register a parameter for each kind of tensor that the files have of the experts.

        Raises:
            CheckpointError: headers that do not fit the model.
            Unsupported: what ladder has no experts for, or a cut for tensor parallelism that the
                type does not allow; the message names it.
        """
        made: Any = layer
        self._refuse(made)
        self.gating = gating_of(made.moe_runner_config, self.prefix)
        experts, own = made.num_experts, intermediate_size_per_partition
        share = Share(
            experts,
            local_experts(
                self.prefix, "SGLang", experts, num_experts,
                made._map_global_expert_id_to_local_expert_id,
            ),
            hidden_size,
            own * made.moe_tp_size,
            own,
            made.moe_tp_rank,
            made.moe_tp_size,
        )  # fmt: skip
        self.room = ExpertsRoom(
            self.folder,
            self.prefix,
            share,
            self._names(),
            params_dtype,
            bias=with_bias,
            engine="SGLang",
            whole="--tp 1, or with --ep-size as large as --tp",
            by_stack=True,
        )
        self.room.register(layer)

    def _names(self) -> tuple[str, str, str]:
        below = {name.rpartition(".")[2] for name in self.folder.packed_below(self.prefix)}
        return next((names for names in _NAMES if below & {*names}), _NAMES[0])

    def _refuse(self, layer: Any) -> None:
        config = layer.moe_runner_config
        moves = getattr(layer, "uses_expert_location", True)  # 0.5.16 has none
        places = get_global_expert_location_metadata() if moves else None
        moved = places is not None and any(
            places.logical_to_all_physical(layer.layer_id, e) != [e]
            for e in range(layer.num_experts)
        )
        for wrong, what in (
            (layer.num_fused_shared_experts, "shared experts fused to them "
             "(--disable-shared-experts-fusion leaves them apart)"),
            (moved, "redundant or moved experts (EPLB)"),
            (not get_moe_a2a_backend().is_none(), "--moe-a2a-backend"),
            (config.apply_router_weight_on_input, "router weights on activations"),
            (config.no_combine, "results that are not added up (no_combine)"),
            (layer.use_presharded_weights, "weights that are cut already"),
        ):  # fmt: skip
            if wrong:
                raise Unsupported(
                    f"{self.prefix} has packed experts, which ladder serves without {what}"
                )

    def create_moe_runner(self, layer: nn.Module, moe_runner_config: Any) -> None:
        # Models leave it to the experts to scale their sum.
        self.factor = moe_runner_config.routed_scaling_factor

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Bring what was loaded into the form that kernels of the device read; on a second load
        into the memory of the first, which CUDA graphs read.

        Raises:
            CheckpointError: tensors that were not loaded, by name, or cannot be a weight's.
        """
        if not self.room.is_open(layer):
            return  # it has been done
        if is_dummy():
            self.room.fill_dummy(layer)
        self.mixture = self.room.finish(layer, self.gating, self.mixture)
        for name, before in self._before.items():
            before.copy_(getattr(layer, name))
            layer.register_parameter(name, nn.Parameter(before, requires_grad=False))
        self._before.clear()

    def restore_weights_before_loading(self, layer: nn.Module) -> None:
        """Make room for the tensors of the files again."""
        for name in [name for name, _ in layer.named_parameters(recurse=False)]:
            self._before[name] = getattr(layer, name).data
            delattr(layer, name)
        self.room.register(layer)

    def apply(self, layer: nn.Module, dispatch_output: Any) -> Any:
        """[T, H] to [T, H], of the experts of this rank."""
        assert self.mixture is not None
        chosen = dispatch_output.topk_output
        if not TopKOutputChecker.format_is_standard(chosen):
            chosen = chosen.to_standard()
        weights = chosen.topk_weights
        if self.factor is not None and self.factor != 1:
            weights = weights * self.factor
        y = self.mixture(layer, dispatch_output.hidden_states, chosen.topk_ids, weights)
        return StandardCombineInput(hidden_states=y)
