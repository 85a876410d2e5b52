# SPDX-License-Identifier: Apache-2.0
"""A layer whose rows lie in a weight of several (ladder/nn/merged.py)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ladder.cuda.request import Request
from ladder.errors import Unsupported
from ladder.nn.arguments import named_input
from ladder.nn.linear import Linear
from ladder.nn.packed import OF_X
from ladder.ops.transforms import plus
from ladder.weight import PARTS

if TYPE_CHECKING:
    from ladder.nn.merged import MergedWeight

_log = logging.getLogger("ladder")
#: Held while layers of a weight get their own again.
dissolving = threading.RLock()


def by_itself(layer: Linear) -> Linear:
    """A layer of the parts that ``layer`` of a :class:`MergedWeight` has for now, within
    ``torch.func.functional_call``, and of its own codes where it has none; ``layer`` itself where
    another thread has given it its own again."""
    with dissolving:
        if "_merged" not in layer.__dict__:
            return layer
        parts: dict[str, Any] = {name: layer._buffers.get(name) for name in PARTS}
        if parts["qweight"] is None:
            parts["qweight"] = layer._canonical_codes()
    k, n, ttype = layer.in_features, layer.out_features, layer.weight_type
    alone = Linear(k, n, False, ttype, activation_type=layer.activation_type, device="meta")
    alone._buffers.update(parts)  # unchecked, as functional_call gives them to any layer
    alone._parameters["bias"] = layer.bias
    for name in OF_X:
        if (scale := layer._buffers.get(name)) is not None:
            alone._put_in_front(name, scale)
    return alone


class MergedLinear(Linear):
    """A :class:`Linear` whose rows lie in a :class:`MergedWeight`.

    ``state_dict``, ``packed_weight``, copies and pickles give the layer's own weight. What moves,
    casts or loads the module first gives every layer of the weight its own again, with a line in
    the log.
    """

    _merged: MergedWeight
    _place: int

    def forward(
        self, x: Tensor | None = None, residual: Tensor | None = None, *, input: Any = None
    ) -> Tensor:
        x = named_input(x, input)
        state = self.__dict__
        merged, place = state.get("_merged"), state.get("_place")
        # Something may have kept this method from the time when there was a weight.
        if merged is None or place is None:
            return Linear.forward(self, x, residual)
        if state["_buffers"]["qweight"] is not None:  # other small parts alone are seen by part()
            return by_itself(self).forward(x, residual)
        part: Tensor = merged.part(x, place)
        return plus(part, residual)

    def forward_codes(
        self,
        x: Tensor,
        x_scale: Tensor | None = None,
        *,
        out_dtype: torch.dtype = torch.float16,
        out_scale: Tensor | None = None,
    ) -> Tensor:
        state = self.__dict__
        merged, place = state.get("_merged"), state.get("_place")
        if merged is None or place is None:
            return Linear.forward_codes(self, x, x_scale, out_dtype=out_dtype, out_scale=out_scale)
        if merged.gives():
            alone = by_itself(self)
            return alone.forward_codes(x, x_scale, out_dtype=out_dtype, out_scale=out_scale)
        y: Tensor = merged.product_of_codes(x, x_scale, out_dtype, out_scale, place)
        return y

    @property
    def image(self) -> Tensor:
        """What holds the codes, those of the other layers too."""
        image = self._merged.linear.image
        return self._merged.linear.qweight if image is None else image

    def prepare(self, numbered: Callable[[int], object] | None = None) -> bool:
        return self._merged.linear.prepare(numbered)

    def compile_for(self, dtype: torch.dtype, m: int, *, residual: bool = False) -> str:
        return self._merged.linear.compile_for(dtype, m)  # a part is rounded before it is added to

    def compile_static(self, dtype: torch.dtype, m: Sequence[int]) -> None:
        self._merged.linear.compile_static(dtype, m)

    def kernel_request(self, dtype: torch.dtype, m: Sequence[int], number: int = 0) -> Request:
        return self._merged.linear.kernel_request(dtype, m, number)

    def ungate(self) -> None:
        """Have a product of its own, for who watches or changes it: where kernels give that of gate
        and up alone, the layers of the weight get their own again."""
        self._merged.ungate()

    @property
    def dependent_launch(self) -> bool:
        return self._merged.linear.dependent_launch

    @dependent_launch.setter
    def dependent_launch(self, wanted: bool) -> None:
        self._merged.linear.dependent_launch = wanted

    @property
    def input_scale(self) -> Tensor | None:
        return self._buffers.get("input_scale")

    @input_scale.setter
    def input_scale(self, scale: Tensor | float | None) -> None:
        self._restore()  # the others keep theirs
        self.input_scale = scale  # now Linear's

    def _set_pre_scale(self, scale: Tensor | None) -> None:
        self._restore()  # the others keep theirs
        self._set_pre_scale(scale)  # now Linear's

    def _canonical_codes(self) -> Tensor:
        return self._merged.codes(self._place)

    def _restore(self) -> None:
        _log.info("%d merged layers get their own weights again", len(self._merged.layers))
        self._merged.dissolve()

    def _renumber(self) -> None:
        self._restore()  # the others stay as they are
        self._renumber()  # now Linear's

    def _set_image(self, image: Tensor | None, number: int) -> None:
        self._restore()
        self._set_image(image, number)  # now Linear's

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if name == "bias":  # another parameter, whose memory is elsewhere
            self._restore()
        Linear.register_parameter(self, name, param)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Linear:
        probe = torch.zeros((), dtype=self.dtype, device=self.device)
        stays = fn(probe) is probe and (probe.is_cuda or not probe.is_shared())
        return self if stays else super()._apply(fn, recurse)

    def _replicate_for_data_parallel(self) -> Linear:
        raise Unsupported(
            "nn.DataParallel copies layers to other devices in each call, which merged layers "
            "cannot follow: call ladder.unoptimize(model) first"
        )

    def __getstate__(self) -> dict[str, Any]:
        state = {**nn.Module.__getstate__(self)}
        state["_buffers"] = {**self._buffers, "qweight": self._canonical_codes()}
        del state["_merged"], state["_place"]
        return state

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (_unmade, (), self.__getstate__())


MergedLinear.__name__ = Linear.__name__  # in a printed model, and for PEFT, which asks for it


def _unmade() -> Linear:
    return Linear.__new__(Linear)
