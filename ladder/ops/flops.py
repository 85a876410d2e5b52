# SPDX-License-Identifier: Apache-2.0
"""What ``torch.utils.flop_counter.FlopCounterMode`` counts of ladder's ops: the operations of dense
layers of the same sizes. Importing this module registers it."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

_ops = torch.ops.ladder
_Shape = tuple[int, ...]


@register_flop_formula([
    _ops.linear, _ops.linear_int8, _ops.linear_float8_e4m3, _ops.linear_image,
    _ops.linear_image_no_grad, _ops.linear_image_scaled, _ops.linear_residual,
    _ops.linear_residual_with_grad, _ops.linear_codes, _ops.multiply_codes, _ops.batched,
])  # fmt: skip
def _of_linear(x: _Shape, *args: Any, out_shape: _Shape = (), **kwargs: Any) -> int:
    return 2 * prod(out_shape) * x[-1]


# Rows of gate and up give half as many columns.
@register_flop_formula(_ops.linear_then)
def _of_linear_then(
    x: _Shape, x_scale: Any, image: Any, bias: Any, weight: int, n: int, step: str, *args: Any,
    out_shape: _Shape = (), **kwargs: Any,
) -> int:  # fmt: skip
    return 2 * prod(out_shape) * x[-1] * (2 if step == "gate" else 1)


@register_flop_formula(_ops.linear_prepacked)
def _of_linear_prepacked(
    x: _Shape, *args: Any, gate: str = "", out_shape: _Shape = (), **kwargs: Any
) -> int:
    gate = args[7] if len(args) > 7 else gate
    return 2 * prod(out_shape) * x[-1] * (2 if gate else 1)


@register_flop_formula(_ops.batched_gradient)
def _of_batched_gradient(grad: _Shape, images: Any, weight: int, k: int, **kwargs: Any) -> int:
    return 2 * prod(grad) * k


@register_flop_formula(_ops.conv2d)
def _of_conv2d(
    x: _Shape, image: Any, bias: Any, weight: int, n: int, kernel: list[int], stride: Any,
    padding: Any, dilation: Any, groups: int = 1, residual: Any = None, out_shape: _Shape = (),
    **kwargs: Any,
) -> int:  # fmt: skip
    return 2 * prod(out_shape) * x[-1] // groups * prod(kernel)


@register_flop_formula(_ops.conv2d_gradient)
def _of_conv2d_gradient(
    grad: _Shape, image: Any, weight: int, shape: list[int], kernel: list[int], stride: Any,
    padding: Any, dilation: Any, groups: int = 1, **kwargs: Any,
) -> int:  # fmt: skip
    return 2 * prod(grad) * shape[-1] // groups * prod(kernel)


@register_flop_formula(_ops.experts)
def _of_experts(
    x: _Shape, experts: _Shape, weights: Any, gate_up: Any, gate_up_bias: Any, down: Any,
    down_bias: Any, gate_up_weight: list[int], down_weight: list[int], *args: Any, **kwargs: Any,
) -> int:  # fmt: skip
    wide, hidden = gate_up_weight[1], down_weight[1]
    return 2 * prod(experts) * (x[-1] * wide + wide // 2 * hidden)
