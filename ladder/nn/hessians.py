# SPDX-License-Identifier: Apache-2.0
"""What the inputs of layers are like, seen while a model runs: Hessians of the layers' errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ladder.nn.dense_experts import DOWN, GATE_UP, GATE_UP_BIAS
from ladder.nn.mixtures import FoundExperts
from ladder.nn.select import Found

#: A layer that is calibrated.
Layer = Found | FoundExperts


class Hessians:
    """Sums of ``x[i] * x[j]`` over the inputs x of one layer, float32 [K, K], where the layer is.

    They are made when inputs come: of a linear layer one, of a convolution one for each of its
    groups, of experts two for each expert that has tokens.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], Tensor] = {}
        self._inputs: dict[tuple[str, int], int] = {}

    def add(self, x: Tensor, which: int = 0, stack: str = "") -> None:
        """Add inputs [..., K] of a group, or of an expert's weight in a stack."""
        rows = x.detach().reshape(-1, x.shape[-1]).to(torch.float32)
        if not rows.shape[0]:
            return
        self._inputs[stack, which] = self.inputs(stack, which) + rows.shape[0]
        have = self._of.get((stack, which))
        if have is None:
            self._of[stack, which] = rows.T @ rows
        else:
            have.addmm_(rows.T, rows)

    def inputs(self, stack: str = "", which: int = 0) -> int:
        """How many have come."""
        return self._inputs.get((stack, which), 0)

    def of_rows(self) -> Tensor | None:
        """[K, K] or, of several groups, [groups, K, K]; None where no input came."""
        every = [self._of[key] for key in sorted(self._of)]
        return every[0] if len(every) == 1 else torch.stack(every) if every else None

    def of_expert(self, stack: str, expert: int) -> Tensor | None:
        """[K, K]; None where no token came to it."""
        return self._of.get((stack, expert))


@contextmanager
def observed(layers: Iterable[Layer]) -> Iterator[dict[str, Hessians]]:
    """By name, what ``layers`` are called with inside."""
    found: dict[str, Hessians] = {}
    with ExitStack() as stack:
        for layer in layers:
            hook = _hook(layer, found.setdefault(layer.name, Hessians()))
            handle = layer.module.register_forward_pre_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        yield found


def _hook(layer: Layer, hessians: Hessians) -> Any:
    def linear(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else next(iter(kwargs.values()))
        if isinstance(module, nn.Conv2d):
            _add_windows(hessians, module, x)
        else:
            hessians.add(x)

    def experts(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(zip(("hidden_states", "top_k_index"), args, strict=False)) | kwargs
        _add_experts(hessians, cast(FoundExperts, layer), **given)

    return experts if isinstance(layer, FoundExperts) else linear


def _add_windows(hessians: Hessians, conv: nn.Conv2d, x: Tensor) -> None:
    """What each group of filters multiplies, in the order of the rows of packed weights: channels
    inside."""
    x = x if x.dim() == 4 else x[None]
    padding: Any = conv.padding
    if isinstance(padding, str) or conv.padding_mode != "zeros":
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        x, padding = functional.pad(x, conv._reversed_padding_repeated_twice, mode=mode), 0
    y, x_of = conv.kernel_size
    for group, channels in enumerate(x.to(torch.float32).chunk(conv.groups, 1)):
        windows = functional.unfold(channels, conv.kernel_size, conv.dilation, padding, conv.stride)
        columns = windows.unflatten(1, (-1, y * x_of)).transpose(1, 2).flatten(1, 2)
        hessians.add(columns.transpose(1, 2), group)


def _add_experts(
    hessians: Hessians, layer: FoundExperts, hidden_states: Tensor, top_k_index: Tensor, **_: Any
) -> None:
    """The tokens of each expert, and what its function makes of them for the second product."""
    module, layout = layer.module, layer.layout
    e, h = layout.shape[:2]
    x = hidden_states.reshape(-1, h)
    weights = cast(Tensor, module._parameters[GATE_UP])
    bias = module._parameters.get(GATE_UP_BIAS)
    chosen: list[int] = top_k_index.unique().tolist()
    for expert in chosen:
        if not 0 <= expert < e:  # nobody's
            continue
        rows = x[(top_k_index == expert).any(-1)]
        hessians.add(rows, expert, GATE_UP)
        own = None if bias is None else layout.gate_first(bias[expert], -1)
        product = functional.linear(rows, layout.rows(GATE_UP, weights[expert]), own)
        y = layout.gating(product.to(torch.float32)).to(rows.dtype)
        hessians.add(y, expert, DOWN)
