# SPDX-License-Identifier: Apache-2.0
"""Which modules are gated: ``down(function(gate(x), up(x)))``, by what their forward does.

No class is known by name. The forward is traced with its children as they are (torch.fx), and must
call two of them with x and a third with what becomes of both; what lies between is called with a
few numbers to see which function it is. Gate and up may be halves of what one child gives. A
forward that asks for the dtype of its tensors, as T5's does, is traced with each that x may have.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from ladder.ops.gating import Gating, recognised
from ladder.ops.transforms import ACTIVATION_DTYPES
from ladder.types import dtype_name


@dataclass(frozen=True)
class Form:
    """Children of a gated module by name.

    Attributes:
        gate, up, down: its layers; gate and up are the same where one layer has the rows of both.
        gating: what lies between them.
        functions: children that compute it.
        dropouts: children through which the product goes to ``down``.
        up_first: of one layer of both, whether the rows of up are in front.
        casts: ``down`` is given the product in the dtype of its weight.
        own: the child of ``functions`` whose result, of the gate, is multiplied by up as it is; ""
            where there is more between the layers.
    """

    gate: str
    up: str
    down: str
    gating: Gating
    functions: tuple[str, ...] = ()
    dropouts: tuple[str, ...] = ()
    up_first: bool = False
    casts: bool = False
    own: str = ""

    @property
    def layers(self) -> tuple[str, ...]:
        """Of gate and up, each once."""
        return tuple(dict.fromkeys((self.gate, self.up)))


_Dropout = nn.modules.dropout._DropoutNd


class _Unlike(Exception):
    """A forward that is another; the text says what it does."""


class _AsksDtype(Exception):
    """A forward goes by the dtype of a tensor."""


class _Typed(fx.Proxy):
    """A tensor of the dtype that its tracer says."""

    @property
    def dtype(self) -> torch.dtype:
        tracer: Any = self.tracer
        if tracer.dtype is None:
            raise _AsksDtype
        if any(node.target == "to" for node in tracer.graph.nodes):
            raise _Unlike("its forward asks for a dtype that it has changed")
        dtype: torch.dtype = tracer.dtype
        return dtype


class _Tracer(fx.Tracer):
    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.dtype = dtype

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Typed(node, self)


def form_of(module: nn.Module) -> Form | str:
    """The form of ``module``, or why it has none. Runs none of its layers."""
    found: set[Form] = set()
    training = [(each, each.training) for each in module.modules()]
    try:
        for mode in (False, True):  # dropout between the layers is none of a gating
            for each, _ in training:
                each.training = mode
            found.add(_of_any_dtype(module))
    except _Unlike as error:
        return str(error)
    except Exception as error:
        return f"its forward cannot be traced: {type(error).__name__}: {error}"
    finally:
        for each, was in training:
            each.training = was
    return found.pop() if len(found) == 1 else "its forward is another in training"


def _of_any_dtype(module: nn.Module) -> Form:
    """The form of ``module`` for x of every dtype that packed layers take."""
    try:
        return _traced(module, None)
    except _AsksDtype:
        forms = {dtype: _traced(module, dtype) for dtype in ACTIVATION_DTYPES}
    form = replace(next(iter(forms.values())), casts=True)
    of_down = _dtype_of(module, form.down)
    for dtype, each in forms.items():
        if each != replace(form, casts=dtype != of_down):
            raise _Unlike(f"its forward is another for {dtype_name(dtype)}")
    return form


def _dtype_of(module: nn.Module, name: str) -> torch.dtype | None:
    return getattr(getattr(module.get_submodule(name), "weight", None), "dtype", None)


def _traced(module: nn.Module, dtype: torch.dtype | None) -> Form:
    """The form of ``module`` for x of that dtype; None: of a forward that does not ask."""
    nodes = list(_Tracer(dtype).trace(module).nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        raise _Unlike(f"its forward takes {len(inputs)} tensors")
    (x,) = inputs
    layers = sorted((node for node in x.users if _calls(node, x)), key=nodes.index)
    if len(layers) not in (1, 2) or len(x.users) != len(layers):
        raise _Unlike(f"its forward uses x {len(x.users)} times, {len(layers)} of them in a layer")
    (given,) = nodes[-1].args  # what is returned
    if not (isinstance(given, fx.Node) and given.op == "call_module" and len(given.args) == 1):
        raise _Unlike("its forward does not end with a layer")
    cast = _is_cast(given.args[0], _dtype_of(module, str(given.target)))
    before = given.args[0].args[0] if cast else given.args[0]  # type: ignore[union-attr]
    hidden, dropouts = _before_dropouts(module, before)
    places = [nodes.index(node) for node in (*layers, given)]
    between = [
        node
        for node in nodes[places[0] + 1 : places[-1]]
        if node not in layers and node not in dropouts and not (cast and node is given.args[0])
    ]
    functions = _functions(module, between)
    if any("." in str(node.target) for node in (*layers, *dropouts, given)):
        raise _Unlike("its layers are children of its children")
    columns = 32 if len(layers) == 2 else _half(module.get_submodule(str(layers[0].target)))
    for swapped in (False, True):

        def product(gate_up: Tensor, swapped: bool = swapped) -> Tensor:
            halves = gate_up.chunk(2, -1)
            results = halves[::-1] if swapped else halves
            if len(layers) == 1:
                results = (torch.cat(results, -1),)
            return _between(module, between, hidden, dict(zip(layers, results, strict=True)))

        if gating := recognised(product, columns=columns):
            first, second, down = (str(node.target) for node in (layers[0], layers[-1], given))
            if swapped:
                first, second = second, first
            return Form(
                first,
                second,
                down,
                gating,
                functions,
                tuple(str(node.target) for node in dropouts),
                up_first=swapped and len(layers) == 1,
                casts=cast,
                own=_own(between, layers[::-1] if swapped else layers),
            )
    raise _Unlike("what lies between its layers is no gating that ladder knows")


def _is_cast(node: Any, dtype: torch.dtype | None) -> bool:
    """Whether a node is ``tensor.to(dtype)``, read by one other."""
    return (
        isinstance(node, fx.Node)
        and (node.op, node.target) == ("call_method", "to")
        and node.args[1:] == (dtype,)
        and not node.kwargs
        and len(node.users) == 1
    )


def _before_dropouts(module: nn.Module, hidden: Any) -> tuple[Any, list[fx.Node]]:
    """What goes through modules of dropout alone to become ``hidden``, and their calls."""
    dropouts: list[fx.Node] = []
    while (
        isinstance(hidden, fx.Node)
        and hidden.op == "call_module"
        and isinstance(module.get_submodule(str(hidden.target)), _Dropout)
        and len(hidden.args) == 1
        and not hidden.kwargs
        and len(hidden.users) == 1
    ):
        dropouts.insert(0, hidden)
        hidden = hidden.args[0]
    return hidden, dropouts


def _half(layer: Any) -> int:
    """Half of the rows of a layer of gate and up."""
    rows: int = getattr(layer, "out_features", 0) or getattr(layer, "nf", 0)  # nf: Conv1D's
    if not rows or rows % 2:
        raise _Unlike(f"its first layer has {rows} rows, not those of a gate and up")
    return rows // 2


def _calls(node: fx.Node, x: fx.Node) -> bool:
    """Whether a child of its own is called with x, and nothing else."""
    return node.op == "call_module" and node.args == (x,) and not node.kwargs


def _functions(module: nn.Module, nodes: list[fx.Node]) -> tuple[str, ...]:
    """The children among ``nodes``, in which nothing is learned."""
    names = []
    for node in nodes:
        if node.op not in ("call_module", "call_function", "call_method"):
            raise _Unlike(f"its forward reads {node.target} between its layers")
        if node.op == "call_module":
            name = str(node.target)
            child: Any = module.get_submodule(name)
            if any(True for _ in child.parameters()) or any(True for _ in child.buffers()):
                raise _Unlike(f"{name} lies between its layers")
            if isinstance(child, _Dropout):
                raise _Unlike(f"{name} drops numbers between its layers")
            if "." in name:
                raise _Unlike(f"{name} is a child of its children")
            names.append(name)
    return tuple(dict.fromkeys(names))


def _own(nodes: list[fx.Node], layers: list[fx.Node]) -> str:
    """The child ``f`` of ``f(gate) * up``, where ``nodes`` are nothing else."""
    if len(layers) != 2 or len(nodes) != 2:
        return ""
    function, product = nodes
    called = function.op == "call_module" and function.args == (layers[0],) and not function.kwargs
    multiplied = product.target in (operator.mul, torch.mul) and not product.kwargs
    both = product.args in ((function, layers[1]), (layers[1], function))
    return str(function.target) if called and multiplied and both else ""


def _between(
    module: nn.Module, nodes: list[fx.Node], result: Any, known: dict[fx.Node, Any]
) -> Tensor:
    """``result`` where layers have given what is ``known``."""

    def at(node: fx.Node) -> Any:
        if node not in known:
            raise _Unlike("its forward uses x between its layers")
        return known[node]

    with torch.random.fork_rng(devices=[]):
        for node in nodes:
            args, kwargs = fx.map_arg(node.args, at), fx.map_arg(node.kwargs, at)
            if node.op == "call_method":
                known[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            elif node.op == "call_module":
                known[node] = module.get_submodule(str(node.target))(*args, **kwargs)
            else:
                known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    found: Tensor = at(result)
    return found
