# SPDX-License-Identifier: Apache-2.0
"""What the blocks of a model are called with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ladder.errors import InvalidArgument
from ladder.nn.calibration.calls import Call, mapped
from ladder.nn.calibration.hessians import Stop, version_of

#: In the arguments of a block: what the block before it gave.
_BEFORE = object()
#: Of the size of what a block gives: a change that shows what follows from it.
_CHANGE = 0.01


@dataclass
class BlockCalls:
    """One call of the model: what its blocks, from some block on, are called with."""

    arguments: list[tuple[tuple[Any, ...], dict[str, Any]]]
    before: Tensor | None = None  #: what stands for _BEFORE

    def copy(self) -> BlockCalls:
        return replace(self)

    def run(self, block: nn.Module, step: int) -> Any:
        """Call it, with copies: blocks may write to what they are given."""
        args, kwargs = mapped(self.arguments[step], self._copied)
        return block(*args, **kwargs)

    def _copied(self, value: Any) -> Any:
        if value is _BEFORE:
            value = self.before
        return value.clone() if isinstance(value, Tensor) else value


def tensors_of(value: Any) -> list[Tensor]:
    """Those in nested tuples, lists and dictionaries."""
    found: list[Tensor] = []
    mapped(value, lambda each: found.append(each) if isinstance(each, Tensor) else None)
    return found


def record(
    model: nn.Module, blocks: Sequence[nn.Module], calls: Sequence[Call], *, known: bool = False
) -> tuple[int, list[BlockCalls | None]]:
    """What each call gives ``blocks``, from the first on, as long as each works on what the block
    before gave, unchanged, and on nothing else that follows from it; None where a call does not
    reach the first.

    Args:
        known: that they depend on nothing else.
    Returns:
        How many blocks these are, and the calls.
    """
    recorded = [_Recording(model, blocks).of(call) for call in calls]
    reached = [each for each in recorded if each is not None]
    count = min((len(each.arguments) for each in reached), default=1)
    if count > 1 and not known:
        first = next(call for call, each in zip(calls, recorded, strict=True) if each is not None)
        count = _independent(model, blocks[:count], first)
    return count, recorded


def _independent(model: nn.Module, blocks: Sequence[nn.Module], call: Call) -> int:
    """How many of ``blocks`` have no argument, beside what they work on, that is another when the
    first block gives something else."""
    as_it_is, changed = (_Recording(model, blocks, change).of(call) for change in (0.0, _CHANGE))
    count = 1
    if as_it_is is None or changed is None:
        return count
    for one, other in zip(as_it_is.arguments[1:], changed.arguments[1:], strict=False):
        pairs = list(zip(tensors_of(one), tensors_of(other), strict=False))
        if len(tensors_of(one)) != len(tensors_of(other)):
            break
        if not all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs):
            break
        count += 1
    return count


class _Recording:
    """Of one call: hooks of blocks that note what these are called with.

    Args:
        change: of what the first block gives, as a part of its size.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module], change: float = 0.0) -> None:
        self._model, self._blocks, self._change = model, blocks, change
        self._made = BlockCalls([])
        self._given: Tensor | None = None  # by the block before
        self._version = 0
        self._place: Any = None  # of what blocks work on, among their arguments
        self._copies: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._old: dict[int, tuple[Tensor, int]] = {}  # what the first block is given, by id

    def of(self, call: Call) -> BlockCalls | None:
        with ExitStack() as stack:
            for block in self._blocks:
                before = block.register_forward_pre_hook(self._before, with_kwargs=True)
                stack.callback(before.remove)
                after = block.register_forward_hook(self._after, with_kwargs=True)
                stack.callback(after.remove)
            with suppress(Stop):
                call(self._model)
        return self._made if self._made.arguments else None

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        step = len(self._made.arguments)
        if module is not self._blocks[step]:
            if step:  # in another order than that of the first call
                raise Stop
            return
        if any("past_key_value" in name and value is not None for name, value in kwargs.items()):
            raise InvalidArgument(
                "a block is given a cache of keys and values, to which it writes: call the model "
                "without"
            )
        places: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        if step == 0:
            self._old = {id(t): (t, version_of(t)) for t in tensors_of((args, kwargs))}
            self._place = next((place for place, v in places.items() if _is_float(v)), None)
            hidden = places.get(self._place)
            self._made.before = None if hidden is None else hidden.clone()
        else:
            hidden = places.get(self._place)
            if self._given is None or hidden is not self._given:
                raise Stop
            if version_of(hidden) != self._version:
                raise Stop
        if sum(value is hidden for value in tensors_of((args, kwargs))) > 1:
            if step:
                raise Stop
            hidden = None  # a block that works on one tensor twice runs alone
            self._made.before = None

        def kept(value: Any) -> Any:
            if value is hidden and hidden is not None:
                return _BEFORE
            return self._copy(value) if isinstance(value, Tensor) else value

        self._made.arguments.append(mapped((args, dict(kwargs)), kept))
        if step + 1 == len(self._blocks) or hidden is None:
            raise Stop

    def _copy(self, tensor: Tensor) -> Tensor:
        """One for all blocks, as long as nothing writes to it."""
        key = id(tensor), version_of(tensor)
        if key not in self._copies:
            self._copies[key] = tensor, tensor.clone()  # the former for its number to stay its own
        return self._copies[key][1]

    def _after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        first = first_of(output)
        self._given = first if isinstance(first, Tensor) else None
        if self._change and module is self._blocks[0]:
            written = [t for t in tensors_of((args, kwargs)) if self._is_new(t)]
            made = {id(tensor): tensor for tensor in (*tensors_of(output), *written)}
            for tensor in made.values():
                self._disturb(tensor)
        if self._given is not None:
            self._version = version_of(self._given)

    def _is_new(self, tensor: Tensor) -> bool:
        """Whether the first block has written it."""
        old = self._old.get(id(tensor))
        return old is None or old[1] != version_of(tensor)

    def _disturb(self, tensor: Tensor) -> None:
        if tensor.is_floating_point() and tensor.numel():
            ramp = torch.linspace(-1, 1, tensor.numel(), device=tensor.device).view(tensor.shape)
            tensor += (self._change * tensor.float().abs().mean() * ramp).to(tensor.dtype)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def first_of(output: Any) -> Any:
    """What a block gives that returns more than one thing."""
    return output[0] if isinstance(output, (tuple, list)) and output else output
