# SPDX-License-Identifier: Apache-2.0
"""The way from ``module(x)`` to ``module.forward(x)``, shortened."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling as _is_traced
from torch.nn.modules import module as _torch

from ladder.errors import Unsupported

_Module, _module_call = nn.Module, nn.Module.__call__
_KINDS = ("backward", "backward_pre", "forward", "forward_pre")
# Never bound to others: torch adds hooks to them and takes them away.
_hooks = [getattr(_torch, f"_global_{kind}_hooks", None) for kind in _KINDS]
_backward_hooks, _backward_pre_hooks, _forward_hooks, _forward_pre_hooks = _hooks
_tracing = getattr(torch._C, "_get_tracing_state", None)
# None of this is public: of a torch that has it no longer, all calls go torch's own way.
_known = (
    _tracing is not None
    and None not in _hooks
    and {f"_{kind}_hooks" for kind in _KINDS} <= nn.Module().__dict__.keys()
)


class Unscriptable(nn.Module):
    """A module that ``torch.jit.script`` is refused by name, inside of other modules, too."""

    #: What to do instead.
    _instead = "torch.export.export and torch.jit.trace can"

    def __prepare_scriptable__(self) -> nn.Module:
        # What torch.jit.script calls first; it would stumble over some annotation.
        name = type(self).__name__
        raise Unsupported(f"torch.jit.script cannot compile ladder.{name}: {self._instead}")


class QuickCall(Unscriptable):
    """A module whose call costs less than half of ``nn.Module``'s where nothing is to happen beside
    :meth:`forward`: no hooks, no ``module.compile()``, no ``torch.jit.trace``, nothing that has
    replaced ``nn.Module.__call__``. Otherwise it is ``nn.Module``'s.

    ``nn.Module`` asks for the same in two calls and ten attributes, each of which goes through the
    hook that finds parameters: about a microsecond, a fifth of a linear layer's time on the host.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_traced():  # nn.Module's is what torch.compile knows
            return super().__call__(*args, **kwargs)
        state = self.__dict__
        if (
            state["_forward_hooks"]
            or state["_forward_pre_hooks"]
            or state["_backward_hooks"]
            or state["_backward_pre_hooks"]
            or _forward_hooks
            or _forward_pre_hooks
            or _backward_hooks
            or _backward_pre_hooks
            or "_compiled_call_impl" in state
            or _tracing()  # type: ignore[misc]  # _known says that it is there
            or _Module.__call__ is not _module_call
        ):
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)

    if not _known:
        del __call__


def watched(module: nn.Module) -> bool:
    """Whether somebody has a hook on ``module``, or on all modules, or has replaced its forward."""
    state = module.__dict__
    if _known:  # as above: modules ask this in each call
        return bool(
            "forward" in state
            or state["_forward_hooks"]
            or state["_forward_pre_hooks"]
            or state["_backward_hooks"]
            or state["_backward_pre_hooks"]
            or _forward_hooks
            or _forward_pre_hooks
            or _backward_hooks
            or _backward_pre_hooks
        )
    return bool(
        "forward" in state
        or any(state.get(f"_{kind}_hooks") for kind in _KINDS)
        or any(getattr(_torch, f"_global_{kind}_hooks", None) for kind in _KINDS)
    )
