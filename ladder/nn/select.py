# SPDX-License-Identifier: Apache-2.0
"""Which modules of a model are linear layers or experts that can be packed, and why the others are
not.

A packed layer has no dense weight, so a layer can be packed only where nothing but its own
``forward`` reads the weight. What reads it otherwise is told by the class of the layer, the class
of the module that holds it and its source, or other modules that hold the same tensor.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from ladder._torch import read_by_parent
from ladder.errors import InvalidArgument
from ladder.nn.dense_experts import Layout, has_stacks, layout_of
from ladder.nn.mixtures import NOT_PACKED, FoundExperts, mixtures, stack_names
from ladder.nn.outputs import KEPT, LM_HEAD, REASON, kept, outputs
from ladder.nn.read_weights import is_only_read

#: Modules that read weights of children that they also call; others: ladder/nn/read_weights.py.
_READERS: tuple[tuple[type[nn.Module], tuple[str, ...]], ...] = (
    (nn.MultiheadAttention, ("out_proj",)),
    (nn.TransformerEncoderLayer, ("linear1", "linear2")),  # in inference
)
#: Subclasses of nn.Linear with a forward of their own that computes what nn.Linear's does.
_EQUIVALENT = ("transformers.models.falcon.modeling_falcon.FalconLinear",)
#: What a subclass may define and still be called as nn.Linear is.
_HARMLESS = frozenset({
    "__module__", "__doc__", "__init__", "__annotations__", "__annotate__", "__annotate_func__",
    "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__parameters__",
    "__constants__", "__dict__", "__weakref__", "extra_repr", "reset_parameters",
})  # fmt: skip
#: The attribute of layers that :mod:`ladder.qat` has prepared.
PREPARED = "_ladder_qat"
#: How the reason of a layer begins that cannot be packed alone.
TIED = "its weight is tied to"
#: Hooks that see a state_dict, whose ``weight`` a packed layer does not have.
STATE_HOOKS = (
    "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A linear layer that can be packed; all ``names`` are of this one module."""

    names: tuple[str, ...]
    module: nn.Module

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class Left:
    """What stays dense: a module by name, or a parameter where its module is no linear layer."""

    reason: str
    weights: int  #: elements; none of a tensor that is tied to another of before
    matrices: int = 1  #: more than one for experts in a parameter of three dimensions


@dataclass(frozen=True)
class Survey:
    """Every weight of a model that a product could read: found to be packed, or left."""

    found: tuple[Found, ...]
    left: dict[str, Left]
    experts: tuple[FoundExperts, ...] = ()


def covers(entry: str, name: str) -> bool:
    """Whether ``entry`` speaks of module ``name``: it is the name, or whole parts of it that follow
    each other ("lm_head", "mlp", "layers.0", "self_attn.q_proj")."""
    return f".{entry}." in f".{name}."


def entries_of(option: str, given: Any) -> tuple[str, ...]:
    """What is given as ``option``, a name of a module or some, as a tuple. Raises InvalidArgument
    for anything else."""
    entries = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else (*given,)
    for entry in entries:
        if not isinstance(entry, str):
            raise InvalidArgument(f"{option} has {entry!r}, not the name of a module")
    return entries


def check_entries(
    option: str, entries: Iterable[str], names: Iterable[str], *, whole: bool = False
) -> None:
    """Raise InvalidArgument for the first of ``entries``, given as ``option``, that covers (or, if
    ``whole``, is) none of ``names`` and is not "lm_head", which a model need not have."""
    known = list(names)
    for entry in entries:
        fits = entry in known if whole else any(covers(entry, name) for name in known)
        if not fits and entry != LM_HEAD:
            raise no_such_module(option, entry, known)


def no_such_module(option: str, entry: str, known: Collection[str]) -> InvalidArgument:
    """What to raise where ``entry``, given as ``option``, names none of the ``known`` modules."""
    near = difflib.get_close_matches(entry, known, 1, 0.0)
    return InvalidArgument(
        f'{option} has "{entry}", which names no module of the model'
        + (f", such as {near[0]}" if near else "")
    )


def conv1d() -> type[nn.Module] | None:
    """transformers' Conv1D, a linear layer of GPT-2 whose weight is [K, N]; None where transformers
    has not been imported, so that no model can have it."""
    module = sys.modules.get("transformers.pytorch_utils")
    return getattr(module, "Conv1D", None)


def is_conv1d(module: nn.Module) -> bool:
    """Whether ``module`` is a Conv1D of transformers."""
    kind = conv1d()
    return kind is not None and isinstance(module, kind)


def is_linear(module: nn.Module) -> bool:
    """Whether ``module`` is an ``nn.Linear``, a Conv1D of transformers, or a subclass of these."""
    return isinstance(module, nn.Linear) or is_conv1d(module)


def dense_weight(module: Any) -> Tensor:
    """The weight [N, K] of a module that :func:`is_linear`."""
    weight: Tensor = module.weight
    return weight.T if is_conv1d(module) else weight


def linears(model: nn.Module) -> dict[str, nn.Module]:
    """Every linear layer by its first name, but those whose class shows that they cannot be packed.
    For models whose weights are not there yet; :func:`survey` knows more."""
    return {
        name: module
        for name, module in model.named_modules()
        if is_linear(module) and called_as_linear(type(module))
    }


def packable(model: nn.Module) -> list[str]:
    """Names of all modules that are dense and could be packed."""
    return [*linears(model), *mixtures(model)]


def survey(
    model: nn.Module,
    skip: Iterable[str] | None = None,
    *,
    loaded: bool = True,
    option: str = "skip",
    chosen: Collection[str] = (),
    untied: Collection[str] = (),
) -> Survey:
    """Find the linear layers and experts of ``model`` to be packed, and say of all others why not.

    Args:
        skip: modules to leave, as :func:`covers` reads them. None: :func:`outputs`.
        loaded: whether weights are there; if not, those on the meta device are packed all the same.
        option: how the caller calls ``skip``.
        chosen: whole names that ``skip`` does not speak of.
        untied: names of output embeddings that are packed whatever they are tied to, unless
            ``skip`` has them.
    Raises:
        InvalidArgument: an entry of ``skip`` that is no name or covers no module, and is not
            "lm_head".
    """
    names, modules = every_module(model)
    holders = _holders(names, modules)
    read = dict(_read_by_parents(model))
    # transformers ties weights after it has loaded them.
    ties = {} if loaded else dict(getattr(model, "all_tied_weights_keys", {}))
    found: list[Found] = []
    found_experts: list[FoundExperts] = []
    left: dict[str, Left] = {}
    entries = () if skip is None else entries_of(option, skip)
    usual = outputs(model) if skip is None else set()
    in_float32 = kept(model)
    named = f"named by {option}"
    for key, module in modules.items():
        linear = is_linear(module)
        parameters = dict(_weights(module))
        if not linear and not parameters:
            continue
        mixture = not linear and has_stacks(module)
        own_names = {*names[key], *(stack_names(names[key]) if mixture else ())}
        why: str | None = None
        free = bool(own_names & set(untied))
        if not own_names & set(chosen):
            if any(covers(entry, name) for entry in entries for name in names[key]):
                why = named
            elif (linear or mixture) and not free and usual.intersection(names[key]):
                why = REASON
            elif linear and in_float32.intersection(names[key]):
                why = KEPT
        if mixture:
            layout = layout_of(module)
            why = why or _tied(key, module, holders, names, ties)
            why = why or _mixture_objection(module, layout, loaded)
            if why is None and isinstance(layout, Layout):
                found_experts.append(FoundExperts(tuple(names[key]), module, layout))
                continue
        if not linear:
            for name, parameter in parameters.items():
                full = f"{names[key][0]}.{name}".lstrip(".")
                if full not in left and holders[identity(parameter)][0] == key:
                    left[full] = _not_linear(module, parameter, why)
            continue
        tied = None if free else _tied(key, module, holders, names, ties)
        reason = tied or why or read.get(key)
        reason = reason or _objection(module, loaded)
        if reason is None and not own_names & set(chosen) and parameters["weight"].shape[0] == 1:
            reason = "it has a single row, of which nothing is saved"
        if reason is None:
            found.append(Found(tuple(names[key]), module))
        else:
            own = (p for p in parameters.values() if holders[identity(p)][0] == key)
            count = sum(parameter.numel() for parameter in own)
            left[names[key][0] or type(module).__name__] = Left(reason, count)
    check_entries(option, entries, (name for of_one in names.values() for name in of_one if name))
    return Survey(tuple(found), left, tuple(found_experts))


def every_module(model: nn.Module) -> tuple[dict[int, list[str]], dict[int, nn.Module]]:
    """Modules by id, each once, and all the names that each has."""
    names: dict[int, list[str]] = {}
    modules: dict[int, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
        modules[id(module)] = module
    return names, modules


def _weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The module's own parameters that could be matrices."""
    for name, parameter in module._parameters.items():
        if parameter is not None and not nn.parameter.is_lazy(parameter) and parameter.dim() > 1:
            yield name, parameter


def identity(parameter: Tensor) -> object:
    """Equal for parameters that are one tensor, also where each module has a Parameter of it."""
    if parameter.is_meta or type(parameter) is not nn.Parameter or not parameter.numel():
        return id(parameter)
    return parameter.data_ptr(), tuple(parameter.shape), parameter.device


def _holders(names: dict[int, list[str]], modules: dict[int, nn.Module]) -> dict[object, list[int]]:
    """Modules that hold each weight."""
    holders: dict[object, list[int]] = {}
    for key in names:
        for _, parameter in _weights(modules[key]):
            holders.setdefault(identity(parameter), []).append(key)
    return holders


def _read_by_parents(model: nn.Module) -> Iterator[tuple[int, str]]:
    for module in model.modules():
        for name in getattr(module, "adapter_layer_names", ()):  # of PEFT: lora_A, lora_B, ...
            layers = getattr(module, name, None)
            for layer in layers.modules() if isinstance(layers, nn.Module) else ():
                yield id(layer), "it is an adapter, which is trained"
        for kind, children in _READERS:
            if isinstance(module, kind):
                for of_kind in children:
                    if hasattr(module, of_kind):
                        yield id(getattr(module, of_kind)), f"{kind.__name__} reads its weight"
        for name, child in module.named_children():
            if is_linear(child) and is_only_read(type(module), name):
                yield id(child), f"{type(module).__name__} reads its weight"


def _tied(
    key: int,
    module: nn.Module,
    holders: dict[object, list[int]],
    names: dict[int, list[str]],
    ties: Mapping[str, str],
) -> str | None:
    """Why a layer cannot be packed alone: ``ties`` are names of weights that will be one."""
    for one, other in (*ties.items(), *((b, a) for a, b in ties.items())):
        if one.removesuffix(".weight") in names[key]:
            return f"{TIED} {other.removesuffix('.weight')}"
    for _, parameter in _weights(module):
        others = [other for other in holders[identity(parameter)] if other != key]
        if others:
            return f"{TIED} {names[others[0]][0]}"
    return None


def _not_linear(module: nn.Module, parameter: Tensor, named: str | None) -> Left:
    kind = type(module)
    of_torch = kind.__module__.partition(".")[0] == "torch"
    experts = parameter.dim() == 3 and min(parameter.shape) > 1 and not of_torch
    matrices = parameter.shape[0] if experts else 1
    reason = f"a parameter of {kind.__name__}, no linear layer"
    if experts:
        reason = NOT_PACKED
    return Left(named or reason, parameter.numel(), matrices)


def _mixture_objection(module: nn.Module, layout: Layout | str, loaded: bool) -> str | None:
    """Why experts in parameters of three dimensions cannot be packed; None if they can."""
    if isinstance(layout, str):
        return f"{NOT_PACKED}: {layout}"
    if "forward" in vars(module) and not hasattr(module, "_hf_hook"):
        return "its forward has been replaced"
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        if type(parameter) is not nn.Parameter or not parameter.is_floating_point():
            return f"its {name} is a {parameter.dtype} {type(parameter).__name__}"
        if parameter.is_meta and loaded:
            return f"its {name} is on the meta device: offloaded, or not loaded"
    if any(getattr(module, hooks, None) for hooks in STATE_HOOKS):
        return "it has hooks on its state_dict"
    return None


def called_as_linear(kind: type[nn.Module]) -> bool:
    """Whether a module of this class is called, and computes what its base class does."""
    if kind is read_by_parent:
        return False
    if f"{kind.__module__}.{kind.__qualname__}" in _EQUIVALENT:
        return True
    for base in kind.__mro__:
        if base in (nn.Linear, conv1d()):
            return True
        if not vars(base).keys() <= _HARMLESS:
            return False
    return False


def _objection(module: nn.Module, loaded: bool) -> str | None:
    """Why a linear layer cannot be packed as it is now; None if it can."""
    kind = type(module)
    if isinstance(module, LazyModuleMixin):
        return f"{kind.__name__} has not run yet, so its weight has no shape"
    if hasattr(module, "parametrizations"):
        return "its weight is parametrized"
    if not called_as_linear(kind):
        return f"{kind.__name__} is more than nn.Linear"
    if "forward" in vars(module) and not hasattr(module, "_hf_hook"):
        return "its forward has been replaced"
    more = [*module._parameters, *module._buffers, *module._modules]
    more = [name for name in more if name not in ("weight", "bias")]
    weight = module._parameters.get("weight")
    if more or weight is None:  # torch.nn.utils.weight_norm, spectral_norm, prune
        return f"its weight is computed from {', '.join(more) or 'elsewhere'}"
    if type(weight) is not nn.Parameter:
        return f"its weight is a {type(weight).__name__}"
    if weight.dim() != 2 or not weight.is_floating_point():
        return f"its weight is {weight.dtype} {list(weight.shape)}, not a floating-point matrix"
    if weight.is_meta and loaded:
        return "its weight is on the meta device: offloaded, or not loaded"
    if any(getattr(module, hooks, None) for hooks in STATE_HOOKS):
        return "it has hooks on its state_dict"
    return None
