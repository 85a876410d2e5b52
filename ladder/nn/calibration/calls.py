# SPDX-License-Identifier: Apache-2.0
"""Calls of a model by calibration data, and its state meanwhile."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from ladder.errors import InvalidArgument

#: One call of the model, by one batch.
Call = Callable[[nn.Module], Any]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of nested tuples, lists and dictionaries, what is in them changed."""
    if type(value) in (tuple, list):
        return type(value)(mapped(each, change) for each in value)
    if isinstance(value, UserDict) or type(value) is dict:
        made = copy(value)
        for key, each in value.items():
            made[key] = mapped(each, change)
        return made
    return change(value)


def calls_of(batches: object) -> list[Call]:
    """Calls of a model, one for each of ``batches``: a tensor [B, ...] is B batches of one row;
    others are an iterable of tensors, tuples (arguments) or mappings (arguments by name).

    Raises:
        InvalidArgument: nothing of that, or no batch.
    """
    if isinstance(batches, Tensor) and batches.dim():
        batches = batches.split(1) if len(batches) else ()
    single = isinstance(batches, (Tensor, str, bytes, Mapping))
    if single or not isinstance(batches, Iterable):
        raise InvalidArgument(
            f"calibration is of {type(batches).__name__}, not batches of what the model is called "
            "with"
        )
    calls = [_call_of(number, batch) for number, batch in enumerate(batches)]
    if not calls:
        raise InvalidArgument("calibration has no batch")
    return calls


def _call_of(number: int, batch: Any) -> Call:
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(batch, Mapping):
        kwargs = dict(batch)
    elif isinstance(batch, (tuple, list)) and any(isinstance(each, Tensor) for each in batch):
        args = tuple(batch)
    elif isinstance(batch, Tensor):
        args = (batch,)
    else:
        raise InvalidArgument(
            f"batch {number} of calibration is of {type(batch).__name__}, not a tensor, a tuple "
            "or a mapping of what the model is called with"
        )

    def call(model: nn.Module) -> Any:
        every = (*model.parameters(), *model.buffers())
        device = next((t.device for t in every if not t.is_meta), None)  # some may be offloaded

        def there(value: Any) -> Any:
            return value.to(device, copy=True) if isinstance(value, Tensor) else value

        given, named = mapped((args, kwargs), there)
        try:
            return model(*given, **named)
        except Exception as error:  # whatever models raise
            raise InvalidArgument(
                f"the model cannot be called with batch {number} of calibration: "
                f"{type(error).__name__}: {error}"
            ) from error

    return call


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Let ``model`` run without gradients, dropout and caches of keys and values, and products of
    float32 be such."""
    training = {module: module.training for module in model.modules()}
    configs: dict[int, Any] = {}
    for module in training:
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", None) is True:
            configs[id(config)] = config
    precision = torch.get_float32_matmul_precision()
    caches = torch.is_autocast_cache_enabled()
    try:
        model.eval()
        torch.set_autocast_cache_enabled(False)  # weights change under it
        torch.set_float32_matmul_precision("highest")
        for config in configs.values():
            config.use_cache = False
        with torch.inference_mode(False), torch.no_grad():  # training may follow inference
            yield
    finally:
        torch.set_autocast_cache_enabled(caches)
        torch.clear_autocast_cache()
        torch.set_float32_matmul_precision(precision)
        for config in configs.values():
            config.use_cache = True
        for module, was in training.items():
            module.training = was
