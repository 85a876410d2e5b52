# SPDX-License-Identifier: Apache-2.0
"""Which modules are gated: ``down(function(gate(x), up(x)))``, by what their forward does.

No class is known by name. The forward is traced with its children as they are (torch.fx), and must
call two of them with x and a third with what becomes of both; what lies between is called with a
few numbers to see which function it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from ladder.ops.gating import Gating, recognised


@dataclass(frozen=True)
class Form:
    """Children of a gated module by name.

    Attributes:
        gate, up, down: its three layers.
        gating: what lies between them.
        functions: children that compute it.
    """

    gate: str
    up: str
    down: str
    gating: Gating
    functions: tuple[str, ...] = ()


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


class _Unlike(Exception):
    """A forward that is another; the text says what it does."""


def form_of(module: nn.Module) -> Form | str:
    """The form of ``module``, or why it has none. Runs none of its layers."""
    found: set[Form] = set()
    training = [(each, each.training) for each in module.modules()]
    try:
        for mode in (False, True):  # dropout between the layers is none of a gating
            for each, _ in training:
                each.training = mode
            found.add(_traced(module))
    except _Unlike as error:
        return str(error)
    except Exception as error:
        return f"its forward cannot be traced: {type(error).__name__}: {error}"
    finally:
        for each, was in training:
            each.training = was
    return found.pop() if len(found) == 1 else "its forward is another in training"


def _traced(module: nn.Module) -> Form:
    nodes = list(_Tracer().trace(module).nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        raise _Unlike(f"its forward takes {len(inputs)} tensors")
    (x,) = inputs
    layers = sorted((node for node in x.users if _calls(node, x)), key=nodes.index)
    if len(layers) != 2 or len(x.users) != 2:
        raise _Unlike(f"its forward uses x {len(x.users)} times, {len(layers)} of them in a layer")
    (given,) = nodes[-1].args  # what is returned
    if not (isinstance(given, fx.Node) and given.op == "call_module" and len(given.args) == 1):
        raise _Unlike("its forward does not end with a layer")
    (hidden,) = given.args
    first, second, last = (nodes.index(node) for node in (*layers, given))
    between = nodes[first + 1 : second] + nodes[second + 1 : last]
    functions = _functions(module, between)
    if any("." in str(node.target) for node in (*layers, given)):
        raise _Unlike("its layers are children of its children")
    for gate, up in (layers, layers[::-1]):

        def product(gate_up: Tensor, gate: fx.Node = gate, up: fx.Node = up) -> Tensor:
            return _between(module, between, hidden, gate, up, gate_up)

        if gating := recognised(product):
            return Form(str(gate.target), str(up.target), str(given.target), gating, functions)
    raise _Unlike("what lies between its layers is no gating that ladder knows")


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
            if isinstance(child, nn.modules.dropout._DropoutNd):
                raise _Unlike(f"{name} drops numbers between its layers")
            if "." in name:
                raise _Unlike(f"{name} is a child of its children")
            names.append(name)
    return tuple(dict.fromkeys(names))


def _between(
    module: nn.Module, nodes: list[fx.Node], result: Any, gate: fx.Node, up: fx.Node, x: Tensor
) -> Tensor:
    """``result`` where ``gate`` and ``up`` have the halves of ``x``."""
    first, second = x.chunk(2, -1)
    known: dict[fx.Node, Any] = {gate: first, up: second}

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
