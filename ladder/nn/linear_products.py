# SPDX-License-Identifier: Apache-2.0
"""How a :class:`ladder.Linear` multiplies, whatever is asked of the call: transforms, autocast,
scales of x, traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ladder import ops
from ladder.cuda.epilogue import linear_then
from ladder.cuda.linear import linear_image, linear_image_scaled
from ladder.nn.linear_settings import LinearSettings
from ladder.nn.pre_scale import ScalesColumns, scaled
from ladder.nn.ragged import by_rows
from ladder.ops.transforms import autocast, check_tensor
from ladder.weight import check_columns


class LinearProducts(LinearSettings, ScalesColumns):
    """The long way of a call."""

    bias: Any

    def _forward(self, x: Tensor) -> Tensor:
        return self._with_bias(x, self.bias)

    def _with_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """:meth:`forward` with another bias [N] than the module's."""
        return self._multiplied(x, bias, self._by_image, self._by_codes)

    def _multiplied(
        self,
        x: Tensor,
        bias: Tensor | None,
        by_image: Callable[[Tensor, Tensor | None], Tensor],
        by_codes: Callable[[Tensor, Tensor | None], Tensor],
    ) -> Tensor:
        """``by_image`` where kernels have the weight, else ``by_codes``, of x and the bias as
        products take them."""
        check_tensor(x, jagged=True)
        if x.is_nested:

            def product(rows: Tensor) -> Tensor:
                return self._multiplied(rows, bias, by_image, by_codes)

            return by_rows(x, product, self.in_features)
        device, x = x.device.type, autocast(x)
        check_columns(x, self.in_features)
        pre_scale = self.pre_scale
        if pre_scale is not None:
            x = scaled(x, pre_scale)
        if bias is not None and bias.dtype != x.dtype:
            bias = bias.to(x.dtype)
        if device == "cuda" and not torch.compiler.is_compiling():
            self.prepare()
        if self.image is not None:
            if torch.compiler.is_compiling():
                return by_image(x, bias)
            try:
                return by_image(x, bias)
            except RuntimeError:
                if not self._leave_kernels():
                    raise
        return by_codes(x, bias)

    def _by_image(self, x: Tensor, bias: Tensor | None) -> Tensor:
        image: Any = self.image
        number, n, scale = self._weight_number, self.out_features, self._scale_of_x()
        if self._function is not None:
            return linear_then(x, image, bias, number, n, self._function, scale)
        if scale is None:
            return linear_image(x, image, bias, number, n)
        return linear_image_scaled(x, scale, image, bias, number, n)

    def _scale_of_x(self) -> Tensor | None:
        return self.input_scale if self._activation_type else None

    def _by_codes(self, x: Tensor, bias: Tensor | None) -> Tensor:
        y = self._sums_by_codes(x, bias, None)
        return y if self._function is None else self._function.of_sums(y)

    def _sums_by_codes(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        return ops.linear(
            x,
            self.qweight,
            self._type_text,
            scales=self.scales,
            zeros=self.zeros,
            scale2=self.scale2,
            g_idx=self.g_idx,
            bias=bias,
            residual=residual,
            activation_type=self._activation_type,
            input_scale=self.input_scale,
        )

    def _prepare_for_trace(self) -> None:
        """:meth:`prepare`, once, while ``torch.compile`` traces. An exported program keeps the
        canonical form, which any machine can run; tensors without data cannot change theirs."""
        if not torch.compiler.is_exporting() and type(self.qweight) is Tensor:
            self.prepare()

    # What torch.compiler.assume_constant_result does, without importing the compiler: the function
    # runs when it is traced, on the module itself, before anything else of it is looked at.
    _prepare_for_trace._dynamo_marked_constant = True  # type: ignore[attr-defined]
