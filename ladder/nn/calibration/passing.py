# SPDX-License-Identifier: Apache-2.0
"""Running a model whose blocks do not run: what they give is made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ladder.nn.calibration.calls import Call, mapped
from ladder.nn.calibration.hessians import Layer, captured

#: In the arguments of a block, what the block before it gave; in what it gives, what the next one
#: works on.
BEFORE = object()
#: What a block gives that cannot be made up.
NO_FORM = object()


def tensors_of(value: Any) -> list[Tensor]:
    """Those in nested tuples, lists and dictionaries."""
    found: list[Tensor] = []
    mapped(value, lambda each: found.append(each) if isinstance(each, Tensor) else None)
    return found


def first_of(output: Any) -> Any:
    """What a block gives that returns more than one thing."""
    return output[0] if isinstance(output, (tuple, list)) and output else output


def form_of(output: Any, given: Tensor | None) -> Any:
    """What a block gives, with :data:`BEFORE` in place of what the next one works on, where that is
    like what this one was ``given`` and all else is known; else :data:`NO_FORM`."""
    first = first_of(output)
    if given is None or not isinstance(first, Tensor):
        return NO_FORM
    if (first.shape, first.dtype, first.device) != (given.shape, given.dtype, given.device):
        return NO_FORM
    if first is output:
        return BEFORE
    if type(output) not in (tuple, list) or tensors_of(output[1:]):
        return NO_FORM
    return type(output)((BEFORE, *output[1:]))


@contextmanager
def passing(
    blocks: Sequence[nn.Module], forms: Sequence[Any], given: Callable[[int], Tensor]
) -> Iterator[None]:
    """Inside, ``blocks`` are called and do not run: the one at ``step`` gives its form, with
    ``given(step)`` for what the next works on."""

    def instead(step: int, form: Any, *_: Any, **__: Any) -> Any:
        return mapped(form, lambda value: given(step) if value is BEFORE else value)

    with ExitStack() as stack:
        for step, (block, form) in enumerate(zip(blocks, forms, strict=True)):
            own = block.__dict__.get("forward")  # of accelerate, say
            block.__dict__["forward"] = partial(instead, step, form)
            stack.callback(_put_back, block, own)
        yield


def _put_back(block: nn.Module, forward: Any) -> None:
    if forward is None:
        del block.__dict__["forward"]
    else:
        block.__dict__["forward"] = forward


@dataclass(frozen=True)
class Passed:
    """Blocks of a model that are not to run again.

    Attributes:
        forms: of what each gives, as :func:`form_of`.
        ends: of each call what the last block has given; None where it was not reached.
    """

    blocks: Sequence[nn.Module] = ()
    forms: Sequence[Any] = ()
    ends: Sequence[Tensor | None] = ()

    @contextmanager
    def in_call(self, number: int) -> Iterator[None]:
        """The model runs without the blocks inside."""
        end = self.ends[number] if self.ends else None
        with ExitStack() as stack:
            if end is not None:
                stack.enter_context(passing(self.blocks, self.forms, lambda _: end.clone()))
            yield


def reads_the_middle(
    model: nn.Module,
    layers: Sequence[Layer],
    call: Call,
    blocks: Sequence[nn.Module],
    forms: Sequence[Any],
    end: Tensor,
) -> bool:
    """Whether what ``layers`` are given changes with what blocks before the last give, that which
    the last gives being ``end``."""

    def inputs(middle: Tensor) -> list[Tensor]:
        given = [middle] * (len(blocks) - 1) + [end]
        with passing(blocks, forms, lambda step: given[step].clone()), captured(layers) as seen:
            call(model)
        return [each.x for of_layer in seen.given.values() for each in of_layer]

    of_end, of_zeros = inputs(end), inputs(torch.zeros_like(end))
    return len(of_end) != len(of_zeros) or not all(map(torch.equal, of_end, of_zeros))
