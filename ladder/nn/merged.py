# SPDX-License-Identifier: Apache-2.0
"""Layers that get the same input (q, k and v; gate and up) as rows of one weight: one kernel
instead of three.

The layers stay where they are in the model, under their names. Their rows lie in one weight, and
the first of them that is called with an input computes all of them; the others return their part
of that result. A result is kept only while the layers' parent runs, on the thread that runs it, and
is taken only by a call

- with the very tensor that it was computed from, not written since (torch counts writes, but not
  those to inference tensors nor those that torch.compile traces: which is why
  :mod:`ladder.nn.same_input` first looks whether a parent writes between the calls),
- with gradients and autocast switched as they were then, and
- once: who calls a layer twice gets two tensors.

Every other call computes all rows anew, which is slower and right. An exception of the parent drops
the result, and so does its return. The alternative, a forward of our own for each class of
transformers, would be a copy of code that changes with every release.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import is_grad_enabled as _grad_enabled
from torch.compiler import is_compiling as _is_compiling
from torch.compiler import is_exporting

from ladder._torch import recording as _recording
from ladder._torch import transformed as _transformed
from ladder.nn.joined import joined
from ladder.nn.linear import Linear
from ladder.nn.merged_layer import MergedLinear, by_itself, dissolving
from ladder.nn.ragged import nested_like, rows_of_nested
from ladder.nn.slot import Result, Slot, modes_of
from ladder.weight import PARTS, parts_of_rows, rows_of

_log = logging.getLogger("ladder")
_SMALL = tuple(part for part in PARTS if part != "qweight")


class MergedWeight:
    """The weight of several layers, one after the other.

    Args:
        parent: the module whose forward calls the layers with one input.
        layers: two or more without an :func:`objection`. They become :class:`MergedLinear`.
    """

    def __init__(self, parent: nn.Module, layers: Sequence[Linear]) -> None:
        self.layers = tuple(layers)
        self.sizes = [layer.out_features for layer in layers]
        self._slot = Slot()
        with torch.inference_mode(False), torch.no_grad():
            self.linear: Linear = joined(self.layers)
            self.adopt()
        self._handles = [
            parent.register_forward_pre_hook(self._slot.open),
            parent.register_forward_hook(self._slot.close, always_call=True),
        ]
        self.linear.prepare()

    def adopt(self) -> None:
        """Let the layers have their parts of the whole, and nothing beside it."""
        start, all_rows = 0, sum(self.sizes)
        for index, (layer, size) in enumerate(zip(self.layers, self.sizes, strict=True)):
            Linear._set_image(layer, None, 0)
            layer.register_buffer("qweight", None)
            ttype = layer.weight_type
            for name in parts_of_rows(ttype):
                whole = getattr(self.linear, name)
                part = None if whole is None else rows_of(name, whole, ttype, start, size, all_rows)
                layer.register_buffer(name, part)
            if self.linear.bias is not None:  # the very parameter, of which optimizers know
                layer.bias.data = self.linear.bias.data[start : start + size]
            layer.__dict__["_merged"], layer.__dict__["_place"] = self, index
            layer.__class__ = MergedLinear
            start += size
        has_bias = self.linear.bias is not None
        #: Whose memory is that of the whole.
        self._biases_held = [layer._parameters["bias"] for layer in self.layers if has_bias]
        #: Parts of the layers but their codes, which they have none of.
        self._held = [
            (layer._buffers, name, part)
            for layer in self.layers
            for name in _SMALL
            if (part := layer._buffers.get(name)) is not None
        ]

    def gives(self) -> bool:
        """Whether layers have other parts for now, as within ``torch.func.functional_call``."""
        with_codes = any(layer._buffers["qweight"] is not None for layer in self.layers)
        return with_codes or self._gives_small()

    def _gives_small(self) -> bool:
        """Other scales, say, and no codes."""
        if is_exporting():  # buffers are stood in for
            return False
        for buffers, name, part in self._held:  # noqa: SIM110  # any() would cost each product more
            if buffers[name] is not part:
                return True
        return False

    def part(self, x: Tensor, place: int) -> Tensor:
        """[..., K] to [..., N of layer ``place``]."""
        slot: Any = self._slot.traced if _is_compiling() else self._slot.of_thread
        kept: Result | tuple[()] | None = slot.result
        if kept is None:
            return self._product(x)[place]
        modes = modes_of(x)
        parts: tuple[Tensor | None, ...] = ()
        if kept and kept[0] is x and kept[1] == modes:
            parts = kept[2]
        if not parts or parts[place] is None:
            parts = self._product(x)
        slot.result = (x, modes, (*parts[:place], None, *parts[place + 1 :]))
        return parts[place]  # type: ignore[return-value]  # not None, as was just asked

    def _product(self, x: Tensor) -> tuple[Tensor, ...]:
        if self._gives_small():
            return tuple(by_itself(layer).forward(x) for layer in self.layers)
        if getattr(x, "is_nested", False):  # torch crashes in the backward of its split
            rows = rows_of_nested(x, self.linear.in_features)
            return tuple(nested_like(x, part) for part in self._product(rows))
        y = self._by_biases(x) if _grad_enabled() or _recording() or self._exchanged() else None
        if y is None:
            y = self.linear.forward(x)
        if _transformed():  # torch.func has no rule for the other
            return y.split(self.sizes, -1)
        # Unlike views of ``split`` the parts may be written to, each for itself, gradients or not:
        # nobody has the whole. Their gradients come back as one tensor, for one product.
        return y.unsafe_split_with_sizes(self.sizes, -1)

    def _exchanged(self) -> bool:
        """Whether a layer has another bias for now, as within ``torch.func.functional_call``."""
        return any(
            layer._parameters["bias"] is not bias
            for layer, bias in zip(self.layers, self._biases_held, strict=False)
        )

    def _by_biases(self, x: Tensor) -> Tensor | None:
        """The product where a bias of a layer wants its gradient or is another for now, or a
        program is exported, whose parameters must be the model's; else None."""
        biases: list[Any] = [layer.bias for layer in self.layers]
        if biases[0] is None:
            return None
        wanted = any(bias.requires_grad for bias in biases)
        if not (wanted or _recording() or self._exchanged()):
            return None
        if _is_compiling():
            self.linear._prepare_for_trace()
        return self.linear._with_bias(x, torch.cat(biases))

    def product_of_codes(
        self,
        x: Tensor,
        x_scale: Tensor | None,
        out_dtype: torch.dtype,
        out_scale: Tensor | None,
        place: int,
    ) -> Tensor:
        """The part of layer ``place`` of :meth:`Linear.forward_codes`: all rows are computed."""
        y = self.linear.forward_codes(x, x_scale, out_dtype=out_dtype, out_scale=out_scale)
        return y.split(self.sizes, -1)[place].contiguous()

    def codes(self, place: int) -> Tensor:
        """The canonical codes of one layer, a copy."""
        start = sum(self.sizes[:place])
        return self.linear._canonical_codes()[start : start + self.sizes[place]].clone()

    def ungate(self) -> None:
        """Layers of a gated weight become such whose own products somebody asks for."""

    def leave(self) -> bool:
        """Let go of the parent; whether it was held."""
        held = bool(self._handles)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        return held

    def dissolve(self) -> None:
        """Give each layer its own weight again, bit for bit."""
        with dissolving:
            if not self.leave():
                return
            with torch.inference_mode(False), torch.no_grad():
                codes = [self.codes(place) for place in range(len(self.layers))]
                for layer, own in zip(self.layers, codes, strict=True):
                    layer._buffers["qweight"] = own
                    for name in parts_of_rows(layer.weight_type):
                        part = layer._buffers[name]
                        layer._buffers[name] = None if part is None else part.clone()
                    if self.linear.bias is not None:
                        layer.bias.data = layer.bias.data.clone()
                    layer._dependent_launch = self.linear.dependent_launch
                    layer.__class__ = Linear
                    del layer.__dict__["_merged"], layer.__dict__["_place"]
