# SPDX-License-Identifier: Apache-2.0
"""Whole models in memory: every linear layer to a :class:`ladder.Linear`, experts to
:class:`ladder.Experts`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from torch import Tensor, nn

from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.arguments import check_model
from ladder.nn.calibration import Calibrated, calibrated
from ladder.nn.conv import Conv2d
from ladder.nn.embedding import Embedding
from ladder.nn.experts import Experts
from ladder.nn.layer_types import LayerTypes
from ladder.nn.linear import Linear
from ladder.nn.mixtures import FoundExperts
from ladder.nn.outputs import COPIED, untie
from ladder.nn.packed import PackedModule
from ladder.nn.report import Conversion, Progress
from ladder.nn.select import Found, Left, check_entries, covers, entries_of
from ladder.nn.select_conv import matrix_of
from ladder.nn.targets import targets
from ladder.quantization import quantize, weights_of
from ladder.types import TType

#: What calls and gradients of a module go through. The dictionaries themselves go from one module
#: to the other, because the handles that remove hooks hold them.
_HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_backward_hooks",
    "_backward_pre_hooks", "_is_full_backward_hook",
)  # fmt: skip


def convert(
    model: nn.Module,
    weight_type: str | TType = "uint4",
    group_size: int | None = None,
    symmetric: bool | None = None,
    *,
    types: Mapping[str, str | TType] | None = None,
    skip: Iterable[str] | None = None,
    method: str = "search",
    activation_type: str | None = None,
    convolutions: bool = False,
    head: bool = False,
    embeddings: bool = False,
    calibration: object = None,
    train_blocks: int = 0,
    progress: Progress | None = None,
) -> Conversion:
    """Replace the linear layers of ``model``, ``nn.Linear`` and transformers' Conv1D, by
    :class:`Linear`, and the experts that transformers keeps in parameters of three dimensions
    (Mixtral, Qwen MoE, gpt-oss, ...) by :class:`ladder.Experts`, in place.

    A layer stays dense where something else than its ``forward`` reads the weight: the
    ``out_proj`` of ``nn.MultiheadAttention``, a weight tied to an embedding, a parametrized weight,
    a subclass with a forward of its own. So do experts of modules that do not say what they
    compute, of which a warning tells. What is returned has a reason for each. Biases stay the very
    parameters that they are, hooks move along, and a layer that has two names has both afterwards.

    Args:
        weight_type, group_size, symmetric, method: as :func:`ladder.quantize`.
        types: other types of some layers, by names as ``skip`` has them; each must name a layer
            that is quantised. Where several name a layer a whole name decides, else the one with
            the most parts, of equally many the last. Types without groups of their own take
            ``group_size``. Of experts "experts.gate_up" and "experts.down" may have types of their
            own, too. :func:`ladder.choose_types` finds types for so many bits.
        activation_type: as :attr:`Linear.activation_type`, of every layer and all experts.
        convolutions: replace every ``nn.Conv2d`` by :class:`ladder.Conv2d`, too, whose x come as
            they are whatever the ``activation_type``. Depthwise convolutions stay dense, and those
            with filters so small that packing would not make them smaller.
        head: quantise the output embedding, too. Where the model ties it to the input embedding it
            becomes a layer of its own, beside that embedding, which stays dense, and the model's
            configuration says so (``tie_word_embeddings``).
        embeddings: replace every input embedding by :class:`ladder.Embedding`, too: what
            ``get_input_embeddings`` of a model of transformers and of its parts gives, in models
            without that method every ``nn.Embedding``. An output embedding that is tied to it is
            a layer of its own then: with ``head`` it is quantised from the same weight, without it
            stays dense, and the model's configuration says so. Embeddings have no x, so
            ``activation_type`` does not concern them, and with ``calibration`` they have their
            nearest codes.
        skip: names of modules to leave as they are, or one: a whole name, or whole parts of it that
            follow each other ("lm_head", "mlp", "layers.0"). Each but "lm_head" must name one.
            None: the output embedding, as ``get_output_embeddings`` of a model of transformers
            says, else what is called "lm_head". ``()``: nothing.
        calibration: what the model is called with, for its codes to be chosen by what layers are
            given (:mod:`ladder.nn.calibration`): an iterable of tensors, tuples of arguments or
            mappings of arguments by name; of a tensor [B, ...] each row is a batch of its own.
            None: each weight has its nearest code.
        train_blocks: with ``calibration``, for how many steps the weights of each block of the
            model are trained to give what the dense block gives, which two and three bits need
            most. 200 do much of what there is to do. 0: none.
        progress: called with (name, done, count) after each layer, experts after linear layers,
            then convolutions, then embeddings; with ``calibration`` in the order in which they run,
            without embeddings.
    Returns:
        What was packed, what was left and why; ``print`` shows it. The log has it as well.
    Raises:
        InvalidArgument: an entry of ``skip`` that names no module, or one of ``types`` that names
            none that is quantised, before anything is replaced; or a weight that cannot be
            quantised, naming its module. Modules before it have been replaced; the model computes
            the same function of what it then holds. With ``calibration``: the model cannot be
            called with a batch, or gives a layer what is not finite; modules before it are dense
            then, with the values of quantised weights.
        Unsupported: ``activation_type`` does not take a weight, naming its module, before anything
            is replaced.
    """
    if train_blocks and calibration is None:
        raise InvalidArgument("train_blocks needs calibration: what blocks are trained by")
    found = targets(
        model,
        weight_type,
        group_size,
        symmetric,
        types=types,
        skip=skip,
        activation_type=activation_type,
        convolutions=convolutions,
        head=head,
        embeddings=embeddings,
    )
    every, chosen, report = found.layers, found.types, Conversion(left=found.left)
    made, copies = None, dict[str, tuple[str, int]]()
    if calibration is not None:
        copies = give_own_weights(model, every, found.heads)
        with_x = [layer for layer in every if not isinstance(layer.module, nn.Embedding)]
        made = calibrated(
            model, with_x, chosen, calibration,
            method=method, train_blocks=train_blocks, progress=progress,
        )  # fmt: skip
        report.errors, report.blocks = made.errors, made.blocks
    for done, layer in enumerate(every, start=1):
        with weights_of(layer.name):
            packed = packed_layer(layer, chosen, method, activation_type, made)
        note(layer, chosen, report)
        put(model, layer, packed)
        if progress is not None and made is None:
            progress(layer.name, done, len(every))
    note_copies(report, untie(model, found.heads | found.untied) | copies)
    report.log()
    return report


def note_copies(report: Conversion, copies: Mapping[str, tuple[str, int]]) -> None:
    """Have ``report`` say of matrices that :func:`untie` has copied."""
    for name, (at, count) in copies.items():
        if name.endswith(".weight"):
            report.left[name] = Left(f"{COPIED} {at.removesuffix('.weight')}", count)


def give_own_weights(
    model: nn.Module, layers: Iterable[Found | FoundExperts], names: Collection[str]
) -> dict[str, tuple[str, int]]:
    """Copy the weights of those of ``layers`` that have these ``names``, for them to change, and
    :func:`untie` them, whose result is returned."""
    for layer in layers:
        if not isinstance(layer, FoundExperts) and set(names).intersection(layer.names):
            weight = cast(Tensor, layer.module.weight)
            layer.module.weight = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    return untie(model, names)


def note(layer: Found | FoundExperts, types: LayerTypes, report: Conversion) -> None:
    """Have ``report`` say that ``layer`` is quantised to its type of ``types``."""
    if isinstance(layer, FoundExperts):
        for stack, (name, weights) in layer.stacks().items():
            report.add(name, types.of_layer(layer, stack), weights, layer.layout.shape[0])
        return
    weight = cast(Tensor, layer.module.weight)
    report.add(layer.name, types.of_layer(layer), weight.numel())
    report.convolutions += isinstance(layer.module, nn.Conv2d)
    report.embeddings += isinstance(layer.module, nn.Embedding)


def put(model: nn.Module, layer: Found | FoundExperts, packed: nn.Module) -> None:
    """Put ``packed`` into the place of ``layer``."""
    if isinstance(packed, PackedModule) and not isinstance(packed, Embedding):
        packed._parameters["bias"] = layer.module._parameters["bias"]  # optimizers hold it
    replace(model, layer.names, layer.module, packed)


def packed_layer(
    layer: Found | FoundExperts,
    types: LayerTypes,
    method: str,
    activation_type: str | None,
    made: Calibrated | None = None,
) -> nn.Module:
    """What takes the place of a layer, of weights that have been ``made`` or are now."""
    module = layer.module
    if isinstance(layer, FoundExperts):
        first, second = types.of_stacks(layer)
        return Experts.from_dense(
            module,
            first,
            down_type=second,
            method=method,
            activation_type=activation_type,
            weights=None if made is None else made.stacks.pop(layer.name),
        )
    if made is not None and layer.name in made.weights:
        weight = made.weights.pop(layer.name)
    else:
        dense = matrix_of(module, cast(Tensor, module.weight))
        weight = quantize(dense, types.of_layer(layer), method=method)
    if isinstance(module, nn.Conv2d):
        return Conv2d.in_place_of(module, weight)
    if isinstance(module, nn.Embedding):
        return Embedding.in_place_of(module, weight)
    return Linear.in_place_of(module, weight, activation_type=activation_type)


def set_activation_type(
    model: nn.Module, activation_type: str | None, *, skip: Iterable[str] = ()
) -> list[str]:
    """Set :attr:`Linear.activation_type` of every packed layer and of all packed experts of
    ``model``, in place, however they came to be packed. What is saved with ``save_pretrained``
    afterwards says so.

    Args:
        skip: names of modules to leave as they are, as :func:`convert`.
    Returns:
        The names of the layers.
    Raises:
        Unsupported: a layer's weight takes no such activations, naming it; nothing is changed then.
        InvalidArgument: an unknown ``activation_type``, or an entry of ``skip`` that names no
            module.
    """
    check_model(model)
    skip = entries_of("skip", skip)
    check_entries("skip", skip, (name for name, _ in model.named_modules() if name))
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (Linear, Experts)) and not any(covers(entry, name) for entry in skip)
    }
    for name, layer in layers.items():
        if why := layer.activation_objection(activation_type):
            raise Unsupported(f"{name}: {why}")
    for layer in layers.values():
        layer.activation_type = activation_type
    config: Any = getattr(getattr(model, "config", None), "quantization_config", None)
    stored = getattr(config, "stored", None)
    if stored is not None and not skip:
        config.stored = dataclasses.replace(
            stored, activation_type=activation_type, activation_types={}
        )
    return list(layers)


def replace(model: nn.Module, names: Iterable[str], old: nn.Module, new: nn.Module) -> None:
    """Put ``new`` where ``model`` has ``old``, under each of its ``names``, with its hooks."""
    for name in _HOOKS:
        if name in old.__dict__:
            new.__dict__[name] = old.__dict__[name]
    hook: Any = getattr(old, "_hf_hook", None)
    if hook is not None:
        from accelerate.hooks import add_hook_to_module, remove_hook_from_module

        remove_hook_from_module(old)
        add_hook_to_module(new, hook)
    for name in names:
        model.set_submodule(name, new)
