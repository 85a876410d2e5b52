# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism as transformers plans it: which part of a packed layer this process holds.

transformers replaces, by a module's plan, the forward of the module, and cuts its parameters into
DTensors of which each process then reads its own part. Packed layers have a forward of their own
for that; while loading, those of their parts that are cut evenly are parameters, so that no process
reads what it does not hold.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from ladder.errors import Unsupported
from ladder.integrations.folders.loading import LoadingLinear
from ladder.nn.parallel import ParallelLinear, Shard, choose, whole_weight

#: Of a style: along what the weight is cut, whether x arrives split, whether y is to be split.
_CUT: dict[str, tuple[Any, bool, bool]] = {
    "colwise": ("rows", False, True),
    "colwise_gather_output": ("rows", False, False),
    "colwise_rep": ("rows", False, False),
    "rowwise": ("columns", True, False),
    "rowwise_rep": ("columns", False, False),
    "rowwise_split_input": ("columns", False, False),
}
#: Styles under which each process holds the whole weight; transformers' own forward serves them.
_WHOLE = ("mla_kv_a_proj", "replicate", "replicated_with_grad_allreduce")
#: Other ways to use several processes, by the names of their sizes.
_OTHERS = ("ep_size", "fsdp_size", "dp_replicate_size", "pp_size")


@dataclass(frozen=True)
class Plan:
    """The tensor parallelism that a model is to be loaded with."""

    rank: int
    size: int
    styles: dict[str, str]  #: by name of module, layers' numbers as "*"

    def wanted(self, name: str) -> Shard | None:
        """This process's part of the packed layer ``name``, wherever its weight may be cut; None
        where the process holds all of it.

        Raises:
            Unsupported: a style that there is none for with packed weights.
        """
        style = self._style(name)
        if style is None or style in _WHOLE:
            return None
        if style not in _CUT:
            raise Unsupported(
                f'{name} has the style "{style}" in tp_plan; packed weights have '
                f"{', '.join((*_CUT, *_WHOLE))}"
            )
        along, x_split, y_split = _CUT[style]
        return Shard(self.rank, self.size, along, x_split, y_split)

    def _style(self, name: str) -> str | None:
        return self.styles.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))

    def check_applied(self, module: LoadingLinear, name: str) -> None:
        """Remove transformers' forward from ``module``, which is cut and has its own.

        Raises:
            Unsupported: transformers has cut what this plan leaves whole, or the reverse.
        """
        style = self._style(name)
        if style in _WHOLE:
            return
        if (module.__dict__.pop("forward", None) is None) != (style is None):
            raise Unsupported(
                f'{name} has the style "{style}" in the tp_plan that ladder found, but another in '
                f"transformers {version('transformers')}; load without a tp_plan of your own"
            )


def group_of(model: Any, plan: Plan | None) -> Any:
    """The processes over which transformers has distributed ``model``, None where it has not.

    Raises:
        Unsupported: not those of ``plan``.
    """
    size = getattr(model, "_tp_size", None) or 1
    if plan is None and size == 1:
        return None
    manager = getattr(model, "_mesh_manager", None)
    mesh: Any = getattr(model, "_device_mesh", None) if manager is None else manager.get_mesh("tp")
    found = (1, 0) if mesh is None else (mesh.size(), mesh.get_local_rank())
    planned = (1, 0) if plan is None else (plan.size, plan.rank)
    if mesh is None or found != planned:
        raise Unsupported(
            f"transformers distributed the model to rank {found[1]} of {found[0]}, but packed "
            f"weights were cut for rank {planned[1]} of {planned[0]}; load with tp_plan or "
            "DistributedConfig(tp_size=...) of transformers 5.17 or later, and no device_mesh"
        )
    return mesh.get_group()


def read_plan(model: Any, *, pre_quantized: bool) -> Plan | None:
    """The plan by which transformers is about to distribute ``model``, None without one.

    Raises:
        Unsupported: packed weights cannot be distributed so.
    """
    wanted = getattr(model.config, "distributed_config", None)
    sizes = {name: getattr(wanted, name, None) or 1 for name in ("tp_size", *_OTHERS)}
    tp_size = sizes.pop("tp_size")
    if sizes["ep_size"] > 1 or (tp_size > 1 and getattr(wanted, "enable_expert_parallel", False)):
        raise Unsupported(
            f"ep_size is {max(sizes['ep_size'], tp_size)}: expert parallelism does not work with "
            "weights packed by ladder yet; load without it, with tp_plan or device_map say"
        )
    if tp_size == 1:
        return None
    for name, size in sizes.items():
        if size > 1:
            raise Unsupported(
                f"tp_size is {tp_size} and {name} {size}: weights packed by ladder take tensor "
                "parallelism on its own"
            )
    if not pre_quantized:
        raise Unsupported(
            f"tp_size is {tp_size}: a model that is cut over processes cannot be quantised while "
            "it is loaded; save the quantised model first, and load that"
        )
    if importlib.util.find_spec("transformers.distributed.tensor_parallel") is None:
        raise Unsupported(f"tp_size is {tp_size}: tensor parallelism needs transformers 5.17")
    return Plan(torch.distributed.get_rank(), tp_size, _styles(model, wanted.tp_plan))


def _styles(model: Any, override: Any) -> dict[str, str]:
    if not isinstance(override, dict):
        return dict(model._tp_plan)
    # Since transformers resolves plans itself, a user's plan adds to the model's, unless empty.
    adds = hasattr(model, "_resolve_parallel_plans") and override
    return {**(model._tp_plan if adds else {}), **override}


def prepare(module: LoadingLinear, name: str, plan: Plan) -> None:
    """Have ``module``, on the meta device, keep this process's part of what it is given.

    transformers cuts parameters of two dimensions as it would cut a dense weight. Where the weight
    is cut along the same dimension, in equal shares, its parts are parameters for as long as it is
    loaded; all else is read whole.

    Raises:
        Unsupported: as Plan.wanted, and for a weight that cannot be cut.
    """
    wanted = plan.wanted(name)
    if wanted is None:
        return
    whole = module.packed_weight
    shard = choose(name, whole, wanted)
    module.expect_part(shard, whole)
    if shard.along != wanted.along:
        return
    dimension = 0 if shard.along == "rows" else 1
    for part, own in shard.of(whole).tensors().items():
        full = getattr(whole, part).shape
        # The last words of quantised zeros hold fewer codes, so parts of them are packed anew.
        repacked = part == "zeros" and whole.type.zero == "quantized" and dimension == 1
        if len(full) == 2 and own.shape[dimension] * shard.size == full[dimension] and not repacked:
            parameter = nn.Parameter(module._buffers.pop(part), requires_grad=False)
            module.register_parameter(part, parameter)


def gathered_state(model: Any) -> dict[str, Any] | None:
    """``model.state_dict()`` with the packed weights whole in the first process, for saving; None
    where nothing is cut. A collective: every process has to call it."""
    layers = {n: m for n, m in model.named_modules() if isinstance(m, ParallelLinear)}
    if not layers:
        return None
    state: dict[str, Any] = model.state_dict()
    for name, module in layers.items():
        whole = whole_weight(module)
        if whole is not None:
            weight, bias = whole
            state |= {f"{name}.{part}": tensor for part, tensor in weight.tensors().items()}
            if bias is not None:
                state[f"{name}.bias"] = bias
    # transformers tells tied weights by their memory, and gathers each into memory of its own.
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, source in getattr(model, "all_tied_weights_keys", {}).items():
        if name in parameters and parameters[name] is parameters.get(source):
            state.pop(name, None)
    return state
