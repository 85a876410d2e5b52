# SPDX-License-Identifier: Apache-2.0
"""The methods of SGLang's layers: make room for tensors, bring them into the form of kernels, call
those."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers import linear
from sglang.srt.layers.quantization.base_config import LinearMethodBase
from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding
from torch import Tensor, nn

from ladder.errors import Unsupported
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
from ladder.integrations.sglang.versions import is_dummy, place_of

#: Layers whose shards are those that their partition sizes say.
_KNOWN = (
    linear.ColumnParallelLinear,
    linear.MergedColumnParallelLinear,
    linear.QKVParallelLinear,
)


class LinearMethod(LinearMethodBase):
    """Of one layer of packed weights.

    Args:
        folder: what the files hold.
        prefix: the layer's name.
        names: of the modules in the files that the layer is made of.
    """

    prepacks = True

    def __init__(self, folder: Folder, prefix: str, names: list[str]) -> None:
        self.folder, self.prefix, self.names = folder, prefix, names
        self.runs: tuple[Run, ...] = ()
        self._before: dict[str, Tensor] = {}  # what graphs read, while new weights are loaded

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
            Unsupported: a cut for tensor parallelism that ladder cannot make.
        """
        self.dtype = params_dtype
        if len(self.names) > len(output_partition_sizes) == 1:
            # DeepSeek's loader joins tensors of q_a and kv_a for one layer that knows no parts.
            apart = [self.folder.rows_in_files(name) for name in self.names]
            if sum(apart) == output_size:
                output_partition_sizes = apart
        rows = self._rows(layer, output_partition_sizes, output_size)
        modules = modules_of(self.folder, self.names, rows, input_size)
        columns = Columns(0, input_size, input_size)
        if input_size_per_partition != input_size:
            start = place_of(layer)[0] * input_size_per_partition
            columns = Columns(start, input_size_per_partition, input_size)
            for each in modules:
                why = each.columns_objection(input_size, start, input_size_per_partition)
                if each.act_order:
                    why = "act-order leaves no rank its columns alone"
                if why:
                    raise Unsupported(f"{self.prefix}: {why}; serve it with --tp 1")
        self.room = Room(self.prefix, modules, rows, columns, params_dtype)
        self._make_room(layer)

    def _make_room(self, layer: nn.Module) -> None:
        for name in self.room.names():
            layer.register_parameter(name, self.room.parameter(name))

    def _rows(self, layer: nn.Module, sizes: list[int], output_size: int) -> list[Rows]:
        """What this rank holds of each part, whose sizes on this rank are given."""
        if isinstance(layer, VocabParallelEmbedding):
            return vocabulary_rows(layer, sizes[0])
        if sum(sizes) == output_size:
            return whole_rows(sizes)
        # Mamba 2's where groups are fewer than ranks: its model cuts it into parts of its own.
        few_groups = type(layer) is linear.ColumnParallelLinear and self.prefix.endswith(".in_proj")
        if type(layer) not in _KNOWN or few_groups:
            raise Unsupported(
                f"{self.prefix} is a {type(layer).__name__}, whose shards ladder does not know: "
                "serve it with --tp 1"
            )
        rank, ranks = place_of(layer)
        return part_rows(sizes, rank, ranks, getattr(layer, "num_kv_head_replicas", 1))

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Bring what was loaded into the form that kernels of the device read; on a second load
        into the memory of the first, which CUDA graphs read.

        Raises:
            CheckpointError: tensors that were not loaded, by name, or cannot be a weight's.
        """
        if not all(hasattr(getattr(layer, n, None), "ladder_room") for n in self.room.names()):
            return  # it has been done
        if is_dummy():
            self.room.fill_dummy(layer)
        self.runs = finish(
            self.room, layer, self.dtype,
            prepack=self.prepacks, before=self.runs, rounds=self.prepacks,
        )  # fmt: skip
        for name, before in self._before.items():
            before.copy_(getattr(layer, name))
            layer.register_parameter(name, nn.Parameter(before, requires_grad=False))
        self._before.clear()

    def restore_weights_before_loading(self, layer: nn.Module) -> None:
        """Make room for the tensors of the files again."""
        for name in [n for n, _ in layer.named_parameters(recurse=False) if n != "bias"]:
            self._before[name] = getattr(layer, name).data
            delattr(layer, name)
        self._make_room(layer)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """[..., K] to [..., N] of this rank."""
        return multiply(self.runs, layer, x, bias)


class EmbeddingMethod(LinearMethod):
    """Of a packed embedding, whose rows are decoded as they are asked for."""

    prepacks = False

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        super().process_weights_after_loading(layer)
        self.lookup = Lookup.of(self.runs[0], self.room.columns.whole, self.dtype)

    def embedding(self, layer: nn.Module, input_: Tensor) -> Tensor:
        """Values of the rows ``input_``: [..., K]."""
        return self.lookup(layer, input_)
