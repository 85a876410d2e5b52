# SPDX-License-Identifier: Apache-2.0
"""The method of vLLM's layers of experts (``FusedMoE``) whose weights are packed."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase

from ladder.checkpoints.activation_schemes import say_of_experts
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.serving.layer import say_as_it_comes
from ladder.integrations.serving.loading import Room
from ladder.integrations.serving.mixture import Mixture, finish_stacks
from ladder.integrations.serving.ranks import Columns, Rows, part_rows, whole_rows
from ladder.integrations.serving.stacks import BiasRoom, StackRoom
from ladder.integrations.serving.stored import Folder, StoredLinear
from ladder.integrations.vllm.expert_layers import (
    DOWN,
    GATE_UP,
    STEMS,
    gating_of,
    join_rows,
    loader,
)
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
        self.activation_type = ""  #: that the files offer
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
        self.dtype, moe = params_dtype, self.moe
        vllm_config = get_current_vllm_config()
        self.dummy = vllm_config.load_config.load_format == "dummy"
        self.runners = vllm_config.compilation_config.static_forward_context  # of layers, by name
        model = vllm_config.model_config
        self.eager = model is None or model.enforce_eager
        self.warmer = Warmer.of(vllm_config, params_dtype)
        self.top_k = moe.experts_per_token
        self.most_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        rank, ranks = moe.tp_rank, moe.tp_size
        own, h = intermediate_size_per_partition, hidden_size
        i = own * ranks
        every = range(layer.global_num_experts)
        found = {e: layer._map_global_expert_id_to_local_expert_id(e) for e in every}
        local = {e: place for e, place in found.items() if place >= 0}
        if sorted(local.values()) != list(range(num_experts)):
            raise Unsupported(
                f"{self.prefix}: {num_experts} experts on this rank, of which vLLM's map names "
                f"{len(local)}"
            )
        columns = {GATE_UP: Columns(0, h, h), DOWN: Columns(rank * own, own, i)}
        self.stacked = self.is_stacked()
        if self.stacked and ranks == 1:  # nothing to cut
            rows = {GATE_UP: whole_rows([2 * i]), DOWN: whole_rows([h])}
        else:
            rows = {GATE_UP: part_rows([own, own], rank, ranks), DOWN: whole_rows([h])}
        modules = self._modules(layer, list(local), len(every), h, i)
        asked = {m.activation_type or "" for of in modules.values() for e in of.values() for m in e}
        if len(asked) > 1:
            say_as_it_comes("the experts of a layer are to have x rounded in several ways")
        elif not self.warmer.weights_only:
            (self.activation_type,) = asked
        self.rooms = {
            name: StackRoom(
                STEMS[name],
                [self._room(modules[name][e], rows[name], columns[name]) for e in local],
                local,
                len(every),
            )
            for name in STEMS
        }
        for room in self.rooms.values():
            room.register(layer)
        self.biases = self._biases(rows, local, len(every), second_rank=rank > 0)
        for bias in self.biases:
            bias.register(layer, params_dtype)
        layer.load_weights = types.MethodType(loader(type(layer).load_weights), layer)

    def is_stacked(self) -> bool:
        """Whether the files have one tensor for all experts."""
        names = [f"{self.prefix}.{name}" for name in STEMS]
        if self.folder.headers is None:
            return self.folder.method == "ladder"
        return any(self.folder.parts_of(name) for name in names)

    def _modules(
        self, layer: nn.Module, own: list[int], experts: int, h: int, i: int
    ) -> dict[str, dict[int, list[StoredLinear]]]:
        """For each product the modules in the files of each expert of ``own``."""
        if self.stacked:
            stack = self.folder.stack
            first = stack(f"{self.prefix}.{GATE_UP}", experts, 2 * i, h)
            second = stack(f"{self.prefix}.{DOWN}", experts, h, i)
            return {GATE_UP: {e: [first] for e in own}, DOWN: {e: [second] for e in own}}
        names = layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name

        def module(expert: int, name: str, n: int, k: int) -> StoredLinear:
            return self.folder.module(f"{self.prefix}.{expert}.{name}", n, k)

        gate, up, down = names
        return {
            GATE_UP: {e: [module(e, gate, i, h), module(e, up, i, h)] for e in own},
            DOWN: {e: [module(e, down, h, i)] for e in own},
        }

    def _room(self, modules: list[StoredLinear], rows: list[Rows], columns: Columns) -> Room:
        for module in modules:
            if module.act_order and columns.count != columns.whole:
                raise Unsupported(
                    f"{module.name} may order columns (act-order), of which no rank can have a "
                    "part: serve it with tensor_parallel_size=1 or enable_expert_parallel=True"
                )
        return Room(self.prefix, modules, rows, columns, self.dtype)

    def _biases(
        self,
        rows: dict[str, list[Rows]],
        local: dict[int, int],
        experts: int,
        *,
        second_rank: bool,
    ) -> list[BiasRoom]:
        """Room for biases.

        Raises:
            CheckpointError: the files have biases of stacks, and the model none.
        """
        made = []
        for name, stem in STEMS.items():
            in_files = f"{self.prefix}.{name}.bias"
            if self.moe.has_bias:
                zero = second_rank and name == DOWN
                room = BiasRoom(f"{stem}_bias", in_files, rows[name], local, experts, zero=zero)
                made.append(room)
            elif self.folder.has_bias(f"{self.prefix}.{name}"):
                raise CheckpointError(f"{in_files} is in the files, and vLLM's model has none")
        return made

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
        stacks = list(self.rooms.values())
        names = [name for room in stacks for name in room.names()]
        if not all(hasattr(getattr(layer, name, None), "ladder_room") for name in names):
            return  # it has been done
        rooms = [*stacks, *self.biases]
        if self.dummy:
            for room in rooms:
                room.fill_dummy(layer)
        if missing := [name for room in rooms for name in room.missing()]:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise CheckpointError(
                f"{self.prefix}: {', '.join(missing[:5])}{more} was not loaded: it is missing in "
                "the files, or vLLM's model did not hand it on"
            )
        scales = [room.input_scales(layer) if self.activation_type else None for room in stacks]
        for room, scale in zip(stacks, scales, strict=True):
            if scale is not None:
                say_of_experts(f"{self.prefix} ({room.stem})", scale)
        weights = [(room.stem, room.take(layer)) for room in stacks]
        for bias in self.biases:
            bias.loaded.clear()
            tensor = getattr(layer, bias.name).data
            delattr(layer, bias.name)
            layer.register_parameter(bias.name, nn.Parameter(tensor, requires_grad=False))
        on_gpu = weights[0][1][0].qweight.is_cuda
        made = finish_stacks(
            layer, weights[0], weights[1], self.gating, self.dtype, self.activation_type,
            (scales[0], scales[1]),
        )  # fmt: skip
        if self.mixture is not None and self.mixture != made:
            raise CheckpointError(
                f"{self.prefix} was {self.mixture.gate_up.type} and {self.mixture.down.type} when "
                f"it was first loaded, and is {made.gate_up.type} and {made.down.type} now: start "
                "the engine anew"
            )
        self.mixture = made
        join_rows(self.runners[layer.layer_name].router)
        if made.gate_up.number:
            self.warmer.experts(made, layer, self.top_k, self.most_tokens)
        elif on_gpu and not self.eager:
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
