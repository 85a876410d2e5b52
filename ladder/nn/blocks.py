# SPDX-License-Identifier: Apache-2.0
"""Running a model block by block, so that each block sees what the blocks before it give once they
are quantised, and nothing runs twice that need not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ladder.errors import InvalidArgument
from ladder.nn.hessians import Hessians, Layer, observed

#: In the arguments of a block: what the block before it gave.
_BEFORE = object()


class _Stop(BaseException):
    """The last block that is asked for has been reached. No ``except Exception`` of a model stops
    it."""


@dataclass
class _Call:
    """One call of the model: what its blocks, from some block on, are called with."""

    args: list[tuple[Any, ...]]
    kwargs: list[dict[str, Any]]
    before: Tensor | None = None  #: what stands for _BEFORE

    def run(self, block: nn.Module, step: int) -> Any:
        def given(value: Any) -> Any:
            # A copy: blocks may add to their input in place.
            return self.before.clone() if value is _BEFORE and self.before is not None else value

        args = [given(value) for value in self.args[step]]
        return block(*args, **{name: given(value) for name, value in self.kwargs[step].items()})


def calls_of(batches: object) -> list[Callable[[nn.Module], Any]]:
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


def _call_of(number: int, batch: Any) -> Callable[[nn.Module], Any]:
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

        return model(*map(there, args), **{name: there(value) for name, value in kwargs.items()})

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


def in_turn(
    model: nn.Module, layers: Sequence[Layer], calls: Sequence[Callable[[nn.Module], Any]]
) -> Iterator[tuple[list[Layer], dict[str, Hessians]]]:
    """Some layers at a time, those of a block and last those that are in none, with what ``calls``
    of ``model`` give them. Layers that have been given by then may have other weights: what comes
    next is what they make of their inputs.

    Blocks are the members of a ``nn.ModuleList`` that hold layers and run once a call. Where each
    takes what the block before it gave, unchanged, a block runs alone, on inputs that are kept;
    elsewhere the model runs up to it.
    """
    found = _blocks(model, layers)
    order = _order(model, list(found), calls)
    of_blocks = {layer.name for block in order for layer in found[block]}
    rest = [layer for layer in layers if layer.name not in of_blocks]
    at = 0
    while at < len(order):
        count, inputs = _record(model, order[at:], calls)
        for step, block in enumerate(order[at : at + count]):
            with observed(found[block]) as hessians:
                for each in inputs:
                    each.run(block, step)
            yield found[block], hessians
            if step + 1 < count:
                for each in inputs:
                    each.before = _first(each.run(block, step))
        at += count
    if rest:
        with observed(rest) as hessians:
            for call in calls:
                call(model)
        yield rest, hessians


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, (tuple, list)) and output else output


def _blocks(model: nn.Module, layers: Iterable[Layer]) -> dict[nn.Module, list[Layer]]:
    """The outermost members of lists of modules, with the layers in each."""
    found: dict[nn.Module, list[Layer]] = {}
    for layer in layers:
        parts = layer.name.split(".")
        parent = model
        for part in parts[:-1]:
            child = parent.get_submodule(part)
            if isinstance(parent, nn.ModuleList):
                found.setdefault(child, []).append(layer)
                break
            parent = child
    return found


def _order(
    model: nn.Module, blocks: Sequence[nn.Module], calls: Sequence[Callable[[nn.Module], Any]]
) -> list[nn.Module]:
    """The blocks that run, in that order, but those that a call runs more than once."""
    counts: dict[nn.Module, int] = {}
    often: set[nn.Module] = set()
    for number, call in enumerate(calls):
        ran: list[nn.Module] = []
        note = partial(_note, ran)
        with ExitStack() as stack:
            for block in blocks:
                stack.callback(block.register_forward_pre_hook(note).remove)
            try:
                call(model)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise InvalidArgument(
                    f"the model cannot be called with batch {number} of calibration: {error}"
                ) from error
        often |= {block for block in ran if ran.count(block) > 1}
        counts |= dict.fromkeys(ran, 1)
        if len(counts) == len(blocks):
            break
    return [block for block in counts if block not in often]


def _note(ran: list[nn.Module], module: nn.Module, args: Any) -> None:
    ran.append(module)


def _record(
    model: nn.Module, blocks: Sequence[nn.Module], calls: Sequence[Callable[[nn.Module], Any]]
) -> tuple[int, list[_Call]]:
    """How many of ``blocks``, from the first on, take what the block before gave, in all calls; and
    what each call gives them."""
    recorded = [each for call in calls if (each := _record_call(model, blocks, call)).args]
    return min((len(each.args) for each in recorded), default=1), recorded


def _record_call(
    model: nn.Module, blocks: Sequence[nn.Module], call: Callable[[nn.Module], Any]
) -> _Call:
    made, given = _Call([], []), None

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        step = len(made.args)
        if module is not blocks[step]:
            if step:  # in another order than that of the first call
                raise _Stop
            return
        if step == 0:
            made.before = _hidden(args, kwargs)
        of_hidden: Any = given if step else made.before
        if of_hidden is None:
            of_hidden = _BEFORE  # which nothing is
        places = sum(value is of_hidden for value in (*args, *kwargs.values()))
        if (places != 1 or _has_cache(kwargs)) and step:
            raise _Stop
        made.args.append(tuple(_BEFORE if value is of_hidden else value for value in args))
        made.kwargs.append({n: _BEFORE if v is of_hidden else v for n, v in kwargs.items()})
        if len(made.args) == len(blocks) or _has_cache(kwargs):
            raise _Stop

    def after(module: nn.Module, args: Any, output: Any) -> None:
        nonlocal given
        given = _first(output)

    with ExitStack() as stack:
        for block in blocks:
            stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(after).remove)
        with suppress(_Stop):
            call(model)
    return made


def _hidden(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The first floating-point tensor: what the block works on."""
    every = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    return next((value for value in every if value.is_floating_point()), None)


def _has_cache(kwargs: Mapping[str, Any]) -> bool:
    """Whether a block writes to a cache, so that it may run once only."""
    return any("past_key_value" in name and v is not None for name, v in kwargs.items())
