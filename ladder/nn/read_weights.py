# SPDX-License-Identifier: Apache-2.0
"""Layers whose weight the module that holds them reads, and which it never calls, by the source of
its class: ``F.linear(x, self.proj.weight)``, ``self.dt_proj.weight @ x`` (Mamba).

Only what holds for every call counts. A layer that is also called somewhere in the class (BLOOM's
``dense``, whose weight a rarely used branch reads) is an ordinary layer; so is one that is handed
to a function, or whose weight is asked for its dtype alone. Calls for models that transformers has
marked as quantised (Jamba, FalconMamba) do not count: a model that was converted in memory has no
such mark.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable

from torch import nn

#: What a packed layer's ``weight`` answers, having no elements.
_METADATA = frozenset({
    "device", "dim", "dtype", "element_size", "is_cuda", "is_meta", "ndim", "numel",
    "requires_grad", "shape", "size",
})  # fmt: skip
_CALLS = ("forward", "__call__")
_MARK = "_is_quantized"  #: What transformers sets on the config of a model that it has quantised.

_Functions = tuple[tuple[str, types.FunctionType], ...]


def is_only_read(kind: type[nn.Module], child: str) -> bool:
    """Whether the forward of a module of class ``kind`` reads the weight of its child ``child``,
    and the class never calls that."""
    if kind.__module__.partition(".")[0] == "torch":
        return False
    return _is_only_read(_functions(kind), child)


def reads_rows(kind: type[nn.Module], child: str) -> bool:
    """Whether the forward of a module of class ``kind`` reads elements of the weight of an
    embedding that it calls ``child``, or is given by that name. Where ids are not given (``if
    input_ids is None``) does not count: some models then look up which row an x is."""
    if kind.__module__.partition(".")[0] == "torch":
        return False
    return _reads_rows(_functions(kind), child)


def goes_on(kind: type[nn.Module], base: type[nn.Module]) -> bool:
    """Whether a subclass of ``base`` asks nothing of its weight but what a packed one answers, and
    has no forward of its own, or one that goes on with what ``super().forward`` gives. What has no
    source may do anything."""
    for each in kind.__mro__[: kind.__mro__.index(base)]:
        functions = {name: inspect.unwrap(f) for name, f in vars(each).items() if callable(f)}
        functions = {name: f for name, f in functions.items() if name not in _BEFORE_CALLS}
        if "__call__" in functions or isinstance(vars(each).get("weight"), property):
            return False
        for name, function in functions.items():
            if not _asks_only(function, calls_super=name == "forward"):
                return False
    return True


#: Methods that make a weight, or print it.
_BEFORE_CALLS = frozenset({"__init__", "reset_parameters", "extra_repr"})


def _code_of(function: object) -> types.CodeType:
    code: types.CodeType = getattr(function, "__code__", _no_code.__code__)
    return code


def _no_code() -> None:
    pass


def _asks_only(function: Callable[..., object], *, calls_super: bool) -> bool:
    """Whether ``function`` reads no elements of a ``weight``, and, if it shall, calls
    ``super().forward``."""
    if not calls_super and "weight" not in _names(_code_of(function)):
        return True
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    parents = {inner: outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}
    called = False
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        of, asked = node.value, parents[node]
        if node.attr == "weight":
            if not isinstance(asked, ast.Attribute) or asked.attr not in _METADATA:
                return False
        elif node.attr == "forward" and isinstance(of, ast.Call):
            called |= isinstance(of.func, ast.Name) and of.func.id == "super"
    return called or not calls_super


def _functions(kind: type[nn.Module]) -> _Functions:
    """What a class and its bases define, by name, without decorators."""
    found = []
    for each in kind.__mro__:
        if each in nn.Module.__mro__:
            continue
        for name, value in vars(each).items():
            value = value.fget if isinstance(value, property) else value
            value = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            value = inspect.unwrap(value) if callable(value) else value
            if inspect.isfunction(value):
                found.append((name, value))
    return tuple(found)


@functools.cache
def _is_only_read(functions: _Functions, child: str) -> bool:
    using = [(name, f) for name, f in functions if child in _names(f.__code__)]
    if not any("weight" in _names(f.__code__) for _, f in using):
        return False  # of nearly all layers, without a look at the source
    reached = _reached(functions)
    read = False
    for name, function in using:
        called, elements = _uses(function, child)
        if called:
            return False
        read |= elements and name in reached
    return read


@functools.cache
def _reads_rows(functions: _Functions, child: str) -> bool:
    using = []
    for name, function in functions:
        names = _names(function.__code__)
        if "weight" in names and child in names.union(function.__code__.co_varnames):
            using.append((name, function))
    if not using:
        return False
    reached = _reached(functions)
    return any(name in reached and _reads_elements(function, child) for name, function in using)


def _reads_elements(function: types.FunctionType, child: str) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    parents = {inner: outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr != "weight":
            continue
        of, asked = node.value, parents[node]
        named = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
        if named != child or isinstance(node.ctx, ast.Store):
            continue
        if isinstance(asked, ast.Attribute) and asked.attr in _METADATA:
            continue
        if not _only_without_ids(node, parents):
            return True
    return False


def _only_without_ids(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    while (outer := parents.get(node)) is not None:
        if isinstance(outer, ast.If) and node in outer.body and isinstance(outer.test, ast.Compare):
            left, (kind, *_), (right, *_) = outer.test.left, outer.test.ops, outer.test.comparators
            none = isinstance(right, ast.Constant) and right.value is None
            if none and isinstance(kind, ast.Is) and getattr(left, "id", "").endswith("ids"):
                return True
        node = outer
    return False


@functools.cache
def _names(code: types.CodeType) -> frozenset[str]:
    """Every attribute and global that a function names, in functions within it, too."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(code.co_names).union(*inner)


def _reached(functions: _Functions) -> set[str]:
    """Names of methods that a forward may come to: not those that initialise or tie weights."""
    reached, left = {"forward"}, ["forward"]
    while left:
        wanted = left.pop()
        named = [_names(f.__code__) for name, f in functions if name == wanted]
        new = {name for name, _ in functions if any(name in of for of in named)} - reached
        reached |= new
        left += new
    return reached


def _uses(function: types.FunctionType, child: str) -> tuple[bool, bool]:
    """Whether ``function`` calls ``self.child`` or gives it to something that may, and whether it
    reads elements of its weight. What has no source may do anything."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return True, False
    parents = {inner: outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}
    elements = False
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr != child:
            continue
        if isinstance(node.ctx, ast.Store):
            continue
        part = parents[node]
        if not isinstance(part, ast.Attribute) or part.attr in _CALLS:
            if _only_if_marked(node, parents):
                continue
            return True, False
        if part.attr == "weight":
            asked = parents[part]
            elements |= not isinstance(asked, ast.Attribute) or asked.attr not in _METADATA
    return False, elements


def _only_if_marked(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether ``node`` is reached only where ``hasattr(config, "_is_quantized")`` holds."""
    while (outer := parents.get(node)) is not None:
        if isinstance(outer, ast.If) and node in outer.body and _asks_for_mark(outer.test):
            return True
        node = outer
    return False


def _asks_for_mark(test: ast.AST) -> bool:
    if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Name):
        return False
    names = [each.value for each in test.args if isinstance(each, ast.Constant)]
    return test.func.id == "hasattr" and names == [_MARK]
