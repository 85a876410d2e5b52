# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism: a Linear whose weight is cut over several processes (docs/transformers.md).

A weight is cut where its canonical form can be, into rows or columns. Rows need no sum: each
process computes some of the outputs, from all inputs. Columns need one: each computes a part of
every output, from some of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ladder import ops
from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.arguments import named_input
from ladder.nn.collectives import (
    gather,
    gather_for_parts,
    share_for_parts,
    span,
    split,
    total,
)
from ladder.nn.linear import Linear
from ladder.ops.transforms import plus
from ladder.types import TType
from ladder.weight import Weight, join


@dataclass(frozen=True)
class Shard:
    """What one process holds of a layer [N, K], and what it is given and gives.

    Attributes:
        rank: of this process, of ``size``.
        along: whether it holds ``rows`` or ``columns`` of the weight; equal shares of N or K.
        x_split: x has only the share of K, not all of it.
        y_split: y is to have only the share of N, not all of it; with columns it cannot.
    """

    rank: int
    size: int
    along: Literal["rows", "columns"]
    x_split: bool = False
    y_split: bool = False

    def of(self, weight: Weight) -> Weight:
        """This process's part of the whole weight. Raises InvalidArgument where it cannot be cut,
        or nothing is left for this process."""
        n, k = weight.shape
        start, length = span(n if self.along == "rows" else k, self.rank, self.size)
        if length < 1:
            raise InvalidArgument(f"there are fewer {self.along} than processes")
        cut = weight.narrow_rows if self.along == "rows" else weight.narrow_columns
        part = cut(start, length)
        # Copies: views of the whole parts would keep them in memory.
        return Weight(part.type, part.shape, **{k: t.clone() for k, t in part.tensors().items()})

    def shape(self, whole: tuple[int, int]) -> tuple[int, int]:
        """[N, K] of this process's part."""
        n, k = whole
        if self.along == "rows":
            return span(n, self.rank, self.size)[1], k
        return n, span(k, self.rank, self.size)[1]

    def bias_of(self, bias: Tensor, n: int) -> Tensor | None:
        """What this process adds of the bias [n], of which it may have its share only: that of its
        rows; with columns, whose sum would have the bias ``size`` times, the first process alone
        adds it."""
        if self.along == "columns":
            return bias if self.rank == 0 else None
        start, length = span(n, self.rank, self.size)
        return bias if bias.shape[0] < n else bias[start : start + length].clone()


def choose(name: str, weight: Weight, wanted: Shard) -> Shard:
    """``wanted``, or where the weight cannot be cut along columns (act-order, groups or words of 32
    bits that would be cut) the same along rows, from gathered inputs.

    Args:
        name: of the layer, for the error.
        weight: the whole one, of which no element is read.
    Raises:
        Unsupported: it can be cut along neither.
    """
    weight, faults = weight.to("meta"), []
    for shard in dict.fromkeys((wanted, replace(wanted, along="rows"))):
        fault = _fault(weight, shard, wanted.size)
        if fault is None:
            return shard
        faults.append(fault)
    fitting = [s for s in range(1, wanted.size) if _fault(weight, replace(wanted, along="rows"), s)
               is None]  # fmt: skip
    n, k = weight.shape
    raise Unsupported(
        f"{name} of {n} rows and {k} columns cannot be cut over tp_size {wanted.size} processes: "
        f"{'; '.join(faults)}. It can be over {', '.join(map(str, fitting))}"
    )


def _fault(weight: Weight, shard: Shard, size: int) -> str | None:
    for rank in range(size):
        try:
            replace(shard, rank=rank, size=size).of(weight)
        except InvalidArgument as error:
            return str(error)
    return None


#: Of layers whose x has numbers for its columns.
NO_PARTS = (
    "columns of x are multiplied by pre_scale, which layers that are cut over processes do not do: "
    "load it without tensor parallelism"
)


class ParallelLinear(Linear):
    """A :class:`Linear` that holds one process's part of a weight. Its parts, ``in_features``,
    ``out_features`` and ``state_dict`` are those of the part; saving a whole model needs
    :func:`whole_weight`. All processes call it together, with inputs of the same shape."""

    shard: Shard
    whole_shape: tuple[int, int]  #: [N, K] of all parts together
    group: Any  #: the ProcessGroup

    def forward(
        self, x: Tensor | None = None, residual: Tensor | None = None, *, input: Any = None
    ) -> Tensor:
        """[..., K or its share] to [..., N or its share], as ``shard`` says. A residual is added to
        y as the caller gets it, rounded."""
        x = named_input(x, input)
        if residual is not None:
            return plus(self.forward(x), residual)
        shard, group, (n, k) = self.shard, self.group, self.whole_shape
        if shard.along == "columns":
            part = x if shard.x_split else split(x, group)
            return total(super().forward(part), group)
        x = gather_for_parts(x, k, group) if shard.x_split else share_for_parts(x, group)
        y = super().forward(x)
        return y if shard.y_split else gather(y, n, group)

    def forward_codes(
        self,
        x: Tensor,
        x_scale: Tensor | None = None,
        *,
        out_dtype: torch.dtype = torch.float16,
        out_scale: Tensor | None = None,
    ) -> Tensor:
        raise Unsupported(
            f"this layer holds {self.shard.along} of its weight, as rank {self.shard.rank} of "
            f"{self.shard.size}: activations that are codes are multiplied by whole layers"
        )

    def _no_activation(self) -> str:
        return "this layer is cut over processes, and its activation would come before their sum"

    def dequantize(self, dtype: torch.dtype | None = None) -> nn.Module:
        raise Unsupported(
            f"this layer holds {self.shard.along} of its weight, as rank {self.shard.rank} of "
            f"{self.shard.size}; load the model without tensor parallelism to dequantise it"
        )

    def extra_repr(self) -> str:
        n, k = self.whole_shape
        shard = self.shard
        return f"{super().extra_repr()}, {shard.along} {shard.rank}/{shard.size} of [{n}, {k}]"


def cut(linear: Linear, shard: Shard, group: Any) -> None:
    """Keep of ``linear``, in place, what ``shard`` says. Raises InvalidArgument as Shard.of."""
    whole = linear.packed_weight
    part = shard.of(whole)
    become_parallel(linear, shard, group, whole.shape)
    linear.set_weight(part)


def become_parallel(linear: Linear, shard: Shard, group: Any, whole: tuple[int, int]) -> None:
    """Make a :class:`ParallelLinear` of ``linear``, which has this process's parts already, or gets
    them at once; its bias may be whole."""
    if linear.pre_scale is not None:
        raise Unsupported(NO_PARTS)
    if linear.activation is not None:
        raise Unsupported(
            f"a layer that ends with its activation, {linear.activation}, is not cut over processes"
        )
    linear.__class__ = ParallelLinear
    parallel = cast(ParallelLinear, linear)
    parallel.shard, parallel.whole_shape, parallel.group = shard, whole, group
    parallel.out_features, parallel.in_features = shard.shape(whole)
    if linear.bias is not None:
        bias = shard.bias_of(linear.bias.detach(), whole[0])
        wanted = linear.bias.requires_grad
        own = None if bias is None else nn.Parameter(bias, requires_grad=wanted)
        linear.register_parameter("bias", own)


def whole_weight(module: ParallelLinear) -> tuple[Weight, Tensor | None] | None:
    """The whole weight and bias, on the CPU, in the first process; None in the others. Every
    process of the group has to call it."""
    weight = module.packed_weight.to("cpu")
    bias = None if module.bias is None else module.bias.detach().cpu()
    group, rank = module.group, module.shard.rank
    first = torch.distributed.get_global_rank(group, 0)
    gathered: list[Any] | None = [None] * module.shard.size if rank == 0 else None
    mine = (weight.tensors(), bias)
    torch.distributed.gather_object(mine, gathered, dst=first, group=group)
    if gathered is None:
        return None
    parts = [tensors for tensors, _ in gathered]
    joined = _of_ranks(weight.type, module.whole_shape, module.shard.along, parts)
    if module.shard.along == "rows" and bias is not None:
        bias = torch.cat([bias for _, bias in gathered])
    return joined, bias


def _of_ranks(
    type: TType,
    shape: tuple[int, int],
    along: Literal["rows", "columns"],
    parts: Sequence[dict[str, Tensor]],
) -> Weight:
    """The weight [N, K] whose parts, in order of rank, these are: the inverse of ``Shard.of``."""
    n, k = shape
    if along == "rows":
        counts = [span(n, rank, len(parts))[1] for rank in range(len(parts))]
        weight = join([Weight(type, (c, k), **p) for c, p in zip(counts, parts, strict=True)])
        weight.check()
        return weight
    joined: dict[str, Tensor] = {}
    for name, first in parts[0].items():
        tensors = [part[name] for part in parts]
        of_columns = type.superblock if name == "scale2" else type.columns
        if name != "qweight" and not of_columns:
            joined[name] = first
        elif name == "zeros" and type.zero == "quantized":
            groups = [type.groups(span(k, rank, len(parts))[1]) for rank in range(len(parts))]
            unpack: Callable[..., Tensor] = ops.unpack
            codes = [unpack(t, g, type.bits) for t, g in zip(tensors, groups, strict=True)]
            joined[name] = ops.pack(torch.cat(codes, 1), type.bits)
        else:
            joined[name] = torch.cat(tensors, 1)
    weight = Weight(type, (n, k), **joined)
    weight.check()
    return weight
