# SPDX-License-Identifier: Apache-2.0
"""Numbers by which the columns of x are multiplied before a product."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from ladder.errors import InvalidArgument
from ladder.nn.packed import PackedModule
from ladder.ops.activations import pre_scale_objection


def scaled(x: Tensor, pre_scale: Tensor) -> Tensor:
    """``x * pre_scale`` in float32, rounded once to the dtype of ``x`` [..., K]."""
    return (x * pre_scale).to(x.dtype)  # float32 wins over float16 and bfloat16


def told(pre_scale: Tensor | None) -> str:
    """A word for K numbers, equal where they are; "" for none."""
    if pre_scale is None:
        return ""
    return hashlib.sha256(pre_scale.detach().cpu().numpy().tobytes()).hexdigest()[:16]


class ScalesColumns(PackedModule):
    """A packed layer whose x may be multiplied column by column first."""

    @property
    def pre_scale(self) -> Tensor | None:
        """One number for each column of x, float32 [K], as ModelOpt's AWQ stores them
        (``pre_quant_scale``): a call multiplies ``x * pre_scale``, rounded once to the dtype of x,
        in place of x, and only then rounds it to the ``activation_type``. None: there are none.

        It is a buffer, in the ``state_dict`` where it is set. A tensor of K numbers sets it and is
        copied. Raises InvalidArgument for another shape, and for what is not finite.
        """
        return self._buffers.get("pre_scale")

    @pre_scale.setter
    def pre_scale(self, scale: Tensor | None) -> None:
        self._set_pre_scale(scale)

    def _set_pre_scale(self, scale: Tensor | None) -> None:
        if scale is None:
            self._buffers.pop("pre_scale", None)
            return
        if why := pre_scale_objection(scale, self.in_features):
            raise InvalidArgument(why)
        # Memory of its own, of no inference: state dicts are copied into it.
        with torch.inference_mode(False):
            given = scale.detach().to(self.device, torch.float32, copy=True)
        self._put_in_front("pre_scale", given)

    def __setattr__(self, name: str, value: Any) -> None:
        # nn.Module would put what is called as a buffer there as it is.
        if name == "pre_scale":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)
