# SPDX-License-Identifier: Apache-2.0
"""The matmuls of a language model, from its Hugging Face ``config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ladder import bounds
from ladder.errors import CheckpointError, Unsupported

#: Model types whose MLP has no gate, so two matmuls instead of three.
_UNGATED = {"bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj",
            "opt", "phi", "starcoder2"}  # fmt: skip


class Matmul(NamedTuple):
    """One distinct matmul of a model and what uses it."""

    names: list[str]  #: "q_proj", ...
    uses: int  #: how many the model runs for one token
    n: int
    k: int
    heads: int = 0  #: attention heads; 0 for a projection
    groups: int = 0  #: heads of keys and values


class Model(NamedTuple):
    """Distinct matmuls, most bytes of weight first, and the format that the weights have."""

    name: str
    matmuls: list[Matmul]
    weight: str  #: tType of the projections as stored
    activation: str


def read_model(folder: Path) -> Model:
    """Read ``config.json`` of ``folder``. Of experts, as many are counted as one token uses: the
    least that any number of tokens can do with.

    Raises:
        FileNotFoundError: no such file.
        CheckpointError: it lacks a size that a decoder has; the message names the key.
        Unsupported: its attention is not made of q, k, v and o projections.
    """
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    config = {**config, **(config.get("text_config") or {})}

    if config.get("kv_lora_rank"):
        raise Unsupported(f"{path} has latent attention (kv_lora_rank), which is not modelled")

    def size(*keys: str, default: int | None = None) -> int:
        for key in keys:
            value = config.get(key)
            if value is None:
                continue
            if not isinstance(value, int) or value < 1:
                raise CheckpointError(f"{key} of {path} is {value!r}, not a positive integer")
            return value
        if default is None:
            raise CheckpointError(f"{path} has no {keys[0]}")
        return default

    hidden = size("hidden_size", "n_embd", "d_model")
    layers = size("num_hidden_layers", "n_layer", "num_layers")
    heads = size("num_attention_heads", "n_head")
    groups = size("num_key_value_heads", default=heads)
    head = size("head_dim", default=max(hidden // heads, 1))
    inner = size("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
    vocabulary = size("vocab_size")
    uses: dict[tuple[int, int], tuple[list[str], int]] = {}

    def use(name: str, n: int, k: int, count: int) -> None:
        names, before = uses.setdefault((n, k), ([], 0))
        names.append(name)
        uses[n, k] = (names, before + count)

    use("q_proj", heads * head, hidden, layers)
    use("k_proj", groups * head, hidden, layers)
    use("v_proj", groups * head, hidden, layers)
    use("o_proj", hidden, heads * head, layers)
    gated = config.get("model_type") not in _UNGATED
    experts = size("num_experts", "num_local_experts", "n_routed_experts", default=0) or 0
    if experts:
        active = size("num_experts_per_tok", default=1) * layers
        inner = size("moe_intermediate_size", default=inner)
        use("router", experts, hidden, layers)
    else:
        active = layers
    for name in ("gate_proj", "up_proj") if gated else ("up_proj",):
        use(name, inner, hidden, active)
    use("down_proj", hidden, inner, active)
    use("lm_head", vocabulary, hidden, 1)
    matmuls = [Matmul(names, count, n, k) for (n, k), (names, count) in uses.items()]
    matmuls.sort(key=lambda each: -each.n * each.k * each.uses)
    matmuls.append(Matmul(["q kT"], layers, 0, head, heads, groups))
    matmuls.append(Matmul(["p v"], layers, head, 0, heads, groups))
    return Model(_name(path, config), matmuls, _weight(config), _activation(config))


def _name(path: Path, config: dict[str, Any]) -> str:
    given = config.get("_name_or_path")
    return Path(given).name if given else path.absolute().parent.name


def _activation(config: dict[str, Any]) -> str:
    given = config.get("dtype") or config.get("torch_dtype") or "float16"
    return given if given in ("float16", "bfloat16", "float32") else "float16"


def _weight(config: dict[str, Any]) -> str:
    """The stored format, where the configuration says so; else that of the activations."""
    quantisation = config.get("quantization_config") or {}
    bits, group = quantisation.get("bits"), quantisation.get("group_size")
    if not isinstance(bits, int) or not 1 <= bits <= 8:
        return _activation(config)
    grouped = isinstance(group, int) and group > 0
    return f"uint{bits},{f'group={group}' if grouped else 'channel'},scale=float16"


def einsum_of(
    matmul: Matmul, m: int, context: int, *, weight: str, activation: str, head: str | None = None
) -> bounds.Einsum:
    """The Einsum for ``m`` tokens. Attention reads ``context`` keys of one sequence, in the format
    of the activations; ``lm_head`` and routers take ``head``, which quantisers leave alone."""
    if matmul.heads:
        n, k = matmul.n or context, matmul.k or context
        return bounds.grouped_matmul(
            matmul.heads, matmul.groups, m, n, k, a=activation, w=activation, c=activation
        )
    kept = head or activation
    stored = kept if matmul.names[0] in ("lm_head", "router") else weight
    return bounds.matmul(m, matmul.n, matmul.k, a=activation, w=stored, c=activation)
