# SPDX-License-Identifier: Apache-2.0
"""A packed model takes the values of a dense one that was made of it, rounded to its types."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ladder.errors import Unsupported
from ladder.integrations.peft_told import tell
from ladder.nn.dense_experts import STACKS
from ladder.nn.packed import PackedModule
from ladder.nn.packed_experts import PackedExperts
from ladder.nn.report import Conversion
from ladder.nn.requantize import requantized
from ladder.nn.select_conv import matrix_of
from ladder.quantization import weights_of
from ladder.weight import Weight


def differ(values: Tensor, before: Tensor) -> bool:
    """Whether an element moves by more than what another order of sums in float32 does, such as
    that of DoRA's norms, beside the largest of its row. Both [N, K]; what is not finite does."""
    least = before.abs().amax(1, keepdim=True) * 2**-20
    return not bool(((values - before).abs() <= least).all())


def rounded(values: Tensor, like: Weight, scale: Tensor | None = None) -> Weight:
    """``like`` where ``values`` are its own; else ``values`` quantised to its type, of which is
    told.

    Args:
        values: [N, K] float32, on the device of ``like``.
        scale: [K], what multiplies columns of x in front of the weight (``pre_scale``).
    Raises:
        InvalidArgument, Unsupported: as :func:`ladder.nn.requantize.requantized`; Unsupported also
            where ``scale`` is 0.
    """
    factor: Tensor | float = 1.0 if scale is None else scale
    before = like.dequantize() * factor
    if not differ(values, before):
        return like
    if scale is not None and not bool(scale.all()):
        raise Unsupported(
            f"pre_scale is 0 at {int((scale == 0).nonzero()[0])}: what an adapter adds to that "
            "column cannot be merged"
        )
    weight = requantized(values / factor, like)
    tell(weight.type, weight.dequantize() * factor - values, values - before)
    return weight


@torch.no_grad()
def take(packed: nn.Module, dense: Any) -> Conversion:
    """Give ``packed`` the values of ``dense``, a model with the same modules, not packed: packed
    weights that differ are quantised anew, and other parameters cast. Returns which packed weights
    differed."""
    report = Conversion(done="merged an adapter into")
    for name, module in packed.named_modules():
        if not isinstance(module, (PackedModule, PackedExperts)):
            continue
        theirs = dense.get_submodule(name)
        with weights_of(name):
            if isinstance(module, PackedModule):
                values = matrix_of(theirs, theirs.weight).to(module.device, torch.float32)
                own = module.packed_weight
                weight = rounded(values, own, module._buffers.get("pre_scale"))
                if weight is not own:
                    module.set_weight(weight)
                    report.add(name, weight.type, values.numel())
            else:
                for parameter, stack in STACKS.items():
                    _take_stack(module, name, parameter, stack, theirs, report)
    given = dict(dense.named_parameters())
    for name, parameter in packed.named_parameters():
        if name in given:
            parameter.copy_(given[name])
    return report


def _take_stack(
    experts: PackedExperts, name: str, parameter: str, stack: str, dense: Any, report: Conversion
) -> None:
    held: Any = getattr(experts, stack)
    values: Tensor = getattr(dense, parameter)
    made, differs = [], False
    for expert in range(experts.num_experts):
        rows = experts._layout.rows(parameter, values[expert]).to(held.device, torch.float32)
        own = held.weight_of(expert)
        made.append(rounded(rows, own))
        differs |= made[-1] is not own
    if differs:
        # Copies: a stack gives parts of what it is about to let go.
        held.set_weights(made)
        report.add(f"{name}.{stack}", held.weight_type, values.numel(), experts.num_experts)
