# SPDX-License-Identifier: Apache-2.0
"""What takes the result of a child of a module, by the source of its class.

A proof, or no answer: the forward is read as a syntax tree, and must give the result to a single
call on every path. Closures, ``try`` and whatever else might read a variable unseen are no answer,
nor are loops, unless the result never gets a name. Values of the module, which may change, do not
count.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from ladder.nn.decorated import undecorated


@dataclass(frozen=True)
class Called:
    """A function that a method finds among the globals of its module, and what it is given behind
    its first argument: constants."""

    path: tuple[str, ...]  #: ("F", "relu")
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()

    def function(self, method: Any) -> Any:
        """What the globals of ``method`` have under that name now; None if nothing."""
        place = method.__globals__.get(self.path[0])
        for name in self.path[1:]:
            # Attributes of anything else than modules may be computed.
            place = getattr(place, name, None) if isinstance(place, types.ModuleType) else None
        return place


@dataclass(frozen=True)
class Found:
    """The attribute or the function that reads a result, or why there is none; and the method whose
    source says so."""

    reader: str = ""
    why: str = ""
    method: str = "forward"
    called: Called | None = None


class _Unlike(Exception):
    """The source does something else; the text says what."""


#: Where a name may be read again, at another time, or by something that the source does not show.
_UNCLEAR = (
    ast.AsyncFor, ast.Try, ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef,
    ast.comprehension, ast.Global, ast.Nonlocal, ast.Delete, ast.NamedExpr, ast.Yield,
    ast.YieldFrom, ast.Await,
)  # fmt: skip
#: Where a name may be read again by a statement in front.
_LOOPS = (ast.For, ast.While)


def sole_reader(
    kind: type[nn.Module],
    name: str,
    pair: bool,
    appliers: tuple[str, ...] = (),
    methods: bool = False,
    functions: bool = False,
) -> Found:
    """The child of a module of class ``kind`` that is called with what its child ``name`` returns,
    where nothing else in the class reads that.

    Args:
        pair: ``name`` returns its result and something else, of which only the result counts.
        appliers: functions ``f(child, result, ...)``, as "module.name", that call the child with
            the result and do nothing else with it.
        methods: where the forward leaves ``name`` to one other method, look at that.
        functions: a function may be called with the result, in place of a child.
    """
    hashable: Any = kind  # mypy takes a class for one of its instances
    return _found(hashable, _functions(kind), name, pair, appliers, methods, functions)


def _functions(kind: type[nn.Module]) -> tuple[Any, ...]:
    """What a class computes by: others may be put in their places at any time."""
    classes = (each for each in kind.__mro__ if each not in nn.Module.__mro__)
    return tuple(f for each in classes for f in vars(each).values() if inspect.isfunction(f))


@functools.cache
def _found(
    kind: type[nn.Module],
    computes: tuple[Any, ...],
    name: str,
    pair: bool,
    appliers: tuple[str, ...],
    methods: bool,
    functions: bool,
) -> Found:
    try:
        method = _method_with(kind, name) if methods else "forward"
        reader = _Forward(kind, name, pair, appliers, method).reader(functions)
        called = None if isinstance(reader, str) else reader
        names = (name,) if called else (name, str(reader))
        _only_method_reads(kind, method, names)
    except _Unlike as unlike:
        return Found(why=str(unlike))
    return Found("" if called else str(reader), method=method, called=called)


def _source(of: Any, what: str) -> ast.FunctionDef | ast.ClassDef:
    try:
        parsed = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    except (OSError, TypeError, SyntaxError):
        raise _Unlike(f"{what} has no source that can be read") from None
    if len(parsed) != 1 or not isinstance(parsed[0], (ast.FunctionDef, ast.ClassDef)):
        raise _Unlike(f"{what} is no plain function")
    return parsed[0]


def _says_its_source(function: Any) -> bool:
    """Whether the file that ``function`` says it is of has its code there: one that was made at run
    time may have the file and the line of another."""
    own = getattr(function, "__code__", None)
    if own is None:
        return False
    try:
        left = [compile("".join(inspect.findsource(own)[0]), "", "exec", dont_inherit=True)]
    except (OSError, SyntaxError):
        return False
    while left:
        code = left.pop()
        if all(getattr(code, each) == getattr(own, each) for each in _CODE):
            return True
        left += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return False


#: Of code, what says what it does.
_CODE = ("co_name", "co_firstlineno", "co_code", "co_names", "co_varnames", "co_freevars")


def _methods(kind: type[nn.Module]) -> Iterator[tuple[type, str, set[str | None]]]:
    """Of ``kind`` and the classes that it derives from: the class, the name of each method but
    ``__init__``, and the attributes and texts in it."""
    for each in kind.__mro__:
        if each in nn.Module.__mro__:
            continue
        for method in _source(each, each.__name__).body:
            if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if method.name != "__init__":
                yield each, method.name, {_named(node) for node in ast.walk(method)}


def _method_with(kind: type[nn.Module], name: str) -> str:
    """The only method that uses ``name``, or the forward."""
    found = {method for _, method, used in _methods(kind) if name in used}
    return found.pop() if len(found) == 1 else "forward"


def _only_method_reads(kind: type[nn.Module], of: str, names: tuple[str, ...]) -> None:
    """Raise unless methods other than ``__init__`` and ``of`` leave ``names`` alone."""
    for each, method, used in _methods(kind):
        if method == of and vars(each).get(of) is getattr(kind, of):
            continue
        if both := [name for name in names if name in used]:
            raise _Unlike(f"{each.__name__}.{method} uses {both[0]}, too")


def _named(node: ast.AST) -> str | None:
    """An attribute by its name, or by a text that ``getattr`` might be given."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


class _Forward:
    """The forward of a class, or another method, whose child ``name`` is looked at."""

    def __init__(
        self,
        kind: type[nn.Module],
        name: str,
        pair: bool,
        appliers: tuple[str, ...],
        method: str,
    ) -> None:
        self.called, self.name, self.pair = f"the {method} of {kind.__name__}", name, pair
        function = getattr(kind, method)
        forward = _source(function, self.called)
        if isinstance(forward, ast.FunctionDef) and forward.decorator_list:
            function = undecorated(function, forward.decorator_list)
        if not isinstance(forward, ast.FunctionDef) or function is None:
            raise _Unlike(f"{self.called} is no plain function")
        self.appliers, self.known = appliers, getattr(function, "__globals__", {})
        if not _says_its_source(function):
            raise _Unlike(f"{self.called} is not what its source says")
        self.nodes = [node for each in forward.body for node in ast.walk(each)]
        if unclear := next((n for n in self.nodes if isinstance(n, _UNCLEAR)), None):
            raise _Unlike(f"{self.called} has a {type(unclear).__name__}")
        code = function.__code__
        self.own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}  #: no globals
        self.me = forward.args.args[0].arg if forward.args.args else ""
        self.given = {n.id for n in self.nodes if isinstance(n, ast.Name) and not _loads(n)}
        if self.me in self.given:
            raise _Unlike(f"{self.called} gives {self.me} another value")
        self.over: dict[ast.AST, ast.AST] = {
            child: node for node in (forward, *self.nodes) for child in ast.iter_child_nodes(node)
        }

    def reader(self, functions: bool) -> str | Called:
        """The attribute of ``self``, or, of ``functions``, the function that alone is given what
        ``self.<name>`` returns."""
        taker, result = self._taker(self._call())
        child: ast.AST | None = None
        if taker.args == [result] and not taker.keywords:
            child = taker.func
        elif taker.args[1:2] == [result] and self._applies(taker.func):
            child = taker.args[0]
        if functions and (called := self._function(taker, result)):
            return called
        if not isinstance(child, ast.Attribute) or not self._of_self(child):
            raise _Unlike(f"{self.called} gives the result of {self.name} to another function")
        if len(self._uses(child.attr)) != 1:
            raise _Unlike(f"{self.called} uses {child.attr} elsewhere, too")
        return child.attr

    def _function(self, taker: ast.Call, result: ast.AST) -> Called | None:
        """What ``taker`` calls, if it is a global given ``result`` and constants."""
        path, of = [], taker.func
        while isinstance(of, ast.Attribute):
            path.append(of.attr)
            of = of.value
        if not isinstance(of, ast.Name) or of.id in self.own or taker.args[:1] != [result]:
            return None
        arguments = [node.value for node in taker.args[1:] if isinstance(node, ast.Constant)]
        keywords = [
            (each.arg, each.value.value)
            for each in taker.keywords
            if each.arg and isinstance(each.value, ast.Constant)
        ]
        if len(arguments) + 1 < len(taker.args) or len(keywords) < len(taker.keywords):
            return None
        return Called((of.id, *path[::-1]), tuple(arguments), tuple(keywords))

    def _applies(self, function: ast.AST) -> bool:
        if not isinstance(function, ast.Name) or function.id in self.own:
            return False
        known = self.known.get(function.id)
        of, name = getattr(known, "__module__", ""), getattr(known, "__qualname__", "")
        return f"{of}.{name}" in self.appliers

    def _of_self(self, node: ast.AST) -> bool:
        """Whether it is ``self.<attribute>``."""
        of = node.value if isinstance(node, ast.Attribute) else None
        return isinstance(of, ast.Name) and of.id == self.me

    def _uses(self, name: str) -> list[ast.AST]:
        return [node for node in self.nodes if _named(node) == name]

    def _call(self) -> ast.Call:
        """Of ``self.<name>``: its only use."""
        uses = self._uses(self.name)
        if len(uses) != 1:
            raise _Unlike(f"{self.called} uses {self.name} {len(uses)} times")
        call = self.over[uses[0]]
        if not (self._of_self(uses[0]) and isinstance(call, ast.Call) and call.func is uses[0]):
            raise _Unlike(f"{self.called} does not call {self.name}")
        return call

    def _taker(self, call: ast.Call) -> tuple[ast.Call, ast.AST]:
        """The call that has the result of ``call`` as an argument, the only reader of it, and the
        argument."""
        result: ast.AST = call
        over = self.over[call]
        if self.pair and isinstance(over, ast.Subscript) and _is_zero(over.slice):
            result, over = over, self.over[over]
        elif self.pair and not _unpacks(over):
            raise _Unlike(f"{self.called} does not take the result of {self.name} by itself")
        if isinstance(over, ast.Call) and result in over.args:
            return over, result
        if loop := next((node for node in self.nodes if isinstance(node, _LOOPS)), None):
            raise _Unlike(f"{self.called} has a {type(loop).__name__}")
        if not isinstance(over, ast.Assign) or len(over.targets) != 1:
            raise _Unlike(f"{self.called} does not keep the result of {self.name} under a name")
        target = over.targets[0]
        if self.pair and result is call:
            target = target.elts[0]  # type: ignore[attr-defined]  # a tuple, as _unpacks says
        if not isinstance(target, ast.Name):
            raise _Unlike(f"{self.called} does not keep the result of {self.name} under a name")
        return self._next_reader(target.id, over)

    def _next_reader(self, variable: str, kept: ast.Assign) -> tuple[ast.Call, ast.AST]:
        """The call with ``variable`` in the statement behind ``kept``, if nothing else reads it."""
        block = next(
            block
            for _, block in ast.iter_fields(self.over[kept])
            if isinstance(block, list) and kept in block
        )
        follows = block[block.index(kept) + 1 :][:1]
        reads = [n for n in _walk(follows) if _reads(n, variable)]
        if len(reads) != 1:
            raise _Unlike(
                f"{self.called} reads the result of {self.name} {len(reads)} times in the next "
                "statement"
            )
        reader = self.over[reads[0]]
        if not isinstance(reader, ast.Call) or reads[0] not in reader.args:
            raise _Unlike(f"{self.called} does something to the result of {self.name} first")
        (statement,) = follows
        again = isinstance(statement, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id == variable for each in statement.targets
        )
        later = [n for n in self.nodes if _reads(n, variable) and _is_behind(n, statement)]
        if later and not again:
            raise _Unlike(f"{self.called} reads the result of {self.name} again")
        return reader, reads[0]


def _walk(statements: list[ast.stmt]) -> list[ast.AST]:
    return [node for each in statements for node in ast.walk(each)]


def _loads(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _reads(node: ast.AST, variable: str) -> bool:
    return isinstance(node, ast.Name) and node.id == variable and _loads(node)


def _is_behind(node: Any, statement: ast.stmt) -> bool:
    assert statement.end_lineno is not None and statement.end_col_offset is not None
    return (node.lineno, node.col_offset) >= (
        statement.end_lineno, statement.end_col_offset,
    )  # fmt: skip


def _is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0 and type(node.value) is int


def _unpacks(node: ast.AST) -> bool:
    """``a, b = ...``"""
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    return isinstance(target, ast.Tuple) and len(target.elts) == 2
