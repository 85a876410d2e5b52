# SPDX-License-Identifier: Apache-2.0
"""Running a model block by block, so that each weight sees what those before it give once they are
quantised, and nothing runs more often than it must."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, Protocol

from torch import Tensor, nn

from ladder.nn.calls import BlockCalls, Call, first_of, record
from ladder.nn.dense_experts import STACKS
from ladder.nn.hessians import Given, Hessians, Kept, Layer, Part, Stop, captured, inputs_of
from ladder.nn.mixtures import FoundExperts


@dataclass
class Turn:
    """Weights that have the same inputs, and what these are like."""

    parts: list[Part]
    hessians: list[Hessians]


def in_turn(model: nn.Module, layers: Sequence[Layer], calls: Sequence[Call]) -> Iterator[Turn]:
    """The weights of ``layers``, those with the same inputs at a time, in the order in which they
    run, with what ``calls`` of ``model`` give them. Weights that have been given by then may be
    others: what comes next is what they make of their inputs, beside what the dense model makes.

    Blocks are the members of a ``nn.ModuleList`` that hold layers and run once a call; a model
    without such is one block. Where each takes what the block before it gave, unchanged, blocks run
    alone, on inputs that are kept; elsewhere the model runs up to one. Layers in no block come
    last, all at once and without inputs of the dense model.
    """
    found = _blocks(model, layers)
    order = _order(model, list(found), calls)
    if not order and layers:
        yield from _in_block([_Whole(model, call) for call in calls], layers, Kept(layers))
        return
    dense = _segments(model, order, calls)
    for number, (blocks, before) in enumerate(dense):
        now = record(model, blocks, calls)[1] if number else [each.copy() for each in before]
        for step, block in enumerate(blocks):
            kept = Kept(found[block])
            runs = [_InBlock(block, step, *pair) for pair in zip(now, before, strict=True)]
            yield from _in_block(runs, found[block], kept)
            if step + 1 == len(blocks):
                continue
            for each in now:
                each.before = first_of(each.run(block, step))
            with kept.back():
                for each in before:
                    each.before = first_of(each.run(block, step))
    of_blocks = {layer.name for block in order for layer in found[block]}
    if rest := [layer for layer in layers if layer.name not in of_blocks]:
        yield from _at_once(model, rest, calls)


class _Run(Protocol):
    """One call of a block: as the model is now, and as it was."""

    def now(self) -> object: ...

    def before(self) -> object: ...


@dataclass(frozen=True)
class _Whole:
    model: nn.Module
    call: Call

    def now(self) -> object:
        return self.call(self.model)

    before = now


@dataclass(frozen=True)
class _InBlock:
    block: nn.Module
    step: int
    of_now: BlockCalls
    of_before: BlockCalls

    def now(self) -> object:
        return self.of_now.run(self.block, self.step)

    def before(self) -> object:
        return self.of_before.run(self.block, self.step)


def _in_block(runs: Sequence[_Run], layers: Sequence[Layer], kept: Kept) -> Iterator[Turn]:
    groups = _groups(runs[0], layers) if runs else []
    for parts, counts in groups:
        some = [part.layer for part in parts]
        hessians = [Hessians() for _ in parts]
        for run in runs:
            with captured(some, counts) as now, suppress(Stop):
                run.now()
            inputs = [list(_inputs(part, now, now)) for part in parts]
            with kept.back():
                with captured(some, counts) as before, suppress(Stop):
                    run.before()
                dense = [list(_inputs(part, before, now)) for part in parts]
            for sums, own, others in zip(hessians, inputs, dense, strict=True):
                for (which, x), (_, as_it_was) in zip_longest(own, others, fillvalue=(0, None)):
                    if x is not None:
                        sums.add(which, x, as_it_was)
        yield Turn(parts, hessians)
    seen = {part.layer.name for parts, _ in groups for part in parts}
    unseen = [part for layer in layers if layer.name not in seen for part in _parts(layer)]
    if unseen:
        yield Turn(unseen, [Hessians() for _ in unseen])


def _inputs(
    part: Part, given: Mapping[str, list[Given]], now: Mapping[str, list[Given]]
) -> Iterator[tuple[int, Tensor]]:
    name = part.layer.name
    for each, routed in zip(given.get(name, ()), now.get(name, ()), strict=False):
        yield from inputs_of(part, each, routed.index)


def _groups(run: _Run, layers: Sequence[Layer]) -> list[tuple[list[Part], dict[str, int]]]:
    """Weights with one input, in the order in which they run, and how often each layer does."""
    with captured(layers) as found:
        run.now()
    by_name = {layer.name: layer for layer in layers}
    groups: dict[int, list[Layer]] = {}
    for name, given in found.items():
        groups.setdefault(id(given[0].source), []).append(by_name[name])
    made = []
    for group in groups.values():
        counts = {layer.name: len(found[layer.name]) for layer in group}
        firsts = [_parts(layer)[0] for layer in group]
        seconds = [part for layer in group for part in _parts(layer)[1:]]
        made += [(parts, counts) for parts in (firsts, seconds) if parts]
    return made


def _parts(layer: Layer) -> list[Part]:
    return [Part(layer, stack) for stack in (STACKS if isinstance(layer, FoundExperts) else ("",))]


def _at_once(model: nn.Module, layers: Sequence[Layer], calls: Sequence[Call]) -> Iterator[Turn]:
    parts = [part for layer in layers for part in _parts(layer)]
    hessians = [Hessians() for _ in parts]
    for call in calls:
        with captured(layers) as now:
            call(model)
        for part, sums in zip(parts, hessians, strict=True):
            for which, x in _inputs(part, now, now):
                sums.add(which, x)
    yield Turn(parts, hessians)


def _segments(
    model: nn.Module, order: Sequence[nn.Module], calls: Sequence[Call]
) -> list[tuple[Sequence[nn.Module], list[BlockCalls]]]:
    """Blocks each of which runs on what the one before gave, with what calls give them."""
    found: list[tuple[Sequence[nn.Module], list[BlockCalls]]] = []
    at = 0
    while at < len(order):
        count, inputs = record(model, order[at:], calls)
        found.append((order[at : at + count], inputs))
        at += count
    return found


def _blocks(model: nn.Module, layers: Iterable[Layer]) -> dict[nn.Module, list[Layer]]:
    """The outermost members of lists of modules, with the layers in each."""
    found: dict[nn.Module, list[Layer]] = {}
    for layer in layers:
        parts = layer.name.split(".")
        parent = model
        for part in parts[:-1]:
            child = parent.get_submodule(part)
            if isinstance(parent, nn.ModuleList):
                found.setdefault(child, []).append(layer)
                break
            parent = child
    return found


def _order(model: nn.Module, blocks: Sequence[nn.Module], calls: Sequence[Call]) -> list[nn.Module]:
    """The blocks that run, in that order, but those that a call runs more than once."""
    counts: dict[nn.Module, int] = {}
    often: set[nn.Module] = set()
    for call in calls:
        ran: list[nn.Module] = []
        note = partial(_note, ran)
        with ExitStack() as stack:
            for block in blocks:
                stack.callback(block.register_forward_pre_hook(note).remove)
            call(model)
        often |= {block for block in ran if ran.count(block) > 1}
        counts |= dict.fromkeys(ran, 1)
        if len(counts) == len(blocks):
            break
    return [block for block in counts if block not in often]


def _note(ran: list[nn.Module], module: nn.Module, args: Any) -> None:
    ran.append(module)
