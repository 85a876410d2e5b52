# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model give their sums to an activation function, and to nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ladder.nn.activated import Activations, Pair, objection
from ladder.nn.linear import Linear
from ladder.nn.merged_layer import MergedLinear
from ladder.nn.sole_reader import Called, Found, sole_reader
from ladder.nn.subclassed import Subclassed, kind_of
from ladder.ops.gating import FUNCTIONS, Activation, recognised_activation


def take_activations(model: nn.Module) -> tuple[list[str], dict[str, str]]:
    """Let packed layers of ``model`` take the activation function behind them where their sums are
    made (ladder/nn/activated.py). Those that have done so, and cannot any more, are looked at anew.

    Returns:
        The names of those layers; and why other layers with a module of such a function behind them
        are left as they are, by name.
    """
    done: list[str] = []
    left: dict[str, str] = {}
    release_activations(model, stale=True)
    for name, parent in list(model.named_modules()):
        stem = f"{name}." if name else ""
        for child, read in _pairs(parent):
            computes = None
            if read.called is None:
                function = _function_of(parent.get_submodule(read.reader))
            else:
                computes = read.called.function(getattr(kind_of(parent), read.method))
                function = _function_called(read.called, computes)
            if function is None:
                continue
            if isinstance(function, str):
                left[stem + child] = function
                continue
            pair = Pair(child, read.reader, function, read.method, read.called, computes)
            if why := objection(parent, pair):
                left[stem + child] = why
                continue
            held = parent.__dict__.get("_activations") or Activations(parent)
            held.add(pair)
            done.append(stem + child)
    return done, left


def release_activations(model: nn.Module, stale: bool = False) -> None:
    """Undo :func:`take_activations`; ``stale``: where layers cannot take their functions now."""
    for module in model.modules():
        held: Activations | None = module.__dict__.get("_activations")
        if held is not None and not (stale and held.serve()):
            held.leave()


def _pairs(parent: nn.Module) -> list[tuple[str, Found]]:
    """Packed children of ``parent``, wrapped or not, whose function is not taken yet, each with
    what alone reads what it gives: a child in which nothing is learned, or a function."""
    children: dict[str, Any] = parent._modules
    acts = [name for name, child in children.items() if _may_be_function(child)]
    if "_gated" in parent.__dict__:
        return []
    found = []
    for name, child in children.items():
        layer = getattr(child, "base_layer", child)  # of PEFT's adapters
        packed = isinstance(layer, Linear) and not isinstance(layer, (MergedLinear, Subclassed))
        if packed and ((read := _reader(parent, name)).called or read.reader in acts):
            found.append((name, read))
    return found


def _may_be_function(child: nn.Module | None) -> bool:
    if child is None or isinstance(child, nn.modules.dropout._DropoutNd):
        return False
    own = (child.children(), child.parameters(), child.buffers())
    return not any(True for each in own for _ in each)


def _reader(parent: nn.Module, name: str) -> Found:
    """The child that alone is called with the result of the child ``name``."""
    kind: Any = kind_of(parent)
    if kind.forward is not nn.Sequential.forward:
        return sole_reader(kind, name, pair=False, methods=True, functions=True)
    names, children = [*parent._modules], [*parent._modules.values()]
    place = names.index(name)
    if children.count(children[place]) > 1:
        return Found(why="the module behind it is called twice")
    return Found(next(iter(names[place + 1 :]), ""))


def _function_of(act: nn.Module) -> Activation | str | None:
    """The function that ``act`` computes; None if it is the identity, in evaluation at least; or
    why it is none that kernels have."""
    kind, training = type(act).__name__, act.training
    names: set[str | None] = set()
    try:
        with torch.random.fork_rng(devices=[]):
            for act.training in (False, True):
                names.add(recognised_activation(act.forward))
    except Exception as error:
        return f"{kind} cannot be tried: {type(error).__name__}: {error}"
    finally:
        act.training = training
    if "linear" in names:
        return None
    (name, *others) = names
    if others or name is None:
        return f"{kind} is no function that kernels have"
    return Activation(name)


def _function_called(called: Called, function: Any) -> Activation | str | None:
    """The function that ``called`` computes; None if it is none of those of torch that ladder
    knows, for others cannot be tried: they may do something else; or why kernels have it not."""
    if function not in FUNCTIONS:
        return None
    keywords = dict(called.keywords)
    try:
        name = recognised_activation(lambda x: function(x, *called.arguments, **keywords))
    except Exception as error:
        return f"{function.__name__} cannot be tried: {type(error).__name__}: {error}"
    return Activation(name) if name else f"{function.__name__} is no function that kernels have"
