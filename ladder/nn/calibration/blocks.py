# SPDX-License-Identifier: Apache-2.0
"""Running a model block by block, so that each weight sees what those before it give once they are
quantised, and nothing runs more often than it must."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol

from torch import Tensor, nn

from ladder.nn.calibration.block_training import Run
from ladder.nn.calibration.calls import Call
from ladder.nn.calibration.hessians import (
    Hessians,
    Kept,
    Layer,
    Part,
    Seen,
    Stop,
    captured,
    inputs_of,
    parts_of,
)
from ladder.nn.calibration.offloading import is_offloaded, needs_memory, present
from ladder.nn.calibration.order import block_of, blocks_of, order_of
from ladder.nn.calibration.passing import Passed, first_of, reads_the_middle
from ladder.nn.calibration.recording import BlockCalls, Recorded, record
from ladder.nn.mixtures import FoundExperts
from ladder.nn.select import is_linear


@dataclass
class Turn:
    """Weights that are quantised before others see what they give, and what their inputs are like:
    of linear layers with one input the same object."""

    parts: list[Part]
    hessians: list[Hessians]


@dataclass
class BlockDone:
    """A block all of whose weights have been given, before the next one is looked at.

    Attributes:
        layers: those in it.
        runs: calls of it.
        kept: the weights of the dense model.
    """

    block: nn.Module
    layers: Sequence[Layer]
    runs: Sequence[Run]
    kept: Kept


def in_turn(
    model: nn.Module,
    layers: Sequence[Layer],
    calls: Sequence[Call],
    done_with: Callable[[BlockDone], None] | None = None,
) -> Iterator[Turn]:
    """The weights of ``layers``, those with the same inputs at a time, in the order in which they
    run, with what ``calls`` of ``model`` give them. Weights that have been given by then may be
    others: what comes next is what they make of their inputs, beside what the dense model makes.

    Blocks are the members of a ``nn.ModuleList`` that holds layers, those that run once a call; a
    model without such is one block. Where each takes what the block before it gave, and nothing
    else that follows from it, blocks run alone, on inputs that are kept; elsewhere the model runs
    up to one. Layers in no block, or in several, come last, without inputs of the dense model.

    Blocks that are offloaded are in memory while it is their turn.

    Args:
        done_with: called with each block that holds layers, once these have been given and before
            the next block runs; not with a model that is one block.
    Raises:
        InvalidArgument: the model is offloaded, and its blocks do not run alone.
    """
    if not layers:
        return
    found = blocks_of(model, layers)
    offloaded = is_offloaded(model)
    order, often = order_of(model, list(found), calls[:1] if offloaded else calls)
    if offloaded and (often or not order):
        raise needs_memory("a block runs more than once a call" if often else "it has no blocks")
    if not order:
        yield from _in_block([_Whole(model, call) for call in calls], layers, Kept(layers))
        return
    of_blocks = {layer.name for block in order for layer in found[block]}
    rest = [layer for layer in layers if layer.name not in of_blocks]
    passed = Passed()
    at = 0
    done: list[Kept] = []  # of blocks that came before, where the dense model is run again
    while at < len(order):
        with ExitStack() as dense:
            for kept in done:
                dense.enter_context(kept.back())
            recorded = record(model, order[at:], calls)
        if offloaded:
            _check_alone(model, rest, order, calls, recorded)
        count, before = recorded.count, recorded.calls
        now = [each.copy() if each is not None else None for each in before]
        if at:
            fewer = record(model, order[at : at + count], calls, known=True)
            count, now = min(count, fewer.count), fewer.calls
        more = at + count < len(order)
        for step, block in enumerate(order[at : at + count]):
            with present(block):
                kept = Kept(found[block])
                runs = [_InBlock(block, step, *pair) for pair in zip(now, before, strict=True)]
                runs = [run for run in runs if run.of_now is not None]
                if found[block]:
                    yield from _in_block(runs, found[block], kept)
                    if done_with is not None:
                        done_with(BlockDone(block, found[block], runs, kept))
                if step + 1 < count or (offloaded and rest):
                    for run in runs:
                        run.step_on(kept)
            if more:
                done.append(kept)
        at += count
        if offloaded:
            ends = [None if each is None else each.before for each in now]
            passed = Passed(order, recorded.forms or (), ends)
    if rest:
        yield from _at_once(model, rest, calls, passed)


def _check_alone(
    model: nn.Module,
    rest: Sequence[Layer],
    order: Sequence[nn.Module],
    calls: Sequence[Call],
    recorded: Recorded,
) -> None:
    """Raise InvalidArgument unless each block of ``order`` can be forgotten once the next has what
    it works on."""
    if recorded.count < len(order):
        raise needs_memory("its blocks do not run alone, each on what the one before gave")
    if recorded.forms is None:
        raise needs_memory("its blocks give more tensors than what the next one works on")
    for call, each in zip(calls, recorded.calls, strict=True):
        if rest and each is not None and each.before is not None:
            if reads_the_middle(model, rest, call, order, recorded.forms, each.before):
                raise needs_memory("layers outside of its blocks use what each of these gives")
            return


class _Run(Run, Protocol):
    def is_of_tokens(self, x: Tensor) -> bool:
        """Whether x has a row for each that the block works on, or such sequences: what a router
        gives some tokens to has not, and then the dense model may give it others."""
        ...


@dataclass(frozen=True)
class _Whole:
    model: nn.Module
    call: Call

    def now(self) -> object:
        return self.call(self.model)

    before = now

    def is_of_tokens(self, x: Tensor) -> bool:
        return True


@dataclass(frozen=True)
class _InBlock:
    block: nn.Module
    step: int
    of_now: BlockCalls | None
    of_before: BlockCalls | None

    def now(self) -> object:
        assert self.of_now is not None
        return self.of_now.run(self.block, self.step)

    def before(self) -> object:
        return None if self.of_before is None else self.of_before.run(self.block, self.step)

    def is_of_tokens(self, x: Tensor) -> bool:
        hidden = self.of_now.before if self.of_now is not None else None
        if hidden is None:
            return True
        if x.dim() > 2 and hidden.dim() > 2:
            return x.shape[0] == hidden.shape[0] or x.shape[-2] == hidden.shape[-2]
        return x.shape[:-1].numel() == hidden.shape[:-1].numel()

    def step_on(self, kept: Kept) -> None:
        """To what the next block works on."""
        if self.of_now is not None:
            self.of_now.before = first_of(self.now())
        if self.of_before is not None:
            with kept.back():
                self.of_before.before = first_of(self.before())


@dataclass
class _Group:
    """Weights with the same inputs, and how often each layer is called in each run."""

    parts: list[Part]
    counts: list[dict[str, int]]


def _in_block(runs: Sequence[_Run], layers: Sequence[Layer], kept: Kept) -> Iterator[Turn]:
    groups = _groups(runs, layers)
    for group in groups:
        leaders = [_leader(part, group.parts) for part in group.parts]
        sums = {leader: Hessians() for leader in leaders}
        for run, counts in zip(runs, group.counts, strict=True):
            if counts:
                _add(run, counts, kept, sums)
        yield Turn(group.parts, [sums[leader] for leader in leaders])
    seen = {part.layer.name for group in groups for part in group.parts}
    unseen = [part for layer in layers if layer.name not in seen for part in parts_of([layer])]
    if unseen:
        yield Turn(unseen, [Hessians() for _ in unseen])


def _leader(part: Part, parts: Sequence[Part]) -> Part:
    """The part of ``parts``, of one input, whose sums are those of ``part``: linear layers multiply
    the same."""
    alone = isinstance(part.layer, FoundExperts) or isinstance(part.layer.module, nn.Conv2d)
    others = (p for p in parts if is_linear(p.layer.module))
    return part if alone else next(others, part)


def _add(run: _Run, counts: Mapping[str, int], kept: Kept, sums: Mapping[Part, Hessians]) -> None:
    """To the sums of parts that have the same inputs, what one call gives them."""
    layers = [part.layer for part in sums]
    wanted = {layer.name: counts[layer.name] for layer in layers}
    with captured(layers, wanted) as now, suppress(Stop):
        run.now()
    inputs = [list(_inputs(part, now, now)) for part in sums]
    with kept.back():
        with captured(layers, wanted) as before, suppress(Stop):
            run.before()
        dense = [list(_inputs(part, before, now)) for part in sums]
    every = (given for of_layer in now.given.values() for given in of_layer)
    of_tokens = all(run.is_of_tokens(given.x) for given in every)
    for hessians, own, others in zip(sums.values(), inputs, dense, strict=True):
        for (which, x), (_, as_it_was) in zip_longest(own, others, fillvalue=(0, None)):
            if x is not None:
                hessians.add(which, x, as_it_was if of_tokens else None)


def _inputs(part: Part, seen: Seen, now: Seen) -> Iterator[tuple[int, Tensor]]:
    name = part.layer.name
    pairs = zip(seen.given.get(name, ()), now.given.get(name, ()), strict=False)
    for given, routed in pairs:
        yield from inputs_of(part, given, routed.index)


def _groups(runs: Sequence[_Run], layers: Sequence[Layer]) -> list[_Group]:
    """In the order in which they run."""
    by_name = {layer.name: layer for layer in layers}
    sources: dict[str, list[tuple[int, ...]]] = {}
    counts: list[dict[str, int]] = []
    for number, run in enumerate(runs):
        with captured(layers, keep=False) as seen:
            run.now()
        counts.append({name: len(of) for name, of in seen.sources.items()})
        for name, of in seen.sources.items():
            keys = [(number, id(tensor), version) for tensor, version in of]
            sources.setdefault(name, []).extend(keys)
    groups: dict[tuple[tuple[int, ...], ...], list[Layer]] = {}
    for name, key in sources.items():
        groups.setdefault(tuple(key), []).append(by_name[name])
    made = []
    for group in groups.values():
        names = {layer.name for layer in group}
        of_runs = [{n: c for n, c in count.items() if n in names} for count in counts]
        firsts = [parts_of([layer])[0] for layer in group]
        seconds = [part for layer in group for part in parts_of([layer])[1:]]
        made += [_Group(parts, of_runs) for parts in (firsts, seconds) if parts]
    return made


def _at_once(
    model: nn.Module, layers: Sequence[Layer], calls: Sequence[Call], passed: Passed
) -> Iterator[Turn]:
    sums = {part: Hessians() for part in parts_of(layers)}
    for number, call in enumerate(calls):
        with passed.in_call(number), captured(layers) as now:
            call(model)
        for part, hessians in sums.items():
            for which, x in _inputs(part, now, now):
                hessians.add(which, x)
    turns: dict[nn.Module | None, list[Layer]] = {}
    for layer in layers:
        of = block_of(model, layer.name)
        place = layer.module if of is None else of[1]
        turns.setdefault(place if is_offloaded(place) else None, []).append(layer)
    for where, together in turns.items():
        with present(where) if where is not None else nullcontext():
            parts = parts_of(together)
            yield Turn(parts, [sums[part] for part in parts])
