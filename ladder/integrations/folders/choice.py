# SPDX-License-Identifier: Apache-2.0
"""Quantising while loading: which weights of a model are to be packed, and how one of them is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.integrations.folders.config import LadderConfig
from ladder.nn.conv import Conv2d
from ladder.nn.convert import replace
from ladder.nn.dense_experts import GATE_UP
from ladder.nn.embedding import Embedding
from ladder.nn.linear import Linear
from ladder.nn.mixtures import FoundExperts, mixtures, stack_names
from ladder.nn.outputs import untie
from ladder.nn.report import Conversion
from ladder.nn.select import Found, Left, check_entries, dense_weight, is_conv1d, linears, survey
from ladder.nn.select_conv import convolutions as convolutions_of
from ladder.nn.select_conv import matrix_of
from ladder.nn.select_embedding import embeddings as embeddings_of
from ladder.nn.select_embedding import kept_heads, rows_objection
from ladder.nn.targets import heads_of
from ladder.quantization import quantize, weights_of
from ladder.types import parse
from ladder.weight import Weight


@dataclass
class Made:
    """What was made of a dense weight that has been read."""

    packed: list[nn.Module] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)  #: parameters in whose place they are
    dense: dict[str, Tensor] = field(default_factory=dict)  #: parameters that stay dense


@dataclass(frozen=True)
class Choice:
    """What of a model on the meta device is to be packed as soon as its weight has been read.

    ``layers`` has linear layers, convolutions and embeddings by each of their names, and their
    tTypes. ``untied`` has names of output embeddings that were tied to an input embedding, and the
    parameter of it, of whose weight they are made. ``report`` has, while the model is loaded, what
    has been packed and what stays dense.
    """

    config: LadderConfig
    layers: dict[str, tuple[Found, str]]
    experts: tuple[FoundExperts, ...]
    untied: dict[str, str]
    report: Conversion

    def refuse_unused(self, known: Collection[str] = ()) -> None:
        """Raise InvalidArgument for a name in ``modules`` or ``types`` that is neither packed here
        nor one of the ``known``, with the reason."""
        for name in self.config.stored.modules.keys() - self.layers.keys() - {*known}:
            # Of experts it is their parameters that are left: ...experts.gate_up_proj.
            keys = (name, f"{name}_proj", f"{name}.{GATE_UP}", f"{name}.weight")
            left = next(self.report.left[key] for key in keys if key in self.report.left)
            raise InvalidArgument(f'modules has "{name}", but {left.reason}')
        self.config.types.check_named((*self.layers, *known), self.report.left)

    def layer_of(self, parameter: str) -> tuple[Found, str] | None:
        """The layer whose weight a parameter is, and the tType to which it is to be quantised."""
        module, _, last = parameter.rpartition(".")
        return self.layers.get(module) if last == "weight" else None

    def takes(self, parameter: str) -> bool:
        """Whether something is to be made of a parameter, or of a weight tied to it."""
        return self.layer_of(parameter) is not None or parameter in self.untied.values()

    def make(self, model: nn.Module, parameter: str, dense: Tensor) -> Made:
        """Quantise what is to be made of a parameter that :meth:`takes`, and put it into
        ``model``; as :meth:`pack`."""
        made = Made()
        heads = [head for head, at in self.untied.items() if at == parameter]
        for name in (parameter.removesuffix(".weight"), *heads):
            key = f"{name}.weight"
            if name not in self.layers:
                made.dense[key] = dense
            elif self.layers[name][0].name not in self.report.packed:  # else the files had both
                layer, packed = self.pack(model, key, dense)
                made.packed.append(packed)
                made.keys |= {f"{each}.weight" for each in layer.names}
        return made

    def bytes_per_element(self, parameter: str) -> float | None:
        """Of what is made of a dense weight; None of one that is not packed."""
        layer = self.layer_of(parameter)
        if layer is None:
            return None
        weight = dense_weight(layer[0].module)
        return parse(layer[1]).bits_per_weight(weight.shape[0], weight[0].numel()) / 8

    def pack(self, model: nn.Module, parameter: str, dense: Tensor) -> tuple[Found, nn.Module]:
        """Quantise the weight of :meth:`layer_of`, and put the packed module into ``model``.

        Raises:
            CheckpointError: it has another shape than the model's.
            InvalidArgument: it cannot be quantised.
        """
        layer, text = self.layers[parameter.rpartition(".")[0]]
        module: Any = layer.module
        if dense.shape != module.weight.shape:
            raise CheckpointError(
                f"{parameter} has shape {list(dense.shape)}, not {list(module.weight.shape)}"
            )
        with weights_of(layer.name):
            weight = quantize(matrix_of(module, dense), text, method=self.config.method)
        packed = _packed(module, weight)
        if not isinstance(packed, Embedding):
            packed._parameters["bias"] = module._parameters["bias"]
        replace(model, layer.names, module, packed.train(module.training))
        self.report.add(layer.name, weight.type, dense.numel())
        self.report.convolutions += isinstance(packed, Conv2d)
        self.report.embeddings += isinstance(packed, Embedding)
        return layer, packed

    def finish(self) -> None:
        """Note the layers of which the files had no weight, and log the report."""
        for name, (layer, _) in self.layers.items():
            if name == layer.name and name not in self.report.packed:
                count = dense_weight(layer.module).numel()
                self.report.left[name] = Left("the files have no weight of it", count)
        self.report.log()


def choose(model: nn.Module, config: LadderConfig) -> Choice:
    """Choose what of ``model`` is to be packed.

    Raises:
        InvalidArgument: a name in the config names no module, or the model has no embedding that
            the config speaks of.
        Unsupported: an output embedding would no more be tied, and something else is.
    """
    stored = config.stored
    experts = [*mixtures(model)]
    heads = heads_of(model) if config.head else set()
    every = [*linears(model), *experts, *stack_names(experts)]
    kinds = (nn.Conv2d, nn.Embedding) if config.embeddings else nn.Conv2d
    every += [n for n, module in model.named_modules() if isinstance(module, kinds)]
    check_entries("modules", stored.modules, every, whole=True)
    layers = survey(
        model,
        config.modules_to_not_convert,
        loaded=False,
        option="modules_to_not_convert",
        chosen=stored.modules,
        untied=heads,
    )
    report = Conversion(left=dict(layers.left))
    found = layers.found
    if config.convolutions:
        convolutions, dense = convolutions_of(
            model,
            config.modules_to_not_convert,
            config.types,
            loaded=False,
            option="modules_to_not_convert",
            chosen=stored.modules,
        )
        for conv in convolutions:
            report.left.pop(f"{conv.name}.weight", None)
        report.left.update(dense)
        found = (*found, *convolutions)
    kept: frozenset[str] = frozenset()
    if config.embeddings:
        rows, dense = embeddings_of(
            model,
            config.modules_to_not_convert,
            config.types,
            loaded=False,
            option="modules_to_not_convert",
        )
        for embedding in rows:
            report.left.pop(f"{embedding.name}.weight", None)
        report.left.update(dense)
        kept, reasons = kept_heads(model, rows, report.left)
        report.left.update(reasons)
        found = (*found, *rows)
    chosen: dict[str, tuple[Found, str]] = {}
    for layer in found:
        text = next((stored.modules[n] for n in layer.names if n in stored.modules), None)
        for name in layer.names:
            chosen[name] = layer, text or str(config.types.of_layer(layer))
        if isinstance(layer.module, nn.Embedding) and (
            why := rows_objection(parse(text or "uint8"))
        ):
            raise InvalidArgument(f"{layer.name}: {why} (modules)")
    untied = _untie(model, {*kept, *heads.intersection(chosen)})
    return Choice(config, chosen, layers.experts, untied, report)


def _untie(model: Any, names: Collection[str]) -> dict[str, str]:
    """Have ``model`` load the output embeddings ``names`` as layers of their own: those that were
    tied, and the parameters to which. Raises Unsupported as :func:`choose`."""
    ties: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    untied = {name: ties[f"{name}.weight"] for name in names if f"{name}.weight" in ties}
    others = [key for key in ties if key.removesuffix(".weight") not in untied]
    if untied and others:
        raise Unsupported(
            f"{others[0]} is tied to {ties[others[0]]}, and while loading nothing but an output "
            f"embedding can be untied: load without head and embeddings, and give ladder.convert "
            "the model"
        )
    untie(model, untied)
    return untied


def _packed(module: Any, weight: Weight) -> Linear | Conv2d | Embedding:
    """``weight``, on which no bias depends, in the place of a layer."""
    if isinstance(module, nn.Embedding):
        return Embedding.in_place_of(module, weight)
    if isinstance(module, nn.Conv2d):
        return Conv2d.in_place_of(module, weight)
    packed = Linear.from_weight(weight)
    packed.dtype, packed._conv1d = module.weight.dtype, is_conv1d(module)
    return packed
