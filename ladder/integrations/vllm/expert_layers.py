# SPDX-License-Identifier: Apache-2.0
"""What vLLM's layers of experts compute, and how they are given their tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.serving.experts import DOWN, GATE_UP, STEMS
from ladder.ops.gating import SWIGLU_OAI, Gating

_log = logging.getLogger("vllm.ladder")
#: Functions of the gate, by vLLM's names.
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}


def gating_of(moe: Any, prefix: str) -> Gating:
    """What vLLM's layer computes between its two products.

    Raises:
        Unsupported: ladder has no such function; the message names it.
    """
    name = str(getattr(moe.activation, "value", moe.activation))
    limit, alpha, beta = (
        getattr(moe, f"swiglu_{each}", None) for each in ("limit", "alpha", "beta")
    )
    if name in _ACTIVATIONS and (limit is None or name == "silu"):
        return Gating(_ACTIVATIONS[name], limit)
    if name == "swigluoai":  # vLLM's kernels read neither limit nor alpha
        return Gating(SWIGLU_OAI, 7.0)
    if name == "swigluoai_uninterleave" and limit is not None and beta == 1:
        return Gating(SWIGLU_OAI, limit, 1.0 if alpha is None else alpha)
    raise Unsupported(
        f"{prefix} has packed experts with activation {name} (limit {limit}, alpha {alpha}, beta "
        f"{beta}), which ladder does not have"
    )


def join_rows(router: Any) -> None:
    """Have vLLM's ``router`` read logits whose rows lie one behind the other, whatever it is given.

    Its kernels take each row to begin where the one before ends. If the number of experts is no
    multiple of 8, torch.compile may pad the product that makes the logits, and the op that holds
    the router gets a view of padded rows in vLLM up to 0.32. Doing it again is harmless.
    """
    if "select_experts" in vars(router):
        return
    theirs = router.select_experts

    def select_experts(
        hidden_states: Tensor, router_logits: Tensor, *rest: Any, **more: Any
    ) -> Any:
        return theirs(hidden_states, router_logits.contiguous(), *rest, **more)

    router.select_experts = select_experts


def loader(theirs: Callable[..., Iterable[str]]) -> Callable[..., Iterable[str]]:
    """``load_weights`` of a layer of packed experts: vLLM's own knows no stacks of ladder folders,
    and looks at all names of all experts for each tensor. ``theirs`` has what is left."""

    def load_weights(layer: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> Iterable[str]:
        shards = {
            layer.ckpt_gate_proj_name: "w1",
            layer.ckpt_up_proj_name: "w3",
            layer.ckpt_down_proj_name: "w2",
        }
        of: tuple[Any, ...]
        for name, tensor in weights:
            module, _, part = name.rpartition(".")
            expert, _, last = module.partition(".")
            if module in STEMS:
                stem, of = STEMS[module], ()
            elif expert.isdecimal() and last in shards:
                stem = STEMS[DOWN if shards[last] == "w2" else GATE_UP]
                of = (shards[last], int(expert))
            else:
                yield from theirs(layer, [(name, tensor)])
                continue
            parameter = getattr(layer, f"{stem}_{part}", None)
            if parameter is not None:
                if parameter.weight_loader(parameter, tensor, name, *of, return_success=True):
                    yield f"{stem}_{part}"
            elif part == "bias":  # AutoGPTQ writes zeros for layers without one
                if tensor.any():
                    where = layer.layer_name
                    _log.warning("%s.%s is dropped: vLLM's model has no bias", where, name)
            else:
                raise CheckpointError(
                    f"{layer.layer_name}.{name} is in the files, and none of the layer's parts"
                )

    return load_weights
