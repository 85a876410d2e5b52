# SPDX-License-Identifier: Apache-2.0
"""Modules whose class is, for a time, one that derives from their own."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

from torch import nn


class Subclassed(nn.Module):
    """What the class of such a module derives from, in front of the class that it was.

    It is printed as that class, its ``forward`` has that signature, and copies and pickles are of
    it.
    """

    #: The class that it was.
    _kind: type[nn.Module]
    #: The attributes that go with the class: copies and pickles have none.
    _extra: tuple[str, ...] = ()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = {**self.__getstate__()}
        for name in self._extra:
            state.pop(name, None)
        return _unmade, (self._kind,), state


def kind_of(module: nn.Module) -> type[nn.Module]:
    """The class of ``module``, for a :class:`Subclassed` the one that it was."""
    return module._kind if isinstance(module, Subclassed) else type(module)


def subclass(module: nn.Module, base: type[Subclassed]) -> None:
    """Let the class of ``module`` derive from ``base``, too."""
    kinds: Any = (base, type(module))
    module.__class__ = _subclass(*kinds)


def restore(module: nn.Module) -> None:
    """Let ``module`` be of the class that it was."""
    if isinstance(module, Subclassed):
        for name in module._extra:
            module.__dict__.pop(name, None)
        of: Any = module
        of.__class__ = module._kind


@functools.cache
def _subclass(base: type[Subclassed], kind: type[nn.Module]) -> Any:
    of: Any = base.forward
    # A function of its own, with a signature of its own, which libraries look at.
    forward: Any = types.FunctionType(
        of.__code__, of.__globals__, of.__name__, of.__defaults__, of.__closure__
    )
    forward.__kwdefaults__ = of.__kwdefaults__
    forward.__signature__ = inspect.signature(kind.forward)
    names = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "_kind": kind,
        "forward": forward,
    }
    return type(kind.__name__, (base, kind), names)


def _unmade(kind: type[nn.Module]) -> nn.Module:
    return kind.__new__(kind)
