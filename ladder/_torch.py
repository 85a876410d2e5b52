# SPDX-License-Identifier: Apache-2.0
"""What ladder asks torch that torch has no public name for. Each question has a safe answer for a
torch that no longer has the private name: slower, never wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

_log = logging.getLogger("ladder")


def _unknown() -> object:
    """Nothing can be ruled out: as if a transform were active."""
    return _unknown


func_level: Callable[[], object | None]
try:
    from torch._C._functorch import peek_interpreter_stack as func_level
except ImportError:
    func_level = _unknown
    _log.warning("this torch has no peek_interpreter_stack: layers take torch's own ops, slowly")

#: Holds ``_current_level``: at least 0 where dual tensors are, -1 elsewhere.
forward_levels: Any = forward_ad
if not hasattr(forward_ad, "_current_level"):

    class _Unknown:
        _current_level = 0

    forward_levels = _Unknown
    _log.warning("this torch has no forward_ad._current_level: layers take torch's own ops, slowly")


def transformed() -> bool:
    """True within ``torch.func.grad``, ``jvp``, ``vmap`` and the like, and where dual tensors are.
    Tests ask it of every torch."""
    return func_level() is not None or forward_levels._current_level >= 0


# As in ladder/nn/linear_products.py: asked when a graph is traced, not by it. torch.compile takes
# what func_level() gives for an object, never None; it keeps the levels as it traces, and guards
# them.
transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def mapped(tensor: torch.Tensor) -> bool:
    """Whether ``torch.func.vmap`` maps over ``tensor``, however deep. False where torch cannot
    say."""
    of = getattr(torch._C, "_functorch", None)
    names = ("is_functorch_wrapped_tensor", "is_batchedtensor", "get_unwrapped")
    wrapped, is_mapped, inner = (getattr(of, name, None) for name in names)
    if wrapped is None or is_mapped is None or inner is None:
        return False
    while wrapped(tensor):
        if is_mapped(tensor):
            return True
        tensor = inner(tensor)
    return False


def direct_call(overload: Any) -> Callable[..., Any]:
    """What calling an overload of an op calls: a fifth of the time of Python on the way to the
    kernel. Nothing that torch.compile traces."""
    return getattr(overload, "_op", overload)


def direct_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """What ``function.apply`` calls when it has asked for ``torch.func``, which callers have ruled
    out."""
    return getattr(super(torch.autograd.Function, function), "apply", function.apply)


#: Whether autocast is on for any device; True where torch cannot say at once, so that callers ask
#: for theirs.
any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)

#: Torch's name for a linear layer whose weight the module above reads.
read_by_parent: type[nn.Module] | None = getattr(
    nn.modules.linear, "NonDynamicallyQuantizableLinear", None
)


def recording() -> bool:
    """Whether ``torch.export`` or ``torch.jit.trace`` makes a program of its own of what runs."""
    tracing: Any = torch.jit
    return bool(torch.compiler.is_exporting() or tracing.is_tracing())


recording._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as transformed


def keep_value_errors(namespace: Any, name: str, refused: Callable[[], str]) -> None:
    """Have ops that refuse an argument raise ValueError, whoever calls them from Python.

    Up to 2.14 torch does so of a std::invalid_argument. From 2.15 on it raises RuntimeError of
    every exception that is not one of its own classes, which a stable ABI cannot throw.

    Args:
        namespace: ``torch.ops.<name>``.
        refused: what an op last refused on this thread, "" if nothing, which it forgets.
    """
    listed = getattr(torch._C, "_dispatch_get_all_op_names", list)
    names = {
        full.partition("::")[2].partition(".")[0]
        for full in listed()
        if full.startswith(f"{name}::")
    }
    for each in sorted(names):
        packet = getattr(namespace, each)
        for op in (packet, *(getattr(packet, overload) for overload in packet.overloads())):
            if hasattr(op, "_op"):
                op._op = _telling(op._op, refused)


def _telling(op: Callable[..., Any], refused: Callable[[], str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return op(*args, **kwargs)
        except RuntimeError as error:
            if type(error) is not RuntimeError or not (text := refused()) or text not in str(error):
                raise
        raise ValueError(text)

    call.__wrapped__ = op  # type: ignore[attr-defined]
    return call
