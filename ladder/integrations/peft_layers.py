# SPDX-License-Identifier: Apache-2.0
"""PEFT: layers of its own, with a packed layer as their ``base_layer``.

Each kind of adapters chooses its layer by ``isinstance(target, nn.Linear)``, a few of them also by
``peft.utils.resolve_quantization_backend``, whose list of packages is fixed. So, while PEFT makes
adapters, a :class:`StandIn` is where a packed layer was; afterwards the packed layer is back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from ladder.errors import Unsupported
from ladder.integrations.peft_kinds import APART, READS_ONCE, SUPPORTED, check_kind
from ladder.integrations.peft_merge import Merges
from ladder.integrations.peft_requests import check_requests
from ladder.nn.linear import Linear
from ladder.nn.merged_layer import MergedLinear
from ladder.nn.parallel import ParallelLinear

#: Whether layers of this release of PEFT can be told that their base is quantised.
_HAS_BACKENDS = hasattr(BaseTunerLayer, "quantization_backend")


def check_base(base: nn.Module) -> None:
    """Raises Unsupported for a packed layer whose result is not the product that adapters want."""
    if isinstance(base, ParallelLinear):
        raise Unsupported("adapters need whole layers: load without tensor parallelism")
    if isinstance(base, Linear) and base.activation is not None:
        raise Unsupported(
            f"adapters add to the sums of a layer, and this one ends with its activation, "
            f"{base.activation}: set base_layer.activation to None"
        )
    if isinstance(base, MergedLinear):
        base.ungate()  # the adapter adds to its sums


def values_of(base: Linear) -> Tensor:
    """The dense weight that multiplies x, [N, K] float32."""
    values = base.packed_weight.dequantize()
    return values if base.pre_scale is None else values * base.pre_scale


class StandIn(nn.Linear):
    """An ``nn.Linear`` to who asks for its type, shape, dtype, device and bias.

    Args:
        readable: ``weight`` gives values, made in each access; else a tensor without elements.
    """

    def __init__(self, packed: Linear, readable: bool) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = packed.in_features, packed.out_features
        self.training = packed.training
        # The packed layer is to be no child of this one, and PEFT may just have torch make new
        # parameters on the meta device.
        self.__dict__.update(packed=packed, readable=readable)
        self._parameters["bias"] = packed.bias

    @property
    def weight(self) -> Any:  # type: ignore[override]  # nobody sets it
        packed: Linear = self.__dict__["packed"]
        return values_of(packed).to(packed.dtype) if self.__dict__["readable"] else packed.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.__dict__["packed"](x)
        return y


class PackedAdapter(Merges):
    """Of PEFT's layers on packed weights."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _unmade, (_theirs(type(self)),), self.__dict__


class RotatesInput:
    """HRA: PEFT rotates the columns of W in each call; rotating x the other way gives the same."""

    def forward(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.disable_adapters and self.merged:
            self.unmerge()
        if self.disable_adapters or self.merged:
            return self.base_layer(x, *args, **kwargs)
        turned = x
        for adapter in reversed(self.active_adapters):  # PEFT's weight is W D1 D2
            if adapter in self.hra_u:
                turn = self.get_delta_weight(adapter)
                turned = turned.to(turn.dtype) @ turn.t()
        result: Tensor = self.base_layer(turned.to(x.dtype), *args, **kwargs)
        return result.to(x.dtype)


@cache
def _packed_class(theirs: type) -> type:
    own = (RotatesInput,) if theirs.__name__ == "HRALinear" else ()
    return type(theirs.__name__, (*own, PackedAdapter, theirs), {"__module__": __name__})


def _theirs(ours: type) -> type:
    return ours.__bases__[-1]


def _unmade(theirs: type) -> Any:
    return object.__new__(_packed_class(theirs))


@contextmanager
def standing_in(kind: str, model: nn.Module) -> Iterator[None]:
    """Within it each packed layer of ``model`` looks like an ``nn.Linear``; the layers of adapters
    that are on packed layers afterwards refuse to merge."""
    if kind not in SUPPORTED:
        yield
        return
    stand_ins: dict[Linear, StandIn] = {}  # a layer may have several places
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, Linear):
                if child not in stand_ins:
                    stand_ins[child] = StandIn(child, kind in READS_ONCE)
                parent._modules[name] = stand_ins[child]
    try:
        yield
    finally:
        found = [m for m in model.modules() if isinstance(m, BaseTunerLayer)]
        made = [layer for layer in found if isinstance(layer.get_base_layer(), StandIn)]
        for parent in list(model.modules()):
            for name, child in parent._modules.items():
                if isinstance(child, StandIn):
                    parent._modules[name] = child.__dict__["packed"]
        for layer in made:
            adopt(layer)


def adopt(layer: Any) -> None:
    """Let a layer of PEFT's know that its base layer is packed."""
    if hasattr(layer, "merge") and type(layer).__module__.startswith("peft."):
        layer.__class__ = _packed_class(type(layer))
    if hasattr(layer, "quantization_backend"):
        from peft.utils.quantization_utils import ForwardOnlyQuantizationBackend

        layer.quantization_backend = ForwardOnlyQuantizationBackend("ladder")


def tuner_wrapper(others: Callable[..., Any]) -> Callable[..., Any]:
    """Of ``BaseTuner.__init__``, in which some kinds measure the layers before they inject."""

    def init(
        self: Any, model: nn.Module, peft_config: Any, adapter_name: str, *args: Any, **kwargs: Any
    ) -> None:
        config = peft_config[adapter_name] if isinstance(peft_config, dict) else peft_config
        check_requests(config, model)  # which sees no packed layers once stand-ins are there
        with standing_in(_kind(config), model):
            others(self, model, peft_config, adapter_name, *args, **kwargs)

    init._ladder = True
    return init


def inject_wrapper(others: Callable[..., Any]) -> Callable[..., Any]:
    """Of ``BaseTuner.inject_adapter``: raises Unsupported, before a layer is replaced, for what
    cannot be done with packed weights."""

    def inject(self: Any, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any) -> Any:
        config = self.peft_config[adapter_name]
        check_requests(config, model)
        self._create_and_replace = _creator(_kind(config), self._create_and_replace)
        try:
            with standing_in(_kind(config), model):
                return others(self, model, adapter_name, *args, **kwargs)
        finally:
            del self._create_and_replace

    inject._ladder = True
    return inject


def _kind(config: Any) -> str:
    return str(getattr(config.peft_type, "value", config.peft_type))


def _creator(kind: str, others: Callable[..., Any]) -> Callable[..., Any]:
    """Of a tuner's ``_create_and_replace``."""

    def create(
        config: Any, adapter: str, target: nn.Module, name: str, parent: nn.Module, **kwargs: Any
    ) -> None:
        base = target.get_base_layer() if isinstance(target, BaseTunerLayer) else target
        if isinstance(base, StandIn):
            base = base.__dict__["packed"]
        packed = isinstance(base, Linear) and kind not in APART
        if packed:
            check_kind(kind, config, _HAS_BACKENDS)
            check_base(base)
        others(config, adapter, target, name, parent, **kwargs)

    return create
