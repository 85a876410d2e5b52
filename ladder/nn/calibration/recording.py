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
from ladder.nn.calibration.passing import BEFORE, NO_FORM, first_of, form_of, passing, tensors_of

#: Of the size of what a block gives: a change that shows what follows from it.
_CHANGE = 0.01


@dataclass
class BlockCalls:
    """One call of the model: what its blocks, from some block on, are called with."""

    arguments: list[tuple[tuple[Any, ...], dict[str, Any]]]
    before: Tensor | None = None  #: what stands for BEFORE

    def copy(self) -> BlockCalls:
        return replace(self)

    def run(self, block: nn.Module, step: int) -> Any:
        """Call it, with copies: blocks may write to what they are given."""
        args, kwargs = mapped(self.arguments[step], self._copied)
        return block(*args, **kwargs)

    def _copied(self, value: Any) -> Any:
        if value is BEFORE:
            value = self.before
        return value.clone() if isinstance(value, Tensor) else value


@dataclass(frozen=True)
class Recorded:
    """What calls give blocks.

    Attributes:
        count: how many blocks, from the first on, work on what the block before gave, unchanged,
            and on nothing else that follows from it.
        calls: None where a call does not reach the first block.
        forms: of each block what it gives, but for what the next block works on, where the model
            can run without them (:func:`passing`); else None.
    """

    count: int
    calls: list[BlockCalls | None]
    forms: tuple[Any, ...] | None = None


def record(
    model: nn.Module, blocks: Sequence[nn.Module], calls: Sequence[Call], *, known: bool = False
) -> Recorded:
    """What each of ``calls`` gives ``blocks``, as long as each works on what the block before gave.
    Where all do, and give what they are given the shape of, those after the first call are passed.

    Args:
        known: that they depend on nothing else.
    """
    recorded: list[BlockCalls | None] = []
    count, forms = len(blocks), None
    for call in calls:
        recording = _Recording(model, blocks, forms)
        first = not known and not any(recorded)
        made = recording.of(call, through=first)
        recorded.append(made)
        count = 1 if recording.skips else count
        if made is None:
            continue
        count = min(count, len(made.arguments))
        if first:
            count = min(count, _independent(model, blocks[:count], call, made))
            if count == len(blocks):
                forms = recording.forms()
    count = count if any(recorded) else 1
    return Recorded(count, recorded, forms if count == len(blocks) else None)


def _independent(
    model: nn.Module, blocks: Sequence[nn.Module], call: Call, as_it_is: BlockCalls
) -> int:
    """How many of ``blocks`` have no argument, beside what they work on, that is another when the
    first block gives something else."""
    count = 1
    if len(blocks) < 2:
        return count
    changed = _Recording(model, blocks, change=_CHANGE).of(call)
    if changed is None:
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
        forms: of what blocks give that are passed.
        change: of what the first block gives, as a part of its size.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        forms: Sequence[Any] | None = None,
        *,
        change: float = 0.0,
    ) -> None:
        self._model, self._blocks, self._change = model, blocks, change
        self._given_forms = forms
        self._through = False
        self._forms: list[Any] = []
        self._works_on: Tensor | None = None  # the block that runs now
        self.skips = False  #: whether a later block runs, and the first does not
        self._made = BlockCalls([])
        self._given: Tensor | None = None  # by the block before
        self._version = 0
        self._place: Any = None  # of what blocks work on, among their arguments
        self._copies: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._old: dict[int, tuple[Tensor, int]] = {}  # what the first block is given, by id

    def forms(self) -> tuple[Any, ...] | None:
        """As :attr:`Recorded.forms`, of a call that went through."""
        unknown = any(form is NO_FORM for form in self._forms)
        return None if unknown or len(self._forms) < len(self._blocks) else tuple(self._forms)

    def of(self, call: Call, *, through: bool = False) -> BlockCalls | None:
        """What the blocks are called with; None where the call does not reach the first.

        Args:
            through: the last block runs, too.
        """
        self._through = through
        with ExitStack() as stack:
            if self._given_forms is not None:
                stack.enter_context(passing(self._blocks, self._given_forms, self._passed))
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
            self.skips = True
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
                return BEFORE
            return self._copy(value) if isinstance(value, Tensor) else value

        self._made.arguments.append(mapped((args, dict(kwargs)), kept))
        self._works_on = hidden
        if hidden is None or (step + 1 == len(self._blocks) and not self._through):
            raise Stop

    def _passed(self, _: int) -> Tensor:
        if self._works_on is None:  # a block that comes later, in a call that skips the first
            raise Stop
        return self._works_on.clone()  # which is not what other arguments may be

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
        self._forms.append(form_of(output, self._works_on))
        if self._through and module is self._blocks[-1]:
            raise Stop
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
