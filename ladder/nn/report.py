# SPDX-License-Identifier: Apache-2.0
"""What a conversion did to each layer, for people, programs and the log."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ladder.nn.select import Left
from ladder.types import TType

#: ``progress(name, done, total)``: ``done`` of ``total`` modules, windows or bytes are done, the
#: last of them of ``name``, which is "" where they have no names.
Progress = Callable[[str, int, int], object]

_NAMES_SHOWN = 3
_log = logging.getLogger("ladder")


@dataclass
class OutputErrors:
    """What rounding does to the outputs of a layer on calibration data, after the weight has been
    corrected for what its inputs have become: sums of squares.

    Attributes:
        error: with the weights that the layer has.
        nearest: had each weight its nearest code.
        size: of the outputs.
        weights: how many matrices the layer has: several of experts.
        unseen: how many of them no input reached; they have the nearest codes.
        few: how many had inputs, but fewer than columns.
    """

    error: float = 0.0
    nearest: float = 0.0
    size: float = 0.0
    weights: int = 0
    unseen: int = 0
    few: int = 0


@dataclass(frozen=True)
class BlockError:
    """How far the outputs of a block are from those in the dense model, the root mean square over
    rows, of each as a part of its size.

    Attributes:
        calibrated: with the codes that training is compared with.
        trained: with the weights that the block has.
    """

    calibrated: float
    trained: float


@dataclass(repr=False)
class Conversion:
    """What was packed, what stays dense, and why. ``print`` and the prompt show it as text.

    Attributes:
        packed: module, or stack of experts -> its tType.
        left: module, or parameter of a module that is no linear layer -> why it stays dense.
        weights: elements of the packed matrices.
        stacks: of ``packed``, stack of experts -> how many matrices it has.
        convolutions: how many of ``packed`` are such, not linear layers.
        embeddings: the same of input embeddings.
        errors: of calibrated layers, by name.
        blocks: of blocks that were trained, by name.
        done: what was done to what is ``packed``, if something else: "prepared" for training.
        not_learned: of ``packed`` ones that are prepared with learned scales: why theirs are not.
    """

    packed: dict[str, str] = field(default_factory=dict)
    left: dict[str, Left] = field(default_factory=dict)
    weights: int = 0
    stacks: dict[str, int] = field(default_factory=dict)
    convolutions: int = 0
    embeddings: int = 0
    errors: dict[str, OutputErrors] = field(default_factory=dict)
    blocks: dict[str, BlockError] = field(default_factory=dict)
    done: str = "packed"
    not_learned: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, ttype: TType | str, weights: int, experts: int = 0) -> None:
        """Note a packed module, or a stack of so many ``experts``."""
        self.packed[name] = str(ttype)
        self.weights += weights
        if experts:
            self.stacks[name] = experts

    @property
    def experts(self) -> dict[str, Left]:
        """Parameters of three dimensions that stay dense: matrices of experts."""
        return {name: left for name, left in self.left.items() if left.matrices > 1}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The text, a line for each tType and each reason."""
        types: dict[str, list[str]] = {}
        for name, text in self.packed.items():
            types.setdefault(text, []).append(name)
        reasons: dict[str, dict[str, Left]] = {}
        for name, left in self.left.items():
            reasons.setdefault(left.reason, {})[name] = left
        matrices = sum(self.stacks.values())
        experts = f" and {matrices} matrices of experts" if matrices else ""
        count = len(self.packed) - len(self.stacks) - self.convolutions - self.embeddings
        convolutions = f", {self.convolutions} convolutions" if self.convolutions else ""
        embeddings = f", {self.embeddings} embeddings" if self.embeddings else ""
        what = f"{count} linear layers{convolutions}{embeddings}{experts}"
        lines = [f"{self.done} {what}, {_count(self.weights)} weights"]
        lines += [f"  {text}: {_listed(names)}" for text, names in types.items()]
        if reasons:
            weights = sum(left.weights for left in self.left.values())
            lines.append(f"left {len(self.left)} dense, {_count(weights)} weights")
        for reason, group in reasons.items():
            weights = sum(left.weights for left in group.values())
            lines.append(f"  {reason}: {_listed(group)} ({_count(weights)} weights)")
        kept: dict[str, list[str]] = {}
        for name, why in self.not_learned.items():
            kept.setdefault(why, []).append(name)
        lines += [f"  scales are not learned, {why}: {_listed(of)}" for why, of in kept.items()]
        return lines + list(calibrated_lines(self.errors, self.blocks))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__

    def log(self) -> None:
        """The text at INFO; at WARNING that nothing was packed, and experts, which are most of the
        weights of a model that has them."""
        _log.info("%s", self)
        if not self.packed:
            _log.warning("no linear layer was %s\n%s", self.done, self)
        if self.not_learned:
            count = len(self.not_learned)
            _log.warning(
                "scales of %d of %d weights are not learned, but follow their weights: %s: %s",
                *(count, len(self.packed), _listed(self.not_learned)),
                next(iter(self.not_learned.values())),
            )
        if self.experts:
            _log.warning("%s", self.expert_warning())

    def expert_warning(self) -> str:
        """How many matrices and weights of experts stay dense, in a sentence."""
        experts = self.experts
        matrices = sum(left.matrices for left in experts.values())
        weights = sum(left.weights for left in experts.values())
        everything = self.weights + sum(left.weights for left in self.left.values())
        return (
            f"{matrices} matrices of experts stay dense, {_count(weights)} weights or "
            f"{weights / everything:.0%} of the model, such as {_listed(experts)}: "
            f"{next(iter(experts.values())).reason}"
        )


def calibrated_lines(
    errors: Mapping[str, OutputErrors], blocks: Mapping[str, BlockError]
) -> Iterator[str]:
    """What rounding costs: the root mean square over layers, each by its own size."""
    seen = [each for each in errors.values() if each.size]
    if seen:
        now = math.sqrt(sum(each.error / each.size for each in seen) / len(seen))
        nearest = math.sqrt(sum(each.nearest / each.size for each in seen) / len(seen))
        yield (
            f"calibrated {len(seen)} layers: rounding moves their outputs by {now:.2%} of their "
            f"size, to the nearest codes by {nearest:.2%}"
        )
    if blocks:
        last = list(blocks.values())[-1]
        better = sum(each.trained < each.calibrated for each in blocks.values())
        yield (
            f"trained {len(blocks)} blocks, {better} of them to advantage: what the last gives is "
            f"{last.trained:.2%} off, and would be {last.calibrated:.2%} by its calibrated codes"
        )
    if unseen := [name for name, each in errors.items() if each.unseen]:
        count = sum(errors[name].unseen for name in unseen)
        yield f"no calibration data reached {count} matrices, of {_listed(unseen)}"
    if few := [name for name, each in errors.items() if each.few]:
        count = sum(errors[name].few for name in few)
        yield (
            f"{count} matrices had fewer inputs than columns, and more calibration data would "
            f"serve them: of {_listed(few)}"
        )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    return shown if more <= 0 else f"{shown} and {more} more"


def _count(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)
