# SPDX-License-Identifier: Apache-2.0
"""Which convolutions of a model can be packed, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from ladder.nn.select import STATE_HOOKS, Found, Left, covers, entries_of


def convolutions(
    model: nn.Module, skip: Iterable[str] | None
) -> tuple[tuple[Found, ...], dict[str, Left]]:
    """The ``nn.Conv2d`` of ``model`` that can be packed; and of the others, by the name of their
    weight, why not.

    Args:
        skip: modules to leave, as :func:`ladder.nn.select.covers` reads them.
    """
    names: dict[int, list[str]] = {}
    modules: dict[int, nn.Conv2d] = {}
    holders: dict[int, set[int]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module._parameters.values():
            holders.setdefault(id(parameter), set()).add(id(module))
        if isinstance(module, nn.Conv2d):
            names.setdefault(id(module), []).append(name)
            modules[id(module)] = module
    entries = () if skip is None else entries_of("skip", skip)
    found, left = [], {}
    for key, module in modules.items():
        skipped = any(covers(entry, name) for entry in entries for name in names[key])
        why = "named by skip" if skipped else _objection(module)
        weight = module._parameters.get("weight")
        if why is None and len(holders[id(weight)]) > 1:
            why = "its weight is tied to that of another module"
        if why is None:
            found.append(Found(tuple(names[key]), module))
        else:
            count = weight.numel() if isinstance(weight, Tensor) else 0
            left[f"{names[key][0]}.weight".lstrip(".")] = Left(why, count)
    return tuple(found), left


def _objection(conv: nn.Conv2d) -> str | None:
    if type(conv) is not nn.Conv2d:
        return f"{type(conv).__name__} is more than nn.Conv2d"
    if "forward" in vars(conv) and not hasattr(conv, "_hf_hook"):
        return "its forward has been replaced"
    weight = conv._parameters.get("weight")
    more = [*conv._parameters, *conv._buffers, *conv._modules]
    more = [name for name in more if name not in ("weight", "bias")]
    if more or weight is None:
        return f"its weight is computed from {', '.join(more) or 'elsewhere'}"
    if type(weight) is not nn.Parameter or not weight.is_floating_point():
        return f"its weight is a {weight.dtype} {type(weight).__name__}"
    if weight.is_meta:
        return "its weight is on the meta device: offloaded, or not loaded"
    if conv.groups != 1:
        return f"a convolution of {conv.groups} groups"
    if any(getattr(conv, hooks, None) for hooks in STATE_HOOKS):
        return "it has hooks on its state_dict"
    return None
