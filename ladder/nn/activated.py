# SPDX-License-Identifier: Apache-2.0
"""Layers whose activation function, a module or a function behind them, is taken where their sums
are made.

``act(fc(x))`` stays as it is in the model. While the module that holds both runs its forward,
``fc`` gives the function of its sums in an :class:`Activated`, which ``act`` lets pass. That
nothing but ``act`` gets it follows from the source of the forward (ladder/nn/sole_reader.py); it is
no tensor, so that whatever else got it would raise, not compute something else. At any other time,
and where somebody watches or has replaced one of the three, ``fc`` gives its sums and ``act`` its
function.

A function changes the kernels of a weight and not its image
(:func:`ladder.cuda.image.open_weight`): sums and function are there at once, and nothing is packed
anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.compiler import is_compiling as _is_compiling

from ladder.cuda import image as images
from ladder.cuda.epilogue import linear_then
from ladder.errors import Unsupported
from ladder.nn.arguments import named_input
from ladder.nn.linear import Linear
from ladder.nn.quick_call import watched
from ladder.nn.slot import Slot
from ladder.nn.sole_reader import Called
from ladder.nn.subclassed import Subclassed, kind_of, restore, subclass
from ladder.ops.gating import Activation


class Activated:
    """``y``, on the way from a layer to the module of its activation function, which is taken."""

    __slots__ = ("y",)

    def __init__(self, y: Tensor) -> None:
        self.y = y


class ActivatedFor:
    """``y``, on the way from a layer to a function of torch, which is taken and gives it as it is.
    No tensor either: other functions raise."""

    __slots__ = ("function", "y")

    def __init__(self, y: Tensor, function: Callable[..., Tensor]) -> None:
        self.y, self.function = y, function

    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Tensor:
        sent = args[0] if args and isinstance(args[0], cls) else None
        if sent is None or function != sent.function:
            raise Unsupported(
                f"{getattr(function, '__name__', function)} gets the sums of a layer whose "
                "activation function ladder.optimize has taken: call ladder.unoptimize(model) "
                "before its forward is changed"
            )
        return sent.y


@dataclass(frozen=True)
class Pair:
    """The child ``layer`` of a module, and the child ``act`` or the function ``computes``, which
    alone reads its result, by the source of ``method``."""

    layer: str
    act: str
    function: Activation
    method: str = "forward"
    called: Called | None = None
    computes: Any = None  #: what ``called`` was when there was a proof


class Activations:
    """The pairs of one module, which becomes one that :class:`RunsActivated`."""

    def __init__(self, parent: nn.Module) -> None:
        self.parent, self.slot = parent, Slot()
        self.forward = type(parent).forward  #: of whose source there is a proof
        #: Layers, not held: one that is replaced is let go. With their functions.
        self._pairs: list[tuple[weakref.ref[ActivatedLinear], nn.Module | None]] = []
        parent.__dict__["_activations"] = self
        subclass(parent, RunsActivated)

    def add(self, pair: Pair) -> None:
        """Take the function of a pair without an :func:`objection`."""
        taken = Taken(self, pair)
        layer: Any = self.parent._modules[pair.layer]
        layer.__dict__["_taken"] = taken
        subclass(layer, ActivatedLinear)
        self._pairs.append((weakref.ref(layer), taken.act))
        if taken.act is None:
            return
        if not isinstance(taken.act, Passes):
            subclass(taken.act, Passes)
        state = taken.act.__dict__
        state["_takers"] = state.get("_takers", 0) + 1

    def serve(self) -> bool:
        """Whether all layers take their function when the parent runs next."""
        layers = [ref() for ref, _ in self._pairs]
        return all(layer is not None and layer._serves() for layer in layers)

    def leave(self) -> None:
        """Let all be of the classes that they were."""
        for ref, act in self._pairs:
            if (layer := ref()) is not None:
                restore(layer)
            if act is None:
                continue
            act.__dict__["_takers"] -= 1
            if not act.__dict__["_takers"]:  # other modules may have it, too
                restore(act)
        restore(self.parent)


class Taken:
    """A pair whose function its layer takes while the parent runs."""

    def __init__(self, of: Activations, pair: Pair) -> None:
        self.of, self.pair = of, pair
        self.method = getattr(kind_of(of.parent), pair.method)
        self.act: Any = of.parent._modules[pair.act] if pair.called is None else None

    def serves(self, layer: Linear) -> bool:
        """Whether all is as it was when there was a proof, and nobody watches."""
        parent, pair = self.of.parent, self.pair
        children = parent._modules
        return (
            not watched(layer)
            and children.get(pair.layer) is layer
            and self._is_behind(children)
            and kind_of(parent).forward is self.of.forward
            and getattr(kind_of(parent), pair.method) is self.method
            and (pair.method == "forward" or pair.method not in parent.__dict__)
            and layer._function is None
        )

    def _is_behind(self, children: Any) -> bool:
        pair, act = self.pair, self.act
        if pair.called is not None:
            return pair.called.function(self.method) is pair.computes
        return not watched(act) and children.get(pair.act) is act

    def of_sums(self, y: Tensor) -> Tensor:
        """What the model itself computes of them."""
        pair = self.pair
        if pair.called is None:
            return self.act.forward(y)
        return pair.computes(y, *pair.called.arguments, **dict(pair.called.keywords))

    def sent(self, y: Tensor) -> Any:
        """``y`` as what is behind the layer takes it."""
        if self.pair.called is None:
            return Activated(y)
        return ActivatedFor(y, self.pair.computes)


class RunsActivated(Subclassed):
    """What the class of a module derives from that holds pairs."""

    _extra = ("_activations",)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        held: Activations | None = self.__dict__.get("_activations")
        if held is None:
            return super().forward(*args, **kwargs)
        held.slot.open()
        try:
            return super().forward(*args, **kwargs)
        finally:
            held.slot.close()


class Passes(Subclassed):
    """What the class of an activation function derives from that a layer may have taken."""

    _extra = ("_takers",)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is Activated:
            return args[0].y
        return super().forward(*args, **kwargs)  # whatever the model calls its argument


class ActivatedLinear(Subclassed, Linear):
    """What the class of a layer derives from whose function is taken with its sums."""

    _extra = ("_taken", "_numbers")

    def forward(
        self, x: Tensor | None = None, residual: Tensor | None = None, *, input: Any = None
    ) -> Any:
        x = named_input(x, input)
        taken: Taken | None = self.__dict__.get("_taken")
        if residual is not None or taken is None:
            return Linear.forward(self, x, residual)
        if not taken.of.slot.is_open() or not self._serves():
            return Linear.forward(self, x)
        if _is_compiling():
            self._prepare_for_trace()
        return taken.sent(
            self._multiplied(x, self.bias, self._function_by_image, self._function_by_codes)
        )

    def _serves(self) -> bool:
        taken: Taken | None = self.__dict__.get("_taken")
        return taken is not None and taken.serves(self)

    # As Linear._prepare_for_trace: asked when a graph is traced, not by it.
    _serves._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _function_by_image(self, x: Tensor, bias: Tensor | None) -> Tensor:
        image: Any = self.image
        number, n, scale = self._number_of_calls(), self.out_features, self._scale_of_x()
        return linear_then(x, image, bias, number, n, self.__dict__["_taken"].pair.function, scale)

    def _function_by_codes(self, x: Tensor, bias: Tensor | None) -> Tensor:
        taken: Taken = self.__dict__["_taken"]
        return taken.of_sums(self._by_codes(x, bias))

    def _number_of_calls(self, plain: int = 0) -> int:
        taken: Taken | None = self.__dict__.get("_taken")
        plain = plain or self._weight_number
        if taken is None or not plain or self._function is not None:
            return plain
        numbers: dict[int, int] = self.__dict__.setdefault("_numbers", {})
        if plain not in numbers:
            gather = "gather" in images.parts(plain).parts
            numbers[plain] = self._number(gather, taken.pair.function)
        return numbers[plain]

    _number_of_calls._dynamo_marked_constant = True  # type: ignore[attr-defined]


def objection(parent: nn.Module, pair: Pair) -> str:
    """Why ``parent`` cannot have that pair; "" when it can."""
    for method in ("forward", pair.method):
        if method in parent.__dict__:
            return f"something has replaced its {method}"
    layer = parent.get_submodule(pair.layer)
    if type(layer) is not Linear:
        return f"{pair.layer} is of {type(layer).__name__}, not ladder.Linear"
    if layer.activation is not None:
        return f"{pair.layer} has an activation, {layer.activation}, of its own"
    for name in (pair.layer, pair.act) if pair.called is None else (pair.layer,):
        if watched(parent.get_submodule(name)):
            return f"a hook watches {name}, or something has replaced its forward"
    return ""
