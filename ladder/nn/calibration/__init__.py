# SPDX-License-Identifier: Apache-2.0
"""Quantising the layers of a model by what a model makes of calibration data (GPTQ, for every
tType)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from ladder.errors import InvalidArgument
from ladder.nn.calibration.block_training import train_block, values_of
from ladder.nn.calibration.blocks import BlockDone, in_turn
from ladder.nn.calibration.calls import at_rest, calls_of
from ladder.nn.calibration.hessians import Hessians, Layer, Part, parts_of
from ladder.nn.calibration.offloading import lacks_weights
from ladder.nn.calibration.order import blocks_of
from ladder.nn.dense_experts import GATE_UP
from ladder.nn.layer_types import LayerTypes, check_bits
from ladder.nn.mixtures import FoundExperts
from ladder.nn.report import BlockError, OutputErrors, Progress
from ladder.nn.select_conv import matrix_of
from ladder.quantization import quantize, quantize_calibrated, weights_of
from ladder.types import TType
from ladder.weight import Weight

_log = logging.getLogger("ladder")


@dataclass
class Calibrated:
    """What :func:`calibrated` makes.

    Attributes:
        weights: of linear layers and convolutions, by name.
        stacks: of experts, by name and then by parameter: a weight for each expert.
        errors: of each layer, by name.
        blocks: of each block that was trained, by name.
    """

    weights: dict[str, Weight] = field(default_factory=dict)
    stacks: dict[str, dict[str, list[Weight]]] = field(default_factory=dict)
    errors: dict[str, OutputErrors] = field(default_factory=dict)
    blocks: dict[str, BlockError] = field(default_factory=dict)

    def put(self, part: Part, weights: Sequence[Weight]) -> None:
        """The weights of a layer, or of a stack of one."""
        if part.stack:
            self.stacks.setdefault(part.layer.name, {})[part.stack] = list(weights)
        else:
            (self.weights[part.layer.name],) = weights

    def of(self, part: Part) -> Sequence[Weight]:
        """The weights that :meth:`put` has put there."""
        name = part.layer.name
        return self.stacks[name][part.stack] if part.stack else [self.weights[name]]

    def change(self, layers: Sequence[Layer], by: Callable[[Weight], Weight]) -> None:
        """Put ``by(weight)`` in the place of each weight of ``layers``."""
        for part in parts_of(layers):
            self.put(part, [by(weight) for weight in self.of(part)])


def calibrated(
    model: nn.Module,
    layers: Sequence[Layer],
    types: LayerTypes,
    batches: object,
    *,
    method: str = "search",
    train_blocks: int = 0,
    progress: Progress | None = None,
    keep: Callable[[Weight], Weight] | None = None,
) -> Calibrated:
    """Quantise ``layers`` of ``model`` so that what they give for ``batches`` moves least.

    Each weight is quantised to its type as :func:`ladder.quantize` does, and its codes are chosen
    anew by :mod:`ladder.compensation`. Layers of a block have inputs that quantised blocks before
    it give. Dense weights of ``model`` become the values of the quantised ones, in their dtype,
    but for those that accelerate offloads: they are in memory one block at a time.

    Args:
        batches: as :func:`ladder.nn.calibration.calls.calls_of`.
        train_blocks: for how many steps the weights of each block are trained
            (:mod:`ladder.nn.calibration.block_training`) once they have these codes, which they
            keep where training leaves the block no better. Blocks that do not run once a call, or
            give no tensor with gradients, are not trained, which a warning says.
        progress: called with (name, done, count) after each layer.
        keep: what is kept of a weight that is made; by default itself.
    Raises:
        InvalidArgument: nothing to call the model with, a batch with which it cannot be called, or
            a weight or input that is not finite, naming the layer. Layers before it have values of
            quantised weights. Or a parameter has no values, which is said before anything changes.
    """
    check_bits(types, "calibration chooses codes of")
    if type(train_blocks) is not int or train_blocks < 0:
        raise InvalidArgument(f"train_blocks is {train_blocks!r}, not a number of steps")
    if train_blocks and not blocks_of(model, layers):
        raise InvalidArgument(
            "train_blocks: no layer of the model is in a list of modules, whose members would be "
            "its blocks"
        )
    if (missing := lacks_weights(model)) is not None:
        raise InvalidArgument(f"{missing} is on the meta device: it has not been loaded")
    if train_blocks and any(parameter.is_inference() for parameter in model.parameters()):
        raise InvalidArgument("train_blocks: parameters made in inference mode cannot be trained")
    calls, made = calls_of(batches), Calibrated()
    keep = keep or _itself
    at_once = _itself if train_blocks else keep
    done = 0

    def train(block: BlockDone) -> None:
        _train(model, block, train_blocks, made)
        made.change(block.layers, keep)

    with at_rest(model):
        for turn in in_turn(model, layers, calls, train if train_blocks else None):
            for part, hessians in zip(turn.parts, turn.hessians, strict=True):
                ttype = types.of_layer(part.layer, part.stack)
                with weights_of(part.layer.name):
                    _quantize(part, hessians, ttype, method, made, at_once)
                if part.stack != GATE_UP:  # the first of two
                    done += 1
                    if progress is not None:
                        progress(part.layer.name, done, len(layers))
    if train_blocks:
        _warn_of_untrained(model, layers, made)
    return made


def _warn_of_untrained(model: nn.Module, layers: Sequence[Layer], made: Calibrated) -> None:
    blocks = {block for block, own in blocks_of(model, layers).items() if own}
    names = [name for name, module in model.named_modules() if module in blocks]
    left = [name for name in names if name not in made.blocks]
    if left:
        _log.warning(
            "train_blocks: %d of %d blocks could not be trained, %s: they do not run just once in "
            "a call of the model, or give no tensor that has gradients",
            *(len(left), len(names), ", ".join(left[:3]) + (", ..." if left[3:] else "")),
        )


def _itself(weight: Weight) -> Weight:
    return weight


def _train(model: nn.Module, done: BlockDone, steps: int, made: Calibrated) -> None:
    weights = {part: made.of(part) for part in parts_of(done.layers)}
    found = train_block(done.block, done.runs, weights, done.kept, steps)
    if found is None:
        return
    name = next(name for name, module in model.named_modules() if module is done.block)
    made.blocks[name], trained = found
    for part, own in trained.items():
        made.put(part, own)
        parameter = cast(Tensor, part.layer.module._parameters[part.stack or "weight"])
        with torch.no_grad():
            parameter.copy_(values_of(part, own, parameter.dtype))


def _quantize(
    part: Part,
    hessians: Hessians,
    ttype: TType,
    method: str,
    made: Calibrated,
    keep: Callable[[Weight], Weight],
) -> None:
    layer = part.layer
    errors = made.errors.setdefault(layer.name, OutputErrors())

    def quantized(source: Tensor, sums: tuple[Tensor | None, Tensor | None], inputs: int) -> Weight:
        hessian, cross = sums
        errors.weights += 1
        errors.few += 0 < inputs < source.shape[1]
        if hessian is None:
            errors.unseen += 1
            return quantize(source, ttype, method=method)
        if not all(bool(each.isfinite().all()) for each in sums if each is not None):
            raise InvalidArgument("calibration data gives it inputs that are not finite")
        found = quantize_calibrated(source, ttype, hessian, cross, method=method)
        errors.error += found.error
        errors.nearest += found.nearest
        errors.size += found.size
        return found.weight

    if not isinstance(layer, FoundExperts):
        module: Any = layer.module
        source = matrix_of(module, module.weight)
        weight = quantized(source, hessians.of_groups(), hessians.inputs())
        made.put(part, [keep(weight)])
        with torch.inference_mode(module.weight.is_inference()), torch.no_grad():
            module.weight.copy_(values_of(part, [weight], module.weight.dtype))
        return
    parameter, of = cast(Tensor, layer.module._parameters[part.stack]), layer.layout
    stack = []
    for expert in range(of.shape[0]):
        with weights_of(f"{part.stack}[{expert}]"):
            source = of.rows(part.stack, parameter[expert])
            weight = quantized(source, hessians.of(expert), hessians.inputs(expert))
        stack.append(keep(weight))
        values = of.as_dense(part.stack, weight.dequantize(parameter.dtype)[None])
        with torch.inference_mode(parameter.is_inference()), torch.no_grad():
            parameter[expert].copy_(values[0])
    made.put(part, stack)
