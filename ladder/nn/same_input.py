# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model get the same input, seen in one run of it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ladder.nn.arguments import named_input
from ladder.nn.linear import Linear
from ladder.nn.merged_layer import MergedLinear
from ladder.nn.parallel import ParallelLinear

#: Why nothing is merged where tensor parallelism is.
CUT = "layers are cut over processes, each in its own way"
#: What a wrapper calls the layer that it wraps (PEFT's adapters).
WRAPPED = ".base_layer"

#: Of one call of a parent: each layer called, with what.
_Calls = list[tuple[str, Any, int]]


def groups_of(model: nn.Module, example: Any) -> tuple[list[tuple[str, ...]], str]:
    """Names of unmerged layers that get the same input whenever their parent runs, in the order of
    their calls; and why nothing could be seen, or ""."""
    if not isinstance(example, (Mapping, tuple)):
        example = _one_token(model) if example is None else (example,)
    if example is None:
        return [], "optimize needs an example of what the model is called with"
    if any(isinstance(module, ParallelLinear) for module in model.modules()):
        return [], CUT
    with _watched(model) as calls:
        try:
            if isinstance(example, Mapping):
                model(**example)
            else:
                model(*example)
        except Exception as error:
            return [], f"the model raised {type(error).__name__} on the example: {error}"
    groups: list[tuple[str, ...]] = []
    for of_parent in calls.values():
        seen = [_same_inputs(each) for each in of_parent]
        groups += [group for group in seen[0] if all(group in each for each in seen)]
    return groups, ""


def _same_inputs(calls: _Calls) -> list[tuple[str, ...]]:
    by_input: dict[tuple[int, int], list[str]] = {}
    for name, x, version in calls:  # all inputs are alive, so that equal ids mean equal tensors
        by_input.setdefault((id(x), version), []).append(name)
    names = [name for name, _, _ in calls]
    once = (tuple(n for n in group if names.count(n) == 1) for group in by_input.values())
    return [group for group in once if len(group) > 1]


@contextmanager
def _watched(model: nn.Module) -> Iterator[dict[str, list[_Calls]]]:
    """By parent, the calls of unmerged layers in each call of the parent. Packed layers give zeros:
    their products would be for nothing, and kernels of single layers compiled for nothing."""
    calls: dict[str, list[_Calls]] = {}
    running: dict[str, list[_Calls]] = {}
    handles = []

    def start(parent: str) -> Any:
        def hook(*_: Any) -> None:
            running.setdefault(parent, []).append([])

        return hook

    def end(parent: str) -> Any:
        def hook(*_: Any) -> None:
            calls.setdefault(parent, []).append(running[parent].pop())

        return hook

    def called(name: str, parent: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            if running.get(parent) and len(args) == 1 and isinstance(args[0], Tensor):
                running[parent][-1].append((name, args[0], args[0]._version))

        return hook

    stood_in: list[nn.Module] = []
    training = [module for module in model.modules() if module.training]
    parents: set[str] = set()
    try:
        for name, module in model.named_modules():
            if isinstance(module, Linear) and not isinstance(module, MergedLinear) and name:
                handles.append(module.register_forward_pre_hook(called(name, parent_of(name))))
                parents.add(parent_of(name))
            if isinstance(module, Linear) and "forward" not in module.__dict__:
                module.forward = functools.partial(_zeros, module.out_features)  # type: ignore[method-assign]
                stood_in.append(module)
        for name in parents:
            parent = model.get_submodule(name)
            handles.append(parent.register_forward_pre_hook(start(name), prepend=True))
            handles.append(parent.register_forward_hook(end(name)))
        model.eval()  # dropout would draw, and some norms would learn
        with torch.inference_mode(False), torch.no_grad():
            yield calls
    finally:
        for handle in handles:
            handle.remove()
        for module in stood_in:
            del module.forward
        for module in training:
            module.training = True


def _zeros(n: int, x: Any = None, residual: Any = None, *, input: Any = None) -> Tensor:
    """Called as :meth:`ladder.Linear.forward` is."""
    x = named_input(x, input)
    return x.new_zeros((*x.shape[:-1], n))


def parent_of(name: str) -> str:
    """The name of the module that has the layer ``name``, wrapped or not."""
    return name.removesuffix(WRAPPED).rpartition(".")[0]


def _one_token(model: nn.Module) -> dict[str, Tensor] | None:
    """For models of transformers that take tokens."""
    if getattr(model, "main_input_name", "") != "input_ids":
        return None
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    token = torch.zeros((1, 1), dtype=torch.int64, device=device)
    decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return {"input_ids": token} | ({"decoder_input_ids": token} if decoder else {})
