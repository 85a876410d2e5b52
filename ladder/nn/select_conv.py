# SPDX-License-Identifier: Apache-2.0
"""Which convolutions of a model can be packed, and why the others are not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from torch import Tensor, nn

from ladder.nn.layer_types import LayerTypes
from ladder.nn.outputs import KEPT, kept
from ladder.nn.select import STATE_HOOKS, Found, Left, covers, entries_of, is_conv1d
from ladder.types import TType

#: Of the dimensions that :class:`ladder.Conv2d` does not have, and transposed ones.
_OTHERS = (
    nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip


def filter_rows(weight: Tensor) -> Tensor:
    """[F, Y X C / groups], the rows of a packed convolution, of a weight [F, C / groups, Y, X]."""
    return weight.permute(0, 2, 3, 1).flatten(1)


def matrix_of(module: nn.Module, weight: Tensor) -> Tensor:
    """[N, K] of the ``weight`` of a linear layer or convolution, as ``module`` would hold it."""
    if isinstance(module, nn.Conv2d):
        return filter_rows(weight)
    return weight.T if is_conv1d(module) else weight


def convolutions(
    model: nn.Module,
    skip: Iterable[str] | None,
    types: TType | LayerTypes,
    *,
    loaded: bool = True,
    option: str = "skip",
    chosen: Collection[str] = (),
) -> tuple[tuple[Found, ...], dict[str, Left]]:
    """The ``nn.Conv2d`` of ``model`` that can be packed and that packing serves; and of all other
    convolutions, by the name of their weight, why not.

    Args:
        skip: modules to leave, as :func:`ladder.nn.select.covers` reads them.
        types: that they would have.
        loaded, option: as :func:`ladder.nn.select.survey`.
        chosen: whole names of those that are packed although ``skip`` covers them or packing them
            is of little use.
    """
    if isinstance(types, TType):
        types = LayerTypes(types)
    names: dict[int, list[str]] = {}
    modules: dict[int, nn.Module] = {}
    holders: dict[int, set[int]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module._parameters.values():
            holders.setdefault(id(parameter), set()).add(id(module))
        if isinstance(module, (nn.Conv2d, *_OTHERS)):
            names.setdefault(id(module), []).append(name)
            modules[id(module)] = module
    entries = () if skip is None else entries_of(option, skip)
    in_float32 = kept(model)
    # transformers ties weights after it has loaded them.
    ties: Mapping[str, str] = {}
    if not loaded:
        ties = getattr(model, "all_tied_weights_keys", None) or {}
    tied = {*ties, *ties.values()}
    found, left = [], {}
    for key, module in modules.items():
        weight = module._parameters.get("weight")
        if not isinstance(module, nn.Conv2d):
            why: str | None = f"{type(module).__name__}: of convolutions nn.Conv2d are packed alone"
        else:
            asked = any(name in chosen for name in names[key])
            skipped = not asked and _covered(entries, names[key])
            why = f"named by {option}" if skipped else _objection(module, loaded)
            if why is None and not asked and in_float32.intersection(names[key]):
                why = KEPT
            if why is None and not asked:
                why = no_use(module, types.of(*names[key]))
        if why is None and (
            len(holders[id(weight)]) > 1 or any(f"{name}.weight" in tied for name in names[key])
        ):
            why = "its weight is tied to that of another module"
        if why is None:
            found.append(Found(tuple(names[key]), module))
        else:
            count = weight.numel() if isinstance(weight, Tensor) else 0
            left[f"{names[key][0]}.weight".lstrip(".")] = Left(why, count)
    return tuple(found), left


def _covered(entries: Collection[str], names: Collection[str]) -> bool:
    return any(covers(entry, name) for entry in entries for name in names)


def no_use(conv: nn.Conv2d, ttype: TType) -> str | None:
    """Why packing a convolution that can be packed is of no use; None where it is."""
    n, k = conv.weight.shape[0], conv.weight[0].numel()
    if conv.groups == conv.in_channels > 1:
        return (
            f"depthwise, {k} weights a filter: packing would save little, and cost each call a "
            "dequantisation (ladder.Conv2d.from_float packs it all the same)"
        )
    dense = 8 * conv.weight.itemsize
    # Rows end with whole words.
    packed = ttype.bits_per_weight(n, k) + 32 * ttype.words(k) / k - ttype.bits
    if packed >= dense:
        return f"{k} weights a filter take {packed:.3g} bits each packed, and {dense} dense"
    return None


def _objection(conv: nn.Conv2d, loaded: bool) -> str | None:
    """Why a convolution cannot be packed as it is now; None if it can."""
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
    if weight.is_meta and loaded:
        return "its weight is on the meta device: offloaded, or not loaded"
    if any(getattr(conv, hooks, None) for hooks in STATE_HOOKS):
        return "it has hooks on its state_dict"
    return None
