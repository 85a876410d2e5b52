# SPDX-License-Identifier: Apache-2.0
"""PEFT: merging adapters into packed weights, and taking them out again.

PEFT's own code merges, into a dense layer with the packed layer's values in float32, which is in
its place meanwhile; the sum is quantised to the type that the weight has. While adapters are merged
the packed content from before is kept, so that unmerging gives it back bit for bit, and adapters
that are merged later are added to it, not to what was rounded.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge
from torch import Tensor, nn

from ladder.errors import Unsupported
from ladder.integrations.peft_values import rounded
from ladder.nn.embedding import Embedding
from ladder.nn.merged_layer import MergedLinear
from ladder.nn.packed import PackedModule
from ladder.weight import Weight

#: Of a packed layer that adapters are merged into: its :class:`_Merged`.
_MERGED = "_ladder_merged_adapters"


class Merges:
    """Of a layer of adapters whose innermost base layer is packed, or was until it was made dense;
    comes before PEFT's class."""

    def merge(self: Any, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add adapters to the packed weight, which is rounded to its type once for all that are
        merged. A weight that they do not change stays as it is, bit for bit.

        Raises:
            ValueError: a sum is not finite, with or without ``safe_merge``, or PEFT refuses the
                adapter; the layer stays as it was.
            Unsupported: the layer is offloaded, or the type's groups are none of the weight's.
        """
        names = check_adapters_to_merge(self, adapter_names)
        base = self.get_base_layer()
        if names and isinstance(base, PackedModule):
            merged_into(self).add(self, names, safe_merge)
        elif names:  # made dense since
            with _in_place(self, base):
                self.merge_dense(safe_merge, names)

    def unmerge(self: Any) -> None:
        """Take out the layer's adapters: the packed weight is the one from before, bit for bit."""
        if not self.merged:
            warnings.warn("Already unmerged. Nothing to do.", stacklevel=2)
            return
        base = self.get_base_layer()
        if isinstance(base, PackedModule):
            merged_into(self).remove(self)
        else:
            with _in_place(self, base):
                self.unmerge_dense()

    def merge_dense(self, safe_merge: bool, adapter_names: list[str]) -> None:
        """PEFT's merging, while the base layer is dense."""
        theirs: Any = super()
        try:
            theirs.merge(safe_merge=safe_merge, adapter_names=adapter_names)
        except NotImplementedError as error:
            modules = (each.__module__ for each in type(self).__mro__)
            kind = next(each.split(".")[2] for each in modules if each.startswith("peft.tuners."))
            why = f": {error}" if str(error) else ""
            raise Unsupported(f"PEFT merges no adapters of {kind}{why}") from None

    def unmerge_dense(self) -> None:
        """PEFT's own, where the base layer is dense."""
        theirs: Any = super()
        theirs.unmerge()


class _Merged:
    """What a packed layer was before adapters came into it, and which did.

    Attributes:
        weight, bias: as they were; parts of the layer itself where merging has not changed it.
        names: adapters by the layers of adapters that they are of, in the order of merging.
    """

    def __init__(self, base: PackedModule) -> None:
        bias = base._parameters.get("bias")
        if base.device.type == "meta" or (bias is not None and bias.is_meta):
            raise Unsupported(
                "the packed layer is offloaded, and merging needs its parts: load the model "
                "without offloading"
            )
        if isinstance(base, MergedLinear):
            base._restore()  # what is quantised is a weight of its own
        self.base, self.names = base, dict[Any, list[str]]()
        self.weight = base.packed_weight
        self.bias = None if bias is None else bias.detach().clone()

    def add(self, layer: Any, names: list[str], safe: bool) -> None:
        wanted = {**self.names, layer: [*self.names.get(layer, ()), *names]}
        dense, came = self.summed(wanted, safe)
        self._set(dense)
        self.names = {each: of for each, of in came.items() if of}
        self._note()
        layer.merged_adapters = list(came[layer])

    def remove(self, layer: Any) -> None:
        left = {each: of for each, of in self.names.items() if each is not layer}
        if left:
            self._set(self.summed(left, safe=False)[0])
        else:
            self._put(self.weight.to(self.base.device), self.bias)
        self.names = left
        self._note()
        layer.merged_adapters = []

    def summed(
        self, wanted: dict[Any, list[str]], safe: bool
    ) -> tuple[nn.Module, dict[Any, list[str]]]:
        """A dense layer with the adapters in it, and which PEFT found. Nothing else changes."""
        dense, came = self._dense(), dict[Any, list[str]]()
        with torch.inference_mode(False), torch.no_grad(), ExitStack() as stack:
            for layer, names in wanted.items():
                stack.callback(setattr, layer, "merged_adapters", layer.merged_adapters)
                layer.merged_adapters = []
                with _in_place(layer, dense):
                    layer.merge_dense(safe, names)
                came[layer] = layer.merged_adapters
        return dense, came

    def _dense(self) -> Any:
        values, base = self.values(), self.base
        n, k = values.shape
        with torch.device("meta"):
            dense: Any = nn.Embedding(n, k) if isinstance(base, Embedding) else nn.Linear(k, n)
        dense.weight = nn.Parameter(values, requires_grad=False)
        if not isinstance(base, Embedding):
            bias = None if self.bias is None else self.bias.to(values.device, torch.float32)
            dense.bias = None if bias is None else nn.Parameter(bias.clone(), requires_grad=False)
        return dense.train(base.training)

    def values(self) -> Tensor:
        """[N, K] float32: the weight that multiplies x, as it was."""
        values = self.weight.to(self.base.device).dequantize()
        scale = self.base._buffers.get("pre_scale")
        return values if scale is None else values * scale

    def _set(self, dense: Any) -> None:
        """Round what adapters have made of the layer."""
        own = self.weight.to(self.base.device)
        weight = rounded(dense.weight.detach(), own, self.base._buffers.get("pre_scale"))
        self._put(weight, None if self.bias is None else dense.bias.detach())

    def _put(self, weight: Weight, bias: Tensor | None) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self.base.set_weight(weight)
            if bias is not None:  # the very parameter, of which optimizers know
                cast(Any, self.base).bias.copy_(bias)

    def _note(self) -> None:
        state = self.base.__dict__
        if self.names:
            state[_MERGED] = self
        else:
            state.pop(_MERGED, None)


def merged_into(layer: Any) -> _Merged:
    """What has been merged into the packed layer below a layer of adapters, if only nothing."""
    base = layer.get_base_layer()
    return base.__dict__.get(_MERGED) or _Merged(base)


def forget(base: nn.Module) -> None:
    """What was merged into ``base`` stays in it for good; nothing of before is kept."""
    base.__dict__.pop(_MERGED, None)


@contextmanager
def _in_place(layer: Any, dense: nn.Module) -> Iterator[None]:
    """``dense`` is where the packed layer was, within ``layer`` or a layer inside of it."""
    holder = layer
    while isinstance(holder.base_layer, BaseTunerLayer):
        holder = holder.base_layer
    packed, backend = holder.base_layer, layer.__dict__.get("quantization_backend")
    holder._modules["base_layer"] = dense
    try:
        if backend is not None:
            layer.quantization_backend = None
        yield
    finally:
        holder._modules["base_layer"] = packed
        if backend is not None:
            layer.quantization_backend = backend
