# SPDX-License-Identifier: Apache-2.0
"""Calls of a packed layer with a residual, which is added where the sums are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch import is_autocast_enabled as _autocasting
from torch import is_grad_enabled as _grad_enabled
from torch.compiler import is_compiling as _is_compiling

from ladder._torch import forward_levels as _forward_levels
from ladder._torch import func_level as _func_level
from ladder.cuda.residual import linear_residual, linear_residual_no_grad
from ladder.errors import InvalidArgument
from ladder.nn.packed import PackedModule
from ladder.ops.transforms import check_tensor, plus

_absent = object()


class AddsResidual(PackedModule):
    """A packed layer whose calls may have a residual."""

    bias: Any

    def _plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """``forward`` with a residual."""
        check_tensor(residual, "residual")
        if _is_compiling():
            self._prepare_for_trace()
        elif (image := self._image_of_plain_call(x, residual)) is not None:
            try:
                return linear_residual_no_grad(
                    x, residual, image, self.bias, self._weight_number, self.out_features, None
                )
            except ValueError as error:
                raise InvalidArgument(str(error)) from None
            except RuntimeError:
                if not self._leave_kernels():
                    raise
        return self._multiplied(
            x,
            self.bias,
            lambda x, bias: self._plus_by_image(x, bias, residual),
            lambda x, bias: self._plus_by_codes(x, bias, residual),
        )

    def _image_of_plain_call(self, x: Tensor, residual: Tensor) -> Tensor | None:
        """The image, where a call has nothing to do but to start kernels, as ``Linear.forward``
        asks: half of the host time of the other way."""
        state = self.__dict__
        buffers, bias = state["_buffers"], state["_parameters"].get("bias", _absent)
        image: Tensor | None = buffers.get("image")
        if (
            image is None
            or bias is _absent
            or not (type(x) is type(residual) is Tensor)
            or "input_scale" in buffers
            or "pre_scale" in buffers
            or _autocasting()
            or _func_level() is not None
            or _forward_levels._current_level >= 0
            or (bias is not None and bias.dtype is not x.dtype)
        ):
            return None
        wanted = x.requires_grad or residual.requires_grad
        wanted = wanted or (bias is not None and bias.requires_grad)
        return None if wanted and _grad_enabled() else image

    def _plus_by_image(self, x: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
        image: Any = self.image
        number, n, scale = self._weight_number, self.out_features, self._scale_of_x()
        return linear_residual(x, residual, image, bias, number, n, self._function, scale)

    def _plus_by_codes(self, x: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
        if self._function is None:
            return self._sums_by_codes(x, bias, residual)
        return plus(self._by_codes(x, bias), residual)

    # Of the layer.
    def _prepare_for_trace(self) -> None:
        raise NotImplementedError

    def _multiplied(
        self,
        x: Tensor,
        bias: Tensor | None,
        by_image: Callable[[Tensor, Tensor | None], Tensor],
        by_codes: Callable[[Tensor, Tensor | None], Tensor],
    ) -> Tensor:
        raise NotImplementedError

    def _scale_of_x(self) -> Tensor | None:
        raise NotImplementedError

    def _by_codes(self, x: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _sums_by_codes(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        raise NotImplementedError
