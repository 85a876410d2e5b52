# SPDX-License-Identifier: Apache-2.0
"""A gate and up as rows of one weight, with the product of both made where their sums are.

The two layers stay where they are, under their names, as merged layers do (ladder/nn/merged.py).
Their parent asks for the gated product itself (:class:`RunsGated`), for the sums of gate and up are
nowhere. Whatever asks a layer for them gets them from a weight of its own, which it then has.
"""

from __future__ import annotations

import functools
import logging
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import is_grad_enabled as _grad_enabled
from torch.compiler import is_compiling as _is_compiling

from ladder.cuda import image as images
from ladder.cuda.epilogue import in_turn, linear_then
from ladder.errors import Unsupported
from ladder.nn.gated_form import Form
from ladder.nn.joined import joined
from ladder.nn.joined import objection as merge_objection
from ladder.nn.kept import Kept
from ladder.nn.linear import Linear
from ladder.nn.merged import MergedWeight
from ladder.nn.quick_call import watched
from ladder.ops.gating import Gating
from ladder.ops.transforms import autocast_dtype

_log = logging.getLogger("ladder")


class GatedLinear(Linear):
    """``y = gating(x @ value(weight).T + bias)`` with the rows of the gate in front of those of up:
    [..., K] to [..., N / 2]. ``bias`` of a call is [N] in the order of the rows; the module has
    none."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turned = Kept()

    @property
    def gating(self) -> Gating:
        assert self._gating is not None
        return self._gating

    @gating.setter
    def gating(self, gating: Gating) -> None:
        self._gating = gating

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, None)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """:meth:`forward` with a bias."""
        if _is_compiling():
            self._prepare_for_trace()
        return self._with_bias(x, bias)

    def _by_image(self, x: Tensor, bias: Tensor | None) -> Tensor:
        image: Any = self.image
        if bias is not None:
            trained = bias.requires_grad and _grad_enabled()
            bias = in_turn(bias) if trained else self._turned((bias,), partial(in_turn, bias))
        number, n, scale = self._weight_number, self.out_features // 2, self._scale_of_x()
        return linear_then(x, image, bias, number, n, self.gating, scale)

    def _by_codes(self, x: Tensor, bias: Tensor | None) -> Tensor:
        # In memory of their own, functions take them as those of two layers, to the bit.
        gate, up = (half.contiguous() for half in super()._by_codes(x, bias).chunk(2, -1))
        return self.gating.product(gate, up)


class GatedWeight(MergedWeight):
    """The weight of a gate and of up.

    Args:
        parent: the module that multiplies them, of that :class:`Form`. It becomes one that
            :class:`RunsGated`.
        form: without an :func:`objection`.
    """

    def __init__(self, parent: nn.Module, form: Form) -> None:
        self.parent, self.form = parent, form
        self.layers = tuple(parent._modules[name] for name in (form.gate, form.up))  # type: ignore[misc]
        self.sizes = [layer.out_features for layer in self.layers]
        #: Whose calls the gated product leaves out.
        self._silent = (*self.layers, *(parent._modules[name] for name in form.functions))
        self._bias = Kept()
        with torch.inference_mode(False), torch.no_grad():
            self.linear: GatedLinear = joined(self.layers, GatedLinear)
            self.linear.bias = None  # of the layers, whose parameters optimizers know
            self.linear.gating = form.gating
            self.adopt()
        parent.__dict__["_gated"] = self
        kind: Any = type(parent)
        parent.__class__ = _gated_class(kind)
        self.linear.prepare()

    def serves(self) -> bool:
        """Whether nobody watches or has replaced what the gated product leaves out."""
        modules = self.parent._modules
        form, (gate, up) = self.form, self.layers
        return (
            modules.get(form.gate) is gate
            and modules.get(form.up) is up
            and not any(watched(module) for module in self._silent)  # type: ignore[arg-type]
        )

    def gated(self, x: Tensor) -> Tensor:
        """[..., K] to [..., N of the gate]."""
        return self.linear.product(x, self._biases(autocast_dtype(x) or x.dtype))

    def _biases(self, dtype: torch.dtype) -> Tensor | None:
        biases: list[Any] = [layer.bias for layer in self.layers]
        if biases[0] is None:
            return None
        if _grad_enabled() and any(bias.requires_grad for bias in biases):
            return torch.cat(biases)

        def cast() -> Tensor:
            return torch.cat([bias.detach() for bias in biases]).to(dtype)

        return self._bias(biases, cast, dtype)

    def part(self, x: Tensor, place: int) -> Tensor:
        layer = self.layers[place]
        self.ungate()
        return Linear.forward(layer, x)

    def product_of_codes(
        self, x: Tensor, x_scale: Tensor | None, out_dtype: torch.dtype, place: int
    ) -> Tensor:
        layer = self.layers[place]
        self.ungate()
        return Linear.forward_codes(layer, x, x_scale, out_dtype=out_dtype)

    def ungate(self) -> None:
        if _is_compiling():
            raise Unsupported(
                f"the sums of {self.form.gate} and {self.form.up} are asked for, and kernels give "
                "their product: call ladder.unoptimize(model) before torch.compile"
            )
        _log.info("%s and %s get their own weights again: their sums are asked for",
                  self.form.gate, self.form.up)  # fmt: skip
        self.dissolve()

    def leave(self) -> bool:
        held = self.parent.__dict__.pop("_gated", None) is not None
        if held:
            self.parent.__class__ = type(self.parent)._kind  # type: ignore[attr-defined]
        return held


class RunsGated(nn.Module):
    """What the class of a parent of gate and up derives from while they are one weight. Copies and
    pickles are of the class that it was."""

    _kind: type[nn.Module]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        weight: GatedWeight | None = self.__dict__.get("_gated")
        if weight is None or not self._serves() or len(args) + len(kwargs) != 1:
            return super().forward(*args, **kwargs)
        (x,) = args or kwargs.values()
        return self._modules[weight.form.down](weight.gated(x))  # type: ignore[misc]

    def _serves(self) -> bool:
        weight = self.__dict__.get("_gated")
        return weight is not None and weight.serves()

    # As Linear._prepare_for_trace: asked when a graph is traced, not by it.
    _serves._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = {**self.__getstate__()}
        state.pop("_gated", None)
        return _unmade, (self._kind,), state


def _unmade(kind: type[nn.Module]) -> nn.Module:
    return kind.__new__(kind)


@functools.cache
def _gated_class(kind: type[nn.Module]) -> type[nn.Module]:
    """Printed as ``kind``, of which it is one."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "_kind": kind}
    return type(kind.__name__, (RunsGated, kind), names)


def objection(parent: nn.Module, form: Form) -> str:
    """Why gate and up of ``parent`` cannot be one weight, or had better not; "" when they can."""
    if "forward" in parent.__dict__:
        return "something has replaced its forward"
    layers: list[Any] = [parent._modules[name] for name in (form.gate, form.up)]
    for name, layer in zip((form.gate, form.up), layers, strict=True):
        if not isinstance(layer, Linear):
            return f"{name} is of {type(layer).__name__}, not ladder.Linear"
        if layer.activation is not None:
            return f"{name} has an activation, {layer.activation}, of its own"
    for name in (form.gate, form.up, *form.functions):
        module: Any = parent._modules[name]
        if watched(module):
            return f"a hook watches {name}, or something has replaced its forward"
    if why := merge_objection(layers):
        return why
    gate, up = (layer.out_features for layer in layers)
    if gate != up:
        return f"{form.gate} has {gate} rows and {form.up} {up}"
    if not images.alternates(2 * gate):
        return f"{gate} rows of each are no multiple of 8"
    return device_objection(layers[0].device)


def device_objection(device: torch.device) -> str:
    """Why one weight of gate and up would be slower on ``device`` than two; "" when it would not.

    From 32 tokens on the kernels of AMD's GPUs have gate and up in other lanes
    (csrc/pipelines/waves/objection.cpp): the weight would be dequantised by each call.
    """
    if device.type != "cuda" or not torch.version.hip:
        return ""
    return "kernels of AMD's GPUs give the product of gate and up for up to 16 tokens only"
