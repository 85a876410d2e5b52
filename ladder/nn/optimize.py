# SPDX-License-Identifier: Apache-2.0
"""``ladder.optimize``: all that makes a packed model fast and changes none of its results."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Sequence
from typing import Any

from torch import nn

from ladder.nn.activation_pairs import release_activations, take_activations
from ladder.nn.arguments import check_model, numbers_of_tokens
from ladder.nn.gated import GatedWeight
from ladder.nn.gated import objection as gate_objection
from ladder.nn.gated_form import form_of
from ladder.nn.gated_mlp import GatedMLP
from ladder.nn.joined import objection
from ladder.nn.linear import Linear
from ladder.nn.merged import MergedWeight
from ladder.nn.merged_layer import MergedLinear
from ladder.nn.same_input import CUT, WRAPPED, groups_of, parent_of
from ladder.nn.subclassed import kind_of
from ladder.nn.warmup import warmup

_log = logging.getLogger("ladder")


@dataclasses.dataclass(frozen=True)
class Optimization:
    """What :func:`optimize` did; ``print`` shows it.

    Attributes:
        merged: names of the layers of each merged weight.
        left: why layers that might have been merged were not, by their names joined by ", ".
        schedules: of :func:`ladder.warmup`, one layer for each merged weight.
        gated: names of the modules whose gate and up are such a weight, and whose product kernels
            make with the sums.
        ungated: why other modules with a layer down behind a gate and up are not, by name.
        activated: names of the layers whose kernels take the activation function behind them.
        unactivated: why other layers with an activation function behind them do not, by name.
    """

    merged: list[tuple[str, ...]]
    left: dict[str, str]
    schedules: dict[str, dict[int, str]]
    gated: list[str] = dataclasses.field(default_factory=list)
    ungated: dict[str, str] = dataclasses.field(default_factory=dict)
    activated: list[str] = dataclasses.field(default_factory=list)
    unactivated: dict[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        count = sum(map(len, self.merged))
        lines = [f"merged {count} layers into {len(self.merged)}"]
        if self.gated:
            lines.append(f"gated {len(self.gated)} products of gate and up in their launches")
        if self.activated:
            lines.append(f"activated {len(self.activated)} layers in their launches")
        every = {"merged": self.left, "gated": self.ungated, "activated": self.unactivated}
        for what, left in every.items():
            by_reason: dict[str, list[str]] = {}
            for names, reason in left.items():
                by_reason.setdefault(reason, []).append(names)
            for reason, all_names in by_reason.items():
                more = f" and {len(all_names) - 1} more" if len(all_names) > 1 else ""
                lines.append(f"not {what}, {reason}: {all_names[0]}{more}")
        if self.schedules:
            lines.append(f"compiled the kernels of {len(self.schedules)} weights")
        return "\n".join(lines)


def optimize(
    model: nn.Module,
    m: int | Sequence[int] = (1, 8, 16),
    *,
    example: Any = None,
    merge: bool = True,
    **options: Any,
) -> Optimization:
    """Make a model with packed layers fast, in place: layers that get the same input become rows of
    one weight (ladder/nn/merged.py), then :func:`ladder.warmup`.

    Which layers get the same input is seen, not guessed: the model runs once on ``example``, and
    layers of one parent that each get the same tensor in each call of that parent, with nothing
    written to the tensor in between, are merged: q, k and v, gate and up of LLaMA, Qwen and
    Mistral; k and v of cross-attention. Their types, in_features, dtypes, devices, g_idx and second
    scales must be equal.

    Gated MLPs (:mod:`ladder.nn.gated_form`; LLaMA, Mistral, Qwen, Gemma, T5; Phi-3 and GLM-4,
    which have gate and up in one layer) go a step further: the function of the gate times up is
    part of the launch that makes their sums, in float32, rounded once. So is the activation
    function behind other layers (:mod:`ladder.nn.activation_pairs`; OPT, GPT-2, BERT, DistilBERT,
    CLIP, Whisper). Where a hook watches one of the layers or the function, or an adapter has one of
    them, the module is left as it is, and the report says so.

    The model looks as before: names, ``state_dict``, ``save_pretrained`` and PEFT see the single
    layers, to the bit. ``.to()`` another device or dtype, ``load_state_dict`` and
    :func:`unoptimize` give them their own weights again. Adapters may come before or after.
    Results are those of the single layers within :func:`ladder.testing.bound`, for the kernel of
    the merged weight may add in another order; gated ones are nearer to right, since gate and up
    are not rounded.

    On a GPU a decode step has fewer launches, which shows in a CUDA graph and under
    ``torch.compile``; called one by one, three layers take the host about as long as before.

    Call it on the device of use, before ``torch.compile`` and before a CUDA graph is captured. A
    second call merges what has come since.

    Args:
        m: numbers of tokens to warm up for.
        example: what the model is called with: a mapping of keyword arguments, a tuple of
            arguments, or one; by default a token for a model of transformers.
        merge: False leaves all layers as they are.
        options: others of :func:`ladder.warmup`. ``dependent_launch=True`` is safe here: merging
            makes a new image and waits for the stream, and nothing ever writes into one. It gains
            where ladder's kernels follow each other on the stream, hardly where attention and norms
            stand between. Set it before programs are compiled, which keep the kind that they were
            traced with.
    Raises:
        InvalidArgument: as :func:`ladder.warmup`.
    """
    check_model(model)
    m, done = numbers_of_tokens(m), Optimization([], {}, {})
    if merge:
        groups, why = groups_of(model, example)
        if why:
            done.left["all layers"] = why
        if why != CUT:
            _gate(model, done)
        gated = {name for names in done.merged for name in names}
        for names in (names for names in groups if not gated.intersection(names)):
            layers = [model.get_submodule(name) for name in names]
            if reason := objection(layers):  # type: ignore[arg-type]  # Linear, as groups_of says
                done.left[", ".join(names)] = reason
            else:
                MergedWeight(model.get_submodule(parent_of(names[0])), layers)  # type: ignore[arg-type]
                done.merged.append(names)
        places = {name: place for place, (name, _) in enumerate(model.named_modules())}
        done.merged.sort(key=lambda names: places[names[0]])
        if why != CUT:
            activated, unactivated = take_activations(model)
            done.activated.extend(activated)
            done.unactivated.update(unactivated)
    distinct = nn.ModuleDict()
    seen: set[int] = set()
    for name, module in model.named_modules():
        served = module._merged.linear if isinstance(module, MergedLinear) else module
        if isinstance(served, Linear) and id(served) not in seen:
            seen.add(id(served))
            distinct.add_module("/" + name.replace(".", "/"), served)  # never a dictionary's method
    schedules = warmup(distinct, m, **options)
    for name, plans in schedules.items():
        done.schedules[name.strip("/").replace("/", ".")] = plans
    _log.info("%s", done)
    return done


def unoptimize(model: nn.Module) -> None:
    """Give all layers of ``model`` that :func:`optimize` merged their own weights again, and to
    activation functions what they compute."""
    check_model(model)
    for module in model.modules():
        if isinstance(module, MergedLinear):
            module._merged.dissolve()
    release_activations(model)


def _gate(model: nn.Module, done: Optimization) -> None:
    """Make gate and up of every gated module one weight, and note it, or why not."""
    for name, module in list(model.named_modules()):
        if "_gated" in module.__dict__ or not _may_be_gated(module):
            continue
        form = module.form if isinstance(module, GatedMLP) else form_of(module)
        why = form if isinstance(form, str) else gate_objection(module, form)
        if isinstance(form, str) or why:
            done.ungated[name] = why
            continue
        GatedWeight(module, form)
        stem = f"{name}." if name else ""
        done.gated.append(name)
        if len(form.layers) > 1:
            done.merged.append((stem + form.gate, stem + form.up))


def _may_be_gated(module: nn.Module) -> bool:
    """Whether there are three packed layers, wrapped or not, two of one shape and one behind; or
    two, the second of half as many columns as the first has rows, and one tensor to begin with."""
    found = []
    for child in module.children():
        layer = getattr(child, WRAPPED[1:], child)
        if isinstance(layer, Linear):
            found.append((layer.out_features, layer.in_features))
    if len(found) == 2:  # attention may have such layers, and takes more
        halves = any(a[0] == 2 * b[1] for a, b in (found, found[::-1]))
        return halves and len(inspect.signature(kind_of(module).forward).parameters) == 2
    if len(found) != 3:
        return False
    return any(
        found[i] == found[j] and found[i][0] == found[k][1]
        for i, j, k in ((0, 1, 2), (0, 2, 1), (1, 2, 0))
    )
