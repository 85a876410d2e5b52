# SPDX-License-Identifier: Apache-2.0
"""Quantisation-aware training (QAT): weights are trained while products see them rounded to their
tType, so that they learn to do with its values.

    ladder.qat.prepare(model, "uint2", group_size=64)
    ...                                 # train as any model
    ladder.qat.convert(model)           # ladder.Linear: the values that the model was trained with

With ``learned_scales=True`` scales and zero points are parameters, which are trained as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from torch import Tensor, nn

from ladder.errors import InvalidArgument
from ladder.nn.arguments import check_model
from ladder.nn.convert import give_own_weights, note, note_copies, packed_layer, put
from ladder.nn.dense_experts import DOWN, STACKS, Layout
from ladder.nn.layer_types import LayerTypes, check_bits
from ladder.nn.mixtures import FoundExperts
from ladder.nn.outputs import untie
from ladder.nn.report import Conversion
from ladder.nn.select import PREPARED, Found, Left, dense_weight, every_module, is_linear, survey
from ladder.nn.targets import Targets, targets
from ladder.qat.layers import Settings, dense_class, is_prepared, prepared_class, set_class
from ladder.qat.learned import first_parameters, not_learned, scale_names, trained
from ladder.qat.scales import Scales, objection
from ladder.quantization import METHODS, weights_of
from ladder.types import TType

__all__ = ["convert", "prepare", "restore", "scale_parameters"]


def prepare(
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
    learned_scales: bool = False,
    scales_of: nn.Module | None = None,
) -> Conversion:
    """Have products of ``model`` see weights as :func:`ladder.convert` with these arguments would
    leave them, in place.

    Parameters stay what and where they are, in their dtype, with their names: optimizers hold
    them, and ``state_dict`` and ``save_pretrained`` give a dense model, which has not been rounded.
    In each call a weight is quantised and decoded, and its gradient is that of its rounded value
    (the straight-through estimator). Scales and zero points follow the weights, and are not
    parameters, but with ``learned_scales``.

    Args:
        activation_type: layers are to have, :attr:`ladder.Linear.activation_type`: x of linear
            layers is rounded, too, as on its device, with the gradient of what it was; a call on a
            device without products of such x raises Unsupported. Of experts x is not rounded
            before they are packed.
        weight_type, group_size, symmetric, types, skip, method, convolutions: as
            :func:`ladder.convert`.
        head: as there; an output embedding that is tied to the input embedding is trained as a
            parameter of its own, which begins as a copy.
        embeddings: as there: rows are rounded as they are read. An output embedding that is tied
            to such an embedding and stays dense is the same parameter until :func:`convert`.
        learned_scales: scales, and zero points where the type stores any, are parameters of their
            layers, so give parameters to an optimizer after this: of ``weight`` ``weight_range``,
            half of the distance between the ends of a group, and ``weight_center`` between them,
            float32 [R, G] in the unit of weights, and of experts ``gate_up_proj_range``
            [E, R, G]... Their gradients are scaled for the learning rate of weights to do
            (:func:`scale_parameters` gives them for another). They begin as ``method`` finds them,
            and are in ``state_dict``, which a model that is prepared alike loads. Scales of 8 bits,
            of two levels and of k-quants are found anew in each call as without, which
            :attr:`Conversion.not_learned` says.
        scales_of: with ``learned_scales``, this model packed by :func:`ladder.convert`, with
            ``calibration`` as a rule: scales and zero points begin as in its layers of the same
            names, which must have the same types.
    Returns:
        Which layers are prepared, and which are left and why.
    Raises:
        InvalidArgument, Unsupported: as :func:`ladder.convert`, and for types of more than 8 bits,
            or a layer that ``scales_of`` does not have packed so; ``model`` is what it was.
    """
    if scales_of is not None and not learned_scales:
        raise InvalidArgument("scales_of is given, but learned_scales is False")
    if method not in METHODS:
        raise InvalidArgument(f'method is "{method}", not one of {", ".join(METHODS)}')
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
    check_bits(found.types, "training takes")
    report = Conversion(left=found.left, done="prepared")
    made = []
    for layer in found.layers:
        settings = _settings(layer, found, method, activation_type, learned_scales)
        made.append((settings, first_parameters(layer, settings, scales_of)))
    note_copies(report, give_own_weights(model, found.layers, found.heads))
    for layer, (settings, parameters) in zip(found.layers, made, strict=True):
        note(layer, found.types, report)
        if learned_scales:
            report.not_learned |= not_learned(layer, settings)
        layer.module.__dict__[PREPARED] = settings
        for name, value in parameters.items():
            of = cast(Tensor, layer.module._parameters[name.rpartition("_")[0]])
            layer.module._parameters[name] = nn.Parameter(value, of.requires_grad)
        set_class(layer.module, prepared_class(layer.module))
    report.log()
    return report


def convert(model: nn.Module) -> Conversion:
    """Replace each layer that :func:`prepare` has prepared by the packed one that it was trained
    to become, in place: :class:`ladder.Linear`, :class:`ladder.Experts`, :class:`ladder.Conv2d`,
    :class:`ladder.Embedding`, with the values that its products saw last.

    Returns:
        What was packed; layers that were not prepared are left.
    Raises:
        InvalidArgument: no layer is prepared; or weights are sharded over processes (FSDP), which
            is said before anything is replaced; or a weight cannot be quantised, naming its module.
            Modules before it have been replaced, it and those after it are prepared as before.
    """
    report, untied = Conversion(), set[str]()
    for layer, settings in _prepared(model):
        untied |= settings.untied
        types = LayerTypes(settings.types[0])
        if isinstance(layer, FoundExperts):
            types = LayerTypes(types.usual, {f"{layer.name}.{STACKS[DOWN]}": settings.types[1]})
        made = None
        if any(settings.scales):
            made = trained(layer, settings, model.get_submodule(layer.name))
        with weights_of(layer.name):
            packed = packed_layer(layer, types, settings.method, settings.activation_type, made)
        note(layer, types, report)
        put(model, layer, packed)
    copies = untie(model, untied)
    report.left = _left(model)
    note_copies(report, copies)
    report.log()
    return report


def restore(model: nn.Module) -> None:
    """Make all layers that :func:`prepare` has prepared dense again, with their weights as they
    are, which have not been rounded.

    Raises:
        InvalidArgument: no layer is prepared, or weights are sharded over processes.
    """
    for layer, _ in _prepared(model):
        module = model.get_submodule(layer.name)
        set_class(module, dense_class(module))
        del module.__dict__[PREPARED]
        for name in scale_names(module):
            del module._parameters[name]


def scale_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of learned scales and zero points of ``model``, by name: for a group of their
    own of an optimizer. Empty where :func:`prepare` made none."""
    check_model(model)
    return {
        f"{name}.{own}".lstrip("."): cast(nn.Parameter, module._parameters[own])
        for name, module in model.named_modules()
        if is_prepared(module)
        for own in scale_names(module)
    }


def _settings(
    layer: Found | FoundExperts,
    found: Targets,
    method: str,
    activation_type: str | None,
    learned_scales: bool,
) -> Settings:
    own: tuple[TType, ...]
    layout: Layout | None = None
    if isinstance(layer, FoundExperts):
        own, layout = found.types.of_stacks(layer), layer.layout
    else:
        own = (found.types.of_layer(layer),)
    return Settings(
        layer.name,
        own,
        method,
        activation_type if layout or is_linear(layer.module) else None,
        layout=layout,
        untied=found.untied if isinstance(layer.module, nn.Embedding) else frozenset(),
        scales=tuple(
            Scales.of(each) if learned_scales and not objection(each) else None for each in own
        ),
    )


def _prepared(model: nn.Module) -> list[tuple[Found | FoundExperts, Settings]]:
    """All prepared layers, as dense modules that share parameters and hooks with them."""
    check_model(model)
    names, every = every_module(model)
    modules = {key: module for key, module in every.items() if is_prepared(module)}
    if not modules:
        raise InvalidArgument("no layer of the model is prepared: use ladder.qat.prepare first")
    found: list[tuple[Found | FoundExperts, Settings]] = []
    for key, module in modules.items():
        settings = cast(Settings, module.__dict__[PREPARED])
        for name, parameter in module._parameters.items():
            if parameter is not None and type(parameter) is not nn.Parameter:
                raise InvalidArgument(
                    f"{settings.name}: its {name} is a {type(parameter).__name__}: gather the "
                    "weights of all processes in a dense model (get_model_state_dict), and "
                    "quantise that, or its folder, as this model was prepared"
                )
        dense = object.__new__(dense_class(module))
        dense.__dict__ = {name: each for name, each in vars(module).items() if name != PREPARED}
        learned = scale_names(module)
        own = {name: each for name, each in module._parameters.items() if name not in learned}
        dense.__dict__["_parameters"] = own
        if settings.layout is None:
            found.append((Found(tuple(names[key]), dense), settings))
        else:
            found.append((FoundExperts(tuple(names[key]), dense, settings.layout), settings))
    return found


def _left(model: nn.Module) -> dict[str, Left]:
    """What stays dense of a model whose prepared layers are packed."""
    rest = survey(model, ())
    why = "ladder.qat.prepare had left it"
    more = {each.name: Left(why, dense_weight(each.module).numel()) for each in rest.found}
    for mixture in rest.experts:
        for name, weights in mixture.stacks().values():
            more[name] = Left(why, weights, mixture.layout.shape[0])
    return {**rest.left, **more}
