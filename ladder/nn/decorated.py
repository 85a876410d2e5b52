# SPDX-License-Identifier: Apache-2.0
"""Methods under decorators that call them and give back what they give."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator
from typing import Any

#: Renames keyword arguments, which it warns of.
_TRANSPARENT = ("transformers.utils.deprecation.deprecate_kwarg",)


def undecorated(function: Any, decorators: list[ast.expr]) -> Any:
    """What ``function`` calls in the end, whose source has these ``decorators``; None where one of
    them is not known to do no more, or has not made one of the functions on the way."""
    inner = inspect.unwrap(function)
    made = set()
    while function is not inner:
        made.add(function.__code__)
        function = function.__wrapped__
    for decorator in decorators:
        name = decorator.func if isinstance(decorator, ast.Call) else None
        known: Any = inner.__globals__.get(name.id) if isinstance(name, ast.Name) else None
        of = f"{getattr(known, '__module__', '')}.{getattr(known, '__qualname__', '')}"
        if of not in _TRANSPARENT or not made.intersection(_codes(known.__code__)):
            return None
    return inner


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """``code``, and that of the functions in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)
