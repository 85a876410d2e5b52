# SPDX-License-Identifier: Apache-2.0
"""A gate and up as rows of one weight, with the product of both made where their sums are.

The two layers, or the one layer of both, stay where they are, under their names, as merged layers
do (ladder/nn/merged.py). Their parent asks for the gated product itself (:class:`RunsGated`), for
the sums of gate and up are nowhere. Whatever asks a layer for them gets them from a weight of its
own, which it then has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import is_grad_enabled as _grad_enabled
from torch.compiler import is_compiling as _is_compiling

from ladder._torch import recording as _recording
from ladder.cuda import image as images
from ladder.cuda.epilogue import in_turn, linear_then
from ladder.errors import Unsupported
from ladder.nn.arguments import named_input
from ladder.nn.gated_form import Form
from ladder.nn.joined import joined
from ladder.nn.joined import objection as merge_objection
from ladder.nn.kept import Kept
from ladder.nn.linear import Linear
from ladder.nn.merged import MergedWeight
from ladder.nn.merged_layer import by_itself
from ladder.nn.quick_call import watched
from ladder.nn.residual import added_to
from ladder.nn.subclassed import Subclassed, restore, subclass
from ladder.ops.gating import Gating
from ladder.ops.transforms import autocast_dtype

_log = logging.getLogger("ladder")


class GatedLinear(Linear):
    """``y = gating(x @ value(weight).T + bias)`` with the rows of the gate in front of those of up:
    [..., K] to [..., N / 2]. ``bias`` of a call is [N] in the order of the rows; the module has
    none."""

    adds_residual = False
    #: The rows of up are in front of those of the gate. Set before the weight has an image.
    up_first = False
    #: Gate and up are what one layer of the model gives.
    of_one = False
    #: The model's own function of the gate, whose formula may round otherwise than ours.
    own: Callable[[Tensor], Tensor] | None = None

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

    def forward(
        self, x: Tensor | None = None, residual: Tensor | None = None, *, input: Any = None
    ) -> Tensor:
        x = named_input(x, input)
        if residual is not None:
            raise Unsupported("kernels add no residual to a product of gate and up")
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
            turn = partial(in_turn, bias, self.up_first)
            bias = turn() if trained else self._turned((bias,), turn)
        number, n, scale = self._weight_number, self.out_features // 2, self._scale_of_x()
        return linear_then(x, image, bias, number, n, self.gating, scale)

    def _image_rows(self) -> Tensor:
        return images.gate_rows(self.out_features, self.device, self.up_first)

    def _by_codes(self, x: Tensor, bias: Tensor | None) -> Tensor:
        gate, up = super()._by_codes(x, bias).chunk(2, -1)
        if self.up_first:
            gate, up = up, gate
        if not self.of_one:
            # In memory of their own, functions take them as those of two layers, to the bit.
            gate, up = gate.contiguous(), up.contiguous()
        own = self.own
        return self.gating.product(gate, up) if own is None else own(gate) * up


class GatedWeight(MergedWeight):
    """The weight of a gate and of up, of two layers or of one.

    Args:
        parent: the module that multiplies them, of that :class:`Form`. It becomes one that
            :class:`RunsGated`.
        form: without an :func:`objection`.
    """

    def __init__(self, parent: nn.Module, form: Form) -> None:
        self.parent, self.form = parent, form
        self.layers = tuple(parent._modules[name] for name in form.layers)  # type: ignore[misc]
        self.sizes = [layer.out_features for layer in self.layers]
        #: Whose calls the gated product leaves out, by name.
        self._silent = {name: parent._modules[name] for name in (*form.layers, *form.functions)}
        self._bias = Kept()
        with torch.inference_mode(False), torch.no_grad():
            self.linear: GatedLinear = joined(self.layers, GatedLinear)
            self.linear.bias = None  # of the layers, whose parameters optimizers know
            self.linear.gating, self.linear.up_first = form.gating, form.up_first
            self.linear.of_one = len(self.layers) == 1
            if form.own:  # no child of the weight's
                self.linear.__dict__["own"] = parent._modules[form.own]
            self.adopt()
        parent.__dict__["_gated"] = self
        subclass(parent, RunsGated)
        self.linear.prepare()

    def serves(self) -> bool:
        """Whether nobody watches or has replaced what the gated product leaves out."""
        modules, silent = self.parent._modules, self._silent
        return (
            all(modules.get(name) is silent[name] for name in silent)
            and not any(watched(module) for module in silent.values())  # type: ignore[arg-type]
        )

    def gated(self, x: Tensor) -> Tensor:
        """[..., K] to [..., N of the gate]."""
        return self.linear.product(x, self._biases(autocast_dtype(x) or x.dtype))

    def _biases(self, dtype: torch.dtype) -> Tensor | None:
        biases: list[Any] = [layer.bias for layer in self.layers]
        if biases[0] is None:
            return None
        if _recording() or (_grad_enabled() and any(bias.requires_grad for bias in biases)):
            return torch.cat(biases)

        def cast() -> Tensor:
            return torch.cat([bias.detach() for bias in biases]).to(dtype)

        return self._bias(biases, cast, dtype)

    def part(self, x: Tensor, place: int) -> Tensor:
        return Linear.forward(self._alone(place), x)

    def product_of_codes(
        self,
        x: Tensor,
        x_scale: Tensor | None,
        out_dtype: torch.dtype,
        out_scale: Tensor | None,
        place: int,
    ) -> Tensor:
        layer = self._alone(place)
        return Linear.forward_codes(layer, x, x_scale, out_dtype=out_dtype, out_scale=out_scale)

    def _alone(self, place: int) -> Linear:
        """Layer ``place`` with a weight of its own. It stays one of this weight where another layer
        has other parts for now: ``functional_call`` would then put buffers of this time back into
        layers of their own."""
        if self.gives():
            return by_itself(self.layers[place])
        self.ungate()
        return self.layers[place]

    def ungate(self) -> None:
        if _is_compiling():
            raise Unsupported(
                f"the sums of {' and '.join(self.form.layers)} are asked for, and kernels give the "
                "product of gate and up: call ladder.unoptimize(model) before torch.compile"
            )
        names = " and ".join(self.form.layers)
        _log.info("the sums of %s are asked for: each layer gets its own weight again", names)
        self.dissolve()

    def leave(self) -> bool:
        held = "_gated" in self.parent.__dict__
        if held:
            restore(self.parent)
        return held


class RunsGated(Subclassed):
    """What the class of a parent of gate and up derives from while they are one weight."""

    _extra = ("_gated",)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        weight: GatedWeight | None = self.__dict__.get("_gated")
        residual = None
        # A compiler asks _serves() beside the program, which may give layers other parts for now.
        if weight is None or weight.gives() or not self._serves():
            return super().forward(*args, **kwargs)
        if getattr(self, "adds_residual", False):  # ladder.GatedMLP
            x, residual = _x_and_residual(*args, **kwargs)
        elif len(args) + len(kwargs) != 1:
            return super().forward(*args, **kwargs)
        else:
            (x,) = args or kwargs.values()
        y = weight.gated(x)
        children: dict[str, Any] = self._modules
        for name in weight.form.dropouts:
            y = children[name](y)
        down = children[weight.form.down]
        if weight.form.casts and y.dtype != down.weight.dtype:
            y = y.to(down.weight.dtype)
        return added_to(residual, down, y)

    def _serves(self) -> bool:
        weight = self.__dict__.get("_gated")
        return weight is not None and weight.serves()

    # As Linear._prepare_for_trace: asked when a graph is traced, not by it.
    _serves._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _x_and_residual(x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    return x, residual


def objection(parent: nn.Module, form: Form) -> str:
    """Why gate and up of ``parent`` cannot be one weight, or had better not; "" when they can."""
    if "forward" in parent.__dict__:
        return "something has replaced its forward"
    layers: list[Any] = [parent._modules[name] for name in form.layers]
    for name, layer in zip(form.layers, layers, strict=True):
        if not isinstance(layer, Linear):
            return f"{name} is of {type(layer).__name__}, not ladder.Linear"
        if layer.activation is not None:
            return f"{name} has an activation, {layer.activation}, of its own"
    for name in (*form.layers, *form.functions):
        module: Any = parent._modules[name]
        if watched(module):
            return f"a hook watches {name}, or something has replaced its forward"
    if why := merge_objection(layers):
        return why
    gate, up = layers[0].out_features, layers[-1].out_features
    if len(layers) == 1:
        gate = up = gate // 2
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
