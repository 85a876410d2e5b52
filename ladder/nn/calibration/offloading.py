# SPDX-License-Identifier: Apache-2.0
"""Blocks whose weights accelerate holds on disk or in the host: in memory one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ladder.errors import InvalidArgument


def _hooks(module: nn.Module) -> list[Any]:
    """Those of accelerate that bring the parameters of ``module`` for a forward."""
    hook: Any = getattr(module, "_hf_hook", None)
    every = getattr(hook, "hooks", (hook,))  # of a SequentialHook
    return [each for each in every if getattr(each, "offload", False)]


def lacks_weights(model: nn.Module) -> str | None:
    """The name of a parameter that has no values, and that nothing brings; or None."""
    for name, module in model.named_modules():
        own = module.named_parameters(recurse=False)
        missing = next((of for of, parameter in own if parameter.is_meta), None)
        if missing is not None and not _hooks(module):
            return f"{name}.{missing}" if name else missing
    return None


def is_offloaded(model: nn.Module) -> bool:
    """Whether some parameters have values only while their module runs."""
    return any(parameter.is_meta for parameter in model.parameters())


def needs_memory(why: str) -> InvalidArgument:
    """Of a model that cannot be calibrated a block at a time."""
    return InvalidArgument(
        f"the model is offloaded, and {why}: to be calibrated it must be in memory as a whole"
    )


@contextmanager
def present(block: nn.Module) -> Iterator[None]:
    """The parameters of ``block`` have values inside, which can be written. Afterwards those that
    were offloaded are what they were before."""
    brought: list[tuple[nn.Module, Any]] = []
    try:
        for module in block.modules():
            for hook in _hooks(module):
                hook.pre_forward(module)
                brought.append((module, hook))
                hook.offload = False
                for name, parameter in module.named_parameters(recurse=False):
                    if parameter.device.type == "cpu":  # it may be a file, or accelerate's own
                        values = parameter.detach().clone()
                        module._parameters[name] = nn.Parameter(values, parameter.requires_grad)
        yield
    finally:
        for module, hook in brought:
            hook.offload = True
            hook.post_forward(module, None)
