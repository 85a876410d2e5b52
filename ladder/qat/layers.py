# SPDX-License-Identifier: Apache-2.0
"""Layers whose products see the weight as quantising would leave it. Such a layer is the module
that it was, of a class that is made of its own: its parameters, their names, its hooks and its
place in the model stay."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.dense_experts import DOWN, GATE_UP, STACKS, Layout
from ladder.nn.learned_steps import straight_through
from ladder.nn.select import PREPARED, is_conv1d, is_linear
from ladder.nn.select_conv import filter_rows
from ladder.ops import rounded
from ladder.ops.activations import device_objection
from ladder.qat.rounding import rounded_weight
from ladder.qat.scales import Scales, parameters_of
from ladder.types import TType
from ladder.weight import parts_of_rows


@dataclass(frozen=True)
class Settings:
    """What a prepared layer becomes, which it has as an attribute named ``PREPARED``.

    Attributes:
        name: of the layer in its model, for errors.
        types: of its weight; of experts, of gate and up together and of down.
        method: as :func:`ladder.quantize`.
        activation_type: as :attr:`ladder.Linear.activation_type`.
        layout: of experts.
        untied: of an embedding, output embeddings that are tied to it until it is packed.
        scales: of each type, where its scales are parameters; None where they follow the weight.
    """

    name: str
    types: tuple[TType, ...]
    method: str
    activation_type: str | None = None
    layout: Layout | None = None
    untied: frozenset[str] = frozenset()
    scales: tuple[Scales | None, ...] = (None, None)

    def rounded(
        self, weight: Tensor, parameters: Sequence[Tensor] = (), which: int = 0, part: str = ""
    ) -> Tensor:
        """[N, K] as it is when it is packed. ``parameters``: of its scales, where there are any.
        ``part``: what of the layer it is, for errors."""
        scales = self.scales[which]
        try:
            if scales is not None:
                return scales.rounded(weight, *parameters)
            return rounded_weight(weight, self.types[which], self.method)
        except InvalidArgument as error:
            raise InvalidArgument(f"{self.name}{part}: {error}") from None


class _Prepared:
    """Base of all classes of prepared layers. Pickles and copies of an instance make its class
    anew."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _empty, (dense_class(cast(nn.Module, self)),), self.__dict__

    def _settings(self) -> Settings:
        found: Settings = self.__dict__[PREPARED]
        return found

    def extra_repr(self) -> str:
        settings = self._settings()
        ttypes = " and ".join(dict.fromkeys(map(str, settings.types)))
        own: str = super().extra_repr()  # type: ignore[misc]
        learned = " with learned scales" if any(settings.scales) else ""
        return f"{own}, trained for {ttypes}{learned}".removeprefix(", ")


class _Linear(_Prepared):
    def forward(self, input: Tensor) -> Tensor:
        module, settings = cast(nn.Linear, self), self._settings()
        transposed = is_conv1d(module)
        weight = module.weight.T if transposed else module.weight
        weight = settings.rounded(weight, parameters_of(module, "weight"))
        if settings.activation_type is not None:
            if why := device_objection(settings.activation_type, input.device.type):
                raise Unsupported(f"{settings.name}: {why}")
            seen = rounded(input, str(settings.types[0]), settings.activation_type)
            input = seen.to(input.dtype)
        return functional.linear(input, weight, module.bias)


class _Conv2d(_Prepared):
    def forward(self, input: Tensor) -> Tensor:
        module = cast(nn.Conv2d, self)
        weight = module.weight
        f, c, y, x = weight.shape
        values = self._settings().rounded(filter_rows(weight), parameters_of(module, "weight"))
        values = values.view(f, y, x, c).permute(0, 3, 1, 2)
        return module._conv_forward(input, values, module.bias)


class _Rows(nn.Embedding):
    """Base of embeddings, behind their own class, whose forward may go on with what this gives."""

    def forward(self, input: Tensor) -> Tensor:
        settings: Settings = self.__dict__[PREPARED]
        rows = super().forward(input)
        ttype, table = settings.types[0], parameters_of(self, "weight")
        if not rows.numel():
            return rows
        # What is packed of a row is its own.
        if ttype.scale2 is None or "scale2" in parts_of_rows(ttype):
            own = [self._rows_of(each, input).reshape(-1, each.shape[1]) for each in table]
            try:
                return settings.rounded(rows.reshape(-1, self.embedding_dim), own).view_as(rows)
            except InvalidArgument:
                settings.rounded(self.weight, table)  # whose error has the row of the table
                raise
        return self._rows_of(settings.rounded(self.weight), input)

    def _rows_of(self, table: Tensor, input: Tensor) -> Tensor:
        return functional.embedding(
            input, table, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
        )


def _stack(name: str, which: int) -> property:
    """Parameter ``name`` of experts, each expert rounded, as their own forward reads it."""

    def read(module: Any) -> Tensor:
        dense: Tensor = module._parameters[name]
        settings: Settings = module.__dict__[PREPARED]
        layout = cast(Layout, settings.layout)
        learned = settings.scales[which] is not None
        every = (dense if learned else dense.detach(), *parameters_of(module, name))
        values = [
            settings.rounded(
                layout.rows(name, each), parameters, which, f".{STACKS[name]}: expert {number}"
            )
            for number, (each, *parameters) in enumerate(zip(*every, strict=True))
        ]
        stack = layout.as_dense(name, torch.stack(values))
        return stack if learned else straight_through(dense, stack)

    return property(read)


class _Experts(_Prepared):
    locals()[GATE_UP], locals()[DOWN] = _stack(GATE_UP, 0), _stack(DOWN, 1)


@functools.cache
def _class_of(kind: Any, mixin: Any) -> Any:
    fields = {
        "__module__": __name__,
        "__doc__": f"{kind.__name__}, trained for a tType.",
        "_dense_class": kind,
    }
    bases: tuple[Any, ...] = (mixin, kind)
    if issubclass(kind, nn.Embedding):
        bases = (mixin, _Rows) if kind is nn.Embedding else (mixin, kind, _Rows)
    return type(f"Trained{kind.__name__}", bases, fields)


def prepared_class(module: nn.Module) -> type[nn.Module]:
    """The class of ``module`` once it is prepared."""
    kind: Any = type(module)
    mixin: Any = _Linear if is_linear(module) else _Experts
    if isinstance(module, nn.Conv2d):
        mixin = _Conv2d
    elif isinstance(module, nn.Embedding):
        mixin = _Prepared
    made: type[nn.Module] = _class_of(kind, mixin)
    return made


def dense_class(module: nn.Module) -> type[nn.Module]:
    """The class that a prepared module had before."""
    return cast("type[nn.Module]", cast(Any, module)._dense_class)


def _empty(kind: type[nn.Module]) -> nn.Module:
    """A prepared module of a dense class ``kind``, for a copy to fill."""
    return object.__new__(prepared_class(object.__new__(kind)))


def is_prepared(module: nn.Module) -> bool:
    """Whether ``module`` is a prepared layer."""
    return isinstance(module, _Prepared)


def set_class(module: nn.Module, kind: type[nn.Module]) -> None:
    """Make ``module`` one of class ``kind``; accelerate's hook, which holds a forward, anew."""
    hook: Any = getattr(module, "_hf_hook", None)
    if hook is not None:
        from accelerate.hooks import remove_hook_from_module

        remove_hook_from_module(module)
        module.__dict__.pop("forward", None)
    module.__class__ = kind
    if hook is not None:
        from accelerate.hooks import add_hook_to_module

        add_hook_to_module(module, hook)
