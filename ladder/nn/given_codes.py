# SPDX-License-Identifier: Apache-2.0
"""Products of a packed layer with x that is codes of 8 bits already."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ladder.cuda.codes import linear_codes_image, number_for_codes, takes_codes
from ladder.errors import Unsupported
from ladder.nn.packed import PackedModule
from ladder.ops.activations import FAST_ACCUM
from ladder.ops.codes import CODE_DTYPES, bias_dtype, linear_codes
from ladder.ops.transforms import ACTIVATION_DTYPES
from ladder.weight import check_columns


class TakesCodes(PackedModule):
    """A packed layer that multiplies codes as well as numbers."""

    bias: Any

    def forward_codes(
        self,
        x: Tensor,
        x_scale: Tensor | None = None,
        *,
        out_dtype: torch.dtype = torch.float16,
        out_scale: Tensor | None = None,
    ) -> Tensor:
        """``x_scale * (x @ value(weight).T) + bias`` of x that is codes of 8 bits already,
        whatever :attr:`ladder.Linear.activation_type` says, but for "fast_accum".

        On a GPU with kernels for such products any number of tokens goes through them, from one on;
        elsewhere as :func:`ladder.ops.codes.linear_codes`. The first call for a number of tokens
        compiles: call it once before a CUDA graph is captured.

        Args:
            x: [..., K] int8 or float8_e4m3fn.
            x_scale: float32, one number (static), or one for each token, [..., 1]. None is 1.
            out_dtype: float16, bfloat16 or float32; int32 for the exact sums of int8 x and a
                weight of whole numbers without scales and bias; int8 or float8_e4m3fn for codes
                that the next layer takes as its x.
            out_scale: float32, one number: the static scale of such codes, the ``x_scale`` of the
                next layer.
        Returns:
            [..., N] in ``out_dtype``. No gradient flows to the bias, which is rounded to it, but
            for codes.
        Raises:
            InvalidArgument, Unsupported: as :func:`ladder.ops.codes.linear_codes`; Unsupported also
                where the layer has a :attr:`ladder.Linear.pre_scale` or an activation.
        Error:
            :func:`ladder.cuda.codes.linear_codes_image` and :func:`ladder.ops.codes.linear_codes`.
        """
        check_columns(x, self.in_features)
        if "pre_scale" in self._buffers:
            raise Unsupported(
                "this layer multiplies columns of x by pre_scale, and x is codes already"
            )
        if self._function is not None:
            raise Unsupported(
                f"this layer ends with its activation, {self._function.name}, which products of x "
                "that is codes do not take"
            )
        bias: Tensor | None = None
        if self.bias is not None:
            bias = self.bias.detach()
            own = out_dtype in CODE_DTYPES and bias.dtype in ACTIVATION_DTYPES
            if out_dtype != torch.int32 and not own:
                bias = bias.to(bias_dtype(out_dtype))
        if x.device.type == "cuda":
            if torch.compiler.is_compiling():
                self._prepare_for_trace()
            else:
                self.prepare()
        image = self.image
        if image is not None and x.dtype in CODE_DTYPES:
            try:
                return linear_codes_image(
                    x,
                    x_scale,
                    image,
                    bias,
                    self.weight_type,
                    self.out_features,
                    plain=self._weight_number,
                    number=self._number_for_codes(x.dtype),
                    out_dtype=out_dtype,
                    out_scale=out_scale,
                )
            except RuntimeError:
                if torch.compiler.is_compiling() or not self._leave_kernels():
                    raise
        return linear_codes(
            x,
            self.qweight,
            self.weight_type,
            x_scale=x_scale,
            scales=self.scales,
            zeros=self.zeros,
            scale2=self.scale2,
            g_idx=self.g_idx,
            bias=bias,
            out_dtype=out_dtype,
            out_scale=out_scale,
        )

    def _prepare_for_trace(self) -> None:
        raise NotImplementedError

    def _number_for_codes(self, dtype: torch.dtype) -> int | None:
        """Of :func:`ladder.cuda.codes.number_for_codes`, asked once for each image."""
        numbers, fast = self._numbers_for_codes, self._activation_type == FAST_ACCUM
        if (dtype, fast) not in numbers:
            n, k, index = self.out_features, self.in_features, self.device.index or 0
            takes = takes_codes(self.weight_type, self.zeros, self.g_idx, dtype)
            found = number_for_codes(self._type_text, n, k, index, dtype, fast) if takes else None
            self._numbers_for_codes = numbers = {**numbers, (dtype, fast): found}
        return numbers[dtype, fast]

    # As _prepare_for_trace: asked when a graph is traced, not by it.
    _number_for_codes._dynamo_marked_constant = True  # type: ignore[attr-defined]
