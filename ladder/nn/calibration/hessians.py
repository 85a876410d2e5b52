# SPDX-License-Identifier: Apache-2.0
"""What the inputs of layers are like, seen while a model runs: Hessians of the layers' errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ladder.cuda.kernels import HALVES
from ladder.nn.dense_experts import DOWN, GATE_UP, GATE_UP_BIAS, STACKS
from ladder.nn.mixtures import FoundExperts
from ladder.nn.select import Found

#: A layer that is calibrated.
Layer = Found | FoundExperts


class Stop(BaseException):
    """All that is asked for has been seen. No ``except Exception`` of a model stops it."""


@dataclass(frozen=True)
class Part:
    """A weight of a layer, or one of the two stacks of experts: parameter ``stack``."""

    layer: Layer
    stack: str = ""


def parts_of(layers: Iterable[Layer]) -> list[Part]:
    """Their weights, of experts both."""
    return [
        Part(layer, stack)
        for layer in layers
        for stack in (STACKS if isinstance(layer, FoundExperts) else ("",))
    ]


@dataclass(frozen=True)
class Given:
    """What a layer was called with: x, and of experts the index [T, k] of those of each token."""

    x: Tensor
    index: Tensor | None = None


class Hessians:
    """Sums over the inputs x of weights that have the same ones, float32 [K, K], where these are:
    of ``x[i] * x[j]``, and of ``before[i] * x[j]``, the inputs that the dense model gives.

    They are made when inputs come: of linear layers one, of a convolution one for each of its
    groups, of experts one for each that has tokens. Where the dense model gives other inputs, as
    where tokens go to modules of their own, there are no sums with these.
    """

    def __init__(self) -> None:
        self._of: dict[int, Tensor] = {}
        self._cross: dict[int, Tensor] = {}
        self._inputs: dict[int, int] = {}
        self._paired = True

    def add(self, which: int, x: Tensor, before: Tensor | None = None) -> None:
        """Add inputs [..., K] of a group or an expert, the same ones ``before``."""
        with torch.autocast(x.device.type, enabled=False):
            rows = _rows(x)
            if not rows.shape[0]:
                return
            self._inputs[which] = self.inputs(which) + rows.shape[0]
            _accumulate(self._of, which, rows, rows)
            self._paired = self._paired and before is not None and before.shape == x.shape
            if self._paired and before is not None:
                _accumulate(self._cross, which, _rows(before), rows)

    def inputs(self, which: int = 0) -> int:
        """How many have come."""
        return self._inputs.get(which, 0)

    def of(self, which: int = 0) -> tuple[Tensor | None, Tensor | None]:
        """The two sums of an expert, or of linear layers; None where no input came."""
        return self._of.get(which), self._cross.get(which) if self._paired else None

    def of_groups(self) -> tuple[Tensor | None, Tensor | None]:
        """As :meth:`of`, of a convolution with several groups [groups, K, K]."""
        if len(self._of) < 2:
            return self.of()
        return _stacked(self._of), _stacked(self._cross) if self._paired else None


def _rows(x: Tensor) -> Tensor:
    return x.detach().reshape(-1, x.shape[-1])


def _accumulate(sums: dict[int, Tensor], which: int, one: Tensor, other: Tensor) -> None:
    # Tensor cores add up exact products of 16 bits in float32, many times as fast.
    if one.is_cuda and one.dtype == other.dtype and one.dtype in HALVES and not torch.version.hip:
        product = torch.mm(one.T, other, out_dtype=torch.float32)
        sums[which] = product.add_(sums[which]) if which in sums else product
        return
    one, other = one.to(torch.float32), other.to(torch.float32)
    if which in sums:
        sums[which].addmm_(one.T, other)
    else:
        sums[which] = one.T @ other


def _stacked(sums: Mapping[int, Tensor]) -> Tensor:
    return torch.stack([sums[which] for which in sorted(sums)])


def version_of(tensor: Tensor) -> int:
    """How often it has been written to; tensors of inference mode are not."""
    return 0 if tensor.is_inference() else tensor._version


@dataclass
class Seen:
    """What layers are called with, by name and in the order in which they run.

    Attributes:
        given: where it is kept.
        sources: for each call the tensor and what has been written to it by then: two layers have
            the same inputs where these are.
    """

    given: dict[str, list[Given]] = field(default_factory=dict)
    sources: dict[str, list[tuple[Tensor, int]]] = field(default_factory=dict)


@contextmanager
def captured(
    layers: Iterable[Layer], counts: Mapping[str, int] | None = None, *, keep: bool = True
) -> Iterator[Seen]:
    """What ``layers`` are called with inside.

    Args:
        counts: how often each is called: :class:`Stop` is raised once they were.
        keep: also what they are given.
    """
    seen = Seen()

    def note(layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        index = None
        if isinstance(layer, FoundExperts):
            every = dict(zip(("hidden_states", "top_k_index"), args, strict=False)) | kwargs
            x, index = every["hidden_states"], every["top_k_index"]
        else:
            x = args[0] if args else next(iter(kwargs.values()))
        sources = seen.sources.setdefault(layer.name, [])
        sources.append((x, version_of(x)))
        if keep:  # a copy: the model may write to it
            seen.given.setdefault(layer.name, []).append(Given(x.detach().clone(), index))
        if counts and all(len(seen.sources.get(n, ())) >= most for n, most in counts.items()):
            raise Stop

    with ExitStack() as stack:
        for layer in layers:
            hook = _Hook(note, layer)
            handle = layer.module.register_forward_pre_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        yield seen


@dataclass(frozen=True)
class _Hook:
    note: Any
    layer: Layer

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.note(self.layer, args, kwargs)


def inputs_of(part: Part, given: Given, index: Tensor | None) -> Iterator[tuple[int, Tensor]]:
    """Groups, or experts, and what they multiply of ``given``: with the weights that the layer has,
    and of experts by an ``index`` that may be that of other inputs."""
    layer = part.layer
    if isinstance(layer, FoundExperts):
        yield from _tokens(layer, part.stack, given.x, cast(Tensor, index))
    elif isinstance(layer.module, nn.Conv2d):
        yield from _windows(layer.module, given.x)
    else:
        yield 0, given.x


def _windows(conv: nn.Conv2d, x: Tensor) -> Iterator[tuple[int, Tensor]]:
    """What each group of filters multiplies, in the order of the rows of packed weights: channels
    inside."""
    x = x if x.dim() == 4 else x[None]
    padding: Any = conv.padding
    if isinstance(padding, str) or conv.padding_mode != "zeros":
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        x, padding = functional.pad(x, conv._reversed_padding_repeated_twice, mode=mode), 0
    places = conv.kernel_size[0] * conv.kernel_size[1]
    for group, channels in enumerate(x.to(torch.float32).chunk(conv.groups, 1)):
        windows = functional.unfold(channels, conv.kernel_size, conv.dilation, padding, conv.stride)
        columns = windows.unflatten(1, (-1, places)).transpose(1, 2).flatten(1, 2)
        yield group, columns.transpose(1, 2)


def _tokens(
    layer: FoundExperts, stack: str, x: Tensor, index: Tensor
) -> Iterator[tuple[int, Tensor]]:
    """The tokens of each expert, or what its function makes of them for the second product."""
    module, layout = layer.module, layer.layout
    e, h = layout.shape[:2]
    x = x.reshape(-1, h)
    weights = cast(Tensor, module._parameters[GATE_UP])
    x, index = x.to(weights.device), index.to(weights.device)  # hooks of accelerate move them later
    bias = module._parameters.get(GATE_UP_BIAS)
    chosen: list[int] = index.unique().tolist()
    for expert in chosen:
        if not 0 <= expert < e:  # nobody's
            continue
        rows = x[(index == expert).any(-1)]
        if stack == DOWN:
            own = None if bias is None else layout.gate_first(bias[expert], -1)
            product = functional.linear(rows, layout.rows(GATE_UP, weights[expert]), own)
            rows = layout.gating(product.to(torch.float32)).to(rows.dtype)
        yield expert, rows


class Kept:
    """The weights of layers as they are now, for inputs that the dense model gives."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._weights: list[tuple[nn.Module, str, nn.Parameter]] = []
        for layer in layers:
            names = (GATE_UP, DOWN) if isinstance(layer, FoundExperts) else ("weight",)
            for name in names:
                weight = cast(nn.Parameter, layer.module._parameters[name]).detach().clone()
                self._weights.append((layer.module, name, nn.Parameter(weight, False)))

    @contextmanager
    def back(self) -> Iterator[None]:
        """The layers have them inside."""
        now = [module._parameters[name] for module, name, _ in self._weights]
        try:
            for module, name, weight in self._weights:
                module._parameters[name] = weight
            yield
        finally:
            for (module, name, _), parameter in zip(self._weights, now, strict=True):
                module._parameters[name] = parameter
