# SPDX-License-Identifier: Apache-2.0
"""The methods of vLLM's layers: make room for tensors, bring them into the form of kernels, call
those."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import get_current_vllm_config
from vllm.distributed import tensor_model_parallel_all_gather
from vllm.model_executor.layers.linear import LinearMethodBase, RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.serving.gated import Product
from ladder.integrations.serving.layer import Lookup, Run, finish, multiply
from ladder.integrations.serving.loading import Room
from ladder.integrations.serving.ranks import (
    Columns,
    Rows,
    modules_of,
    part_rows,
    vocabulary_rows,
    whole_rows,
)
from ladder.integrations.serving.stored import Folder
from ladder.integrations.vllm.gated import GatedMLPs, Holders
from ladder.integrations.vllm.warm import Warmer
from ladder.ops.gating import Gating

_log = logging.getLogger("vllm.ladder")
#: Layers whose shards of tensor parallelism ladder cuts as vLLM does. A subclass with a loader of
#: its own may cut otherwise.
_KNOWN_LAYERS = ("ColumnParallelLinear", "MergedColumnParallelLinear", "QKVParallelLinear")
#: Of multi-head latent attention (DeepSeek), which takes the values of its weight into its own
#: products, and finds them by a product with the identity when the model is loaded.
_ABSORBED = "kv_b_proj"
#: Of Mamba 2 where groups are fewer than ranks, by type and name: a layer without parts, which its
#: model cuts into five, two of which each rank has whole.
_OF_FEW_GROUPS = ("ColumnParallelLinear", "in_proj")


def last_of(prefix: str) -> str:
    """The name of a layer in the module that holds it."""
    return prefix.rpartition(".")[2]


class LinearMethod(LinearMethodBase):
    """Of one layer of packed weights.

    Args:
        folder: what the files hold.
        prefix: the layer's name.
        names: of the modules in the files that the layer is made of.
    """

    #: Whether the layer is called with images, where the device has kernels for the type.
    prepacks = True

    def __init__(self, folder: Folder, prefix: str, names: list[str]) -> None:
        self.folder, self.prefix, self.names = folder, prefix, names
        #: Whether x is rounded as the files say. Embeddings, and output layers tied to them, take
        #: it as it comes, and so do absorbed layers: static scales would round the identity.
        self.rounds = self.prepacks
        self.absorbed = last_of(prefix) == _ABSORBED
        self.runs: tuple[Run, ...] = ()
        self.holders: Holders = []
        #: Rows of the whole layer before and behind those of this rank, where its columns cannot
        #: be parted: each rank then has all columns of some rows.
        self.around: tuple[int, int] | None = None

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra: Any,
    ) -> None:
        """Register a parameter for each tensor of the layer in the files.

        Raises:
            CheckpointError: headers that do not fit the model.
            Unsupported: a cut for tensor parallelism that the type does not allow.
        """
        self.dtype = params_dtype
        vllm_config = get_current_vllm_config()
        self.dummy = vllm_config.load_config.load_format == "dummy"
        self.warmer = Warmer.of(vllm_config, params_dtype)
        self.rounds = self.prepacks and not self.warmer.weights_only and not self.absorbed
        self.warmer.choose_sums(self.folder)
        rows = self._rows(layer, list(output_partition_sizes))
        modules = modules_of(self.folder, self.names, rows, input_size)
        columns = Columns(0, input_size, input_size)
        own = input_size_per_partition
        if own != input_size:
            columns = Columns(layer.tp_rank * own, own, input_size)
            # Of every rank: all must gather, or none.
            if any(
                each.act_order or each.columns_objection(input_size, start, own)
                for each in modules
                for start in range(0, input_size, own)
            ):
                rows, columns = self._all_columns(layer, rows, input_size)
        self.room = Room(self.prefix, modules, rows, columns, params_dtype)
        for name in self.room.names():
            layer.register_parameter(name, self.room.parameter(name))
        self.mlps = GatedMLPs.of(vllm_config)
        self.may_gate = self.mlps.is_candidate(layer, self.room)
        if self.may_gate:
            self.mlps.expect()
        if self.prepacks:
            device = next(layer.parameters()).device

            def gating() -> Gating | None:
                product = self._product(layer)
                return product.gating if isinstance(product, Product) else None

            later = gating if self.may_gate else None
            self.warmer.expect(self.room, device, rounds=self.rounds, gating=later)

    def _product(self, layer: nn.Module) -> Product | str:
        """What the layer's parts become in the module that holds it, or why it is not to give
        that itself."""
        return self.mlps.product(layer, self.room, self.holders, self.dtype)

    def _rows(self, layer: nn.Module, sizes: list[int]) -> list[Rows]:
        """What this rank holds of each part, whose sizes on this rank are given."""
        if isinstance(layer, VocabParallelEmbedding):
            return vocabulary_rows(layer, sizes[0])
        if isinstance(layer, RowParallelLinear) or sum(sizes) == layer.output_size:
            return whole_rows(sizes)
        loader = getattr(type(layer), "weight_loader_v2", None)
        known = getattr(loader, "__qualname__", "").split(".")[0] in _KNOWN_LAYERS
        if not known or (type(layer).__name__, last_of(self.prefix)) == _OF_FEW_GROUPS:
            raise Unsupported(
                f"{self.prefix} is a {type(layer).__name__}, whose shards ladder does not know: "
                "serve it with tensor_parallel_size=1"
            )
        return part_rows(
            sizes, layer.tp_rank, layer.tp_size, getattr(layer, "num_kv_head_replicas", 1)
        )

    def _all_columns(
        self, layer: nn.Module, rows: list[Rows], k: int
    ) -> tuple[list[Rows], Columns]:
        """Of a layer that is cut along its columns where these must stay together: part of the
        rows, with all columns. Activations are gathered, and the ranks' rows are what they sum."""
        rank, ranks, n = layer.tp_rank, layer.tp_size, rows[0].whole
        if n % ranks:
            raise Unsupported(f"{self.prefix} has {n} rows, which {ranks} ranks cannot share")
        own = n // ranks
        self.around = rank * own, n - (rank + 1) * own
        return [Rows(own, rank * own, own, n)], Columns(0, k, k)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Bring what was loaded into the form that kernels of the device read.

        Raises:
            CheckpointError: tensors that were not loaded, by name, or cannot be a weight's.
        """
        if not all(hasattr(getattr(layer, n, None), "ladder_room") for n in self.room.names()):
            return  # it has been done
        if self.dummy:
            self.room.fill_dummy(layer)
        for name in self.names:
            if self.folder.has_bias(name) and getattr(layer, "bias", None) is None:
                # AutoGPTQ writes zeros for layers without one.
                _log.warning("%s.bias is in the files, and vLLM's model has none: dropped", name)
        first = self.may_gate and not self.runs
        product = self._product(layer) if first else ""
        gating = product.gating if isinstance(product, Product) else None
        if self.runs:
            gating = self.runs[0].gating
        self.runs = finish(
            self.room, layer, self.dtype,
            prepack=self.prepacks, before=self.runs, warm=self.warmer,
            rounds=self.rounds, gating=gating,
        )  # fmt: skip
        if first:
            self.mlps.finished(self.prefix, product, self.runs, self.holders)
        if self.absorbed and not hasattr(layer, "weight"):
            # vLLM 0.26 asks for its dtype where prompts have a cached prefix.
            layer.weight = next(layer.parameters()).new_empty(0, dtype=self.dtype)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """[..., K] to [..., N] of this rank, or to [..., N / 2], the product of gate and up. The
        number of tokens decides in C++, not here: vLLM traces this once for all."""
        if self.around is None:
            return multiply(self.runs, layer, x, bias)
        y = multiply(self.runs, layer, tensor_model_parallel_all_gather(x), None)
        y = nn.functional.pad(y, self.around)
        return y if bias is None else y + bias


class EmbeddingMethod(LinearMethod):
    """Of a packed embedding, whose rows are decoded as they are asked for. As a tied output layer
    it is multiplied in the same, canonical form."""

    prepacks = False

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        super().process_weights_after_loading(layer)
        self.lookup = Lookup.of(self.runs[0], self.room.columns.whole, self.dtype)

    def embedding(self, layer: nn.Module, input_: Tensor) -> Tensor:
        """Values of the rows ``input_``: [..., K]."""
        return self.lookup(layer, input_)

    def tie_weights(self, layer: nn.Module, embed_tokens: nn.Module) -> nn.Module:
        return embed_tokens


class TiedMethod(LinearMethodBase):
    """Of an output layer that is an embedding's: it has nothing of its own."""

    def create_weights(self, layer: nn.Module, *sizes: Any, **extra: Any) -> None:
        pass

    def tie_weights(self, layer: nn.Module, embed_tokens: nn.Module) -> nn.Module:
        return embed_tokens

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        raise CheckpointError("the output layer has no tensor in the files, and was not tied")
