# SPDX-License-Identifier: Apache-2.0
"""Calls of a model, and what its blocks are called with in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ladder.errors import InvalidArgument
from ladder.nn.hessians import Stop

#: One call of the model, by one batch.
Call = Callable[[nn.Module], Any]
#: In the arguments of a block: what the block before it gave.
_BEFORE = object()


@dataclass
class BlockCalls:
    """One call of the model: what its blocks, from some block on, are called with."""

    args: list[tuple[Any, ...]]
    kwargs: list[dict[str, Any]]
    before: Tensor | None = None  #: what stands for _BEFORE

    def copy(self) -> BlockCalls:
        return replace(self)

    def run(self, block: nn.Module, step: int) -> Any:
        def given(value: Any) -> Any:
            # A copy: blocks may add to their input in place.
            return self.before.clone() if value is _BEFORE and self.before is not None else value

        args = [given(value) for value in self.args[step]]
        return block(*args, **{name: given(value) for name, value in self.kwargs[step].items()})


def calls_of(batches: object) -> list[Call]:
    """Calls of a model, one for each of ``batches``: a tensor [B, ...] is B batches of one row;
    others are an iterable of tensors, tuples (arguments) or mappings (arguments by name).

    Raises:
        InvalidArgument: nothing of that, or no batch.
    """
    if isinstance(batches, Tensor) and batches.dim():
        batches = batches.split(1)
    if not isinstance(batches, Iterable) or isinstance(batches, (str, bytes, Mapping)):
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
        device = next((t.device for t in (*model.parameters(), *model.buffers())), None)

        def there(value: Any) -> Any:
            return value.to(device) if isinstance(value, Tensor) and device is not None else value

        try:
            return model(*map(there, args), **{name: there(v) for name, v in kwargs.items()})
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise InvalidArgument(
                f"the model cannot be called with batch {number} of calibration: {error}"
            ) from error

    return call


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Let ``model`` run without gradients, dropout and caches of keys and values."""
    training = {module: module.training for module in model.modules()}
    configs: dict[int, Any] = {}
    for module in training:
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", None) is True:
            configs[id(config)] = config
    try:
        model.eval()
        for config in configs.values():
            config.use_cache = False
        with torch.inference_mode(False), torch.no_grad():  # training may follow inference
            yield
    finally:
        for config in configs.values():
            config.use_cache = True
        for module, was in training.items():
            module.training = was


def record(
    model: nn.Module, blocks: Sequence[nn.Module], calls: Sequence[Call]
) -> tuple[int, list[BlockCalls]]:
    """How many of ``blocks``, from the first on, take what the block before gave, in all calls; and
    what each call gives them."""
    recorded = [each for call in calls if (each := _record_call(model, blocks, call)).args]
    return min((len(each.args) for each in recorded), default=1), recorded


def _record_call(model: nn.Module, blocks: Sequence[nn.Module], call: Call) -> BlockCalls:
    made, given = BlockCalls([], []), None  # what a block is given: by the block before it

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal given
        step = len(made.args)
        if module is not blocks[step]:
            if step:  # in another order than that of the first call
                raise Stop
            return
        if step == 0 and (given := _hidden(args, kwargs)) is not None:
            made.before = given.clone()
        hidden = _BEFORE if given is None else given  # the former no argument is
        if any("past_key_value" in name and value is not None for name, value in kwargs.items()):
            raise InvalidArgument(
                "calibration gives the model a cache of keys and values, to which it writes: call "
                "it without"
            )
        if step and sum(value is hidden for value in (*args, *kwargs.values())) != 1:
            raise Stop
        made.args.append(tuple(_BEFORE if value is hidden else value for value in args))
        made.kwargs.append({n: _BEFORE if v is hidden else v for n, v in kwargs.items()})
        if len(made.args) == len(blocks):
            raise Stop

    def after(module: nn.Module, args: Any, output: Any) -> None:
        nonlocal given
        given = first_of(output)

    with ExitStack() as stack:
        for block in blocks:
            stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(after).remove)
        with suppress(Stop):
            call(model)
    return made


def _hidden(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The first floating-point tensor: what the block works on."""
    every = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    return next((value for value in every if value.is_floating_point()), None)


def first_of(output: Any) -> Any:
    return output[0] if isinstance(output, (tuple, list)) and output else output
