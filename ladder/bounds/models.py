# SPDX-License-Identifier: Apache-2.0
"""The matmuls of a language model, from its Hugging Face ``config.json``."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from ladder import bounds
from ladder.errors import CheckpointError, Unsupported
from ladder.types import parse

#: Model types whose MLP has no gate, so two matmuls instead of three.
_UNGATED = {"bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj",
            "opt", "phi", "starcoder2"}  # fmt: skip
_EXPERT = re.compile(r"(.*\.experts)\.\d+\.(.*)")


class Matmul(NamedTuple):
    """One distinct matmul of a model and what uses it."""

    names: list[str]  #: "q_proj", ...
    uses: int  #: how many the model runs for one token
    n: int
    k: int
    heads: int = 0  #: attention heads; 0 for a projection
    groups: int = 0  #: heads of keys and values
    weight: str = ""  #: tType as stored; "": that of the model, or of its activations


class Model(NamedTuple):
    """Distinct matmuls, most weights first, and the format that the weights have."""

    name: str
    matmuls: list[Matmul]
    weight: str  #: tType of the projections that have none of their own
    activation: str


def read_model(folder: Path, *, weight: str | None = None) -> Model:
    """Read ``config.json`` of ``folder`` and, of a quantised one that ladder reads, the headers of
    its tensors: there each matmul is of one type, as stored, and its names are the last parts of
    those of its modules. Of experts, as many are counted as one token uses: the least that any
    number of tokens can do with.

    Args:
        weight: the type of all projections, instead of what the folder has.
    Raises:
        FileNotFoundError: no such file.
        CheckpointError: it lacks a size that a decoder has, and the message names the key; or its
            tensors are damaged.
        Unsupported: its attention is not made of q, k, v and o projections; or ladder does not read
            its ``quant_method``, and there is no ``weight``.
    """
    from ladder.checkpoints.info import EXPERTS_PER_TOKEN

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
        active = size(*EXPERTS_PER_TOKEN, default=1) * layers
        inner = size("moe_intermediate_size", default=inner)
        use("router", experts, hidden, layers)
    else:
        active = layers
    for name in ("gate_proj", "up_proj") if gated else ("up_proj",):
        use(name, inner, hidden, active)
    use("down_proj", hidden, inner, active)
    use("lm_head", vocabulary, hidden, 1)
    matmuls = [Matmul(names, count, n, k) for (n, k), (names, count) in uses.items()]
    if weight is None and _has_stored_types(path.parent, config):
        active = size(*EXPERTS_PER_TOKEN, "top_k", default=1)
        matmuls = _stored(path.parent, active, (vocabulary, hidden))
    matmuls.sort(key=lambda each: -each.n * each.k * each.uses)
    matmuls.append(Matmul(["q kT"], layers, 0, head, heads, groups))
    matmuls.append(Matmul(["p v"], layers, head, 0, heads, groups))
    text = weight or _weight(path, config, matmuls)
    return Model(_name(path, config), matmuls, text, _activation(config))


def _quantization(config: dict[str, Any]) -> tuple[Any, str | None]:
    """How config.json says that a folder is quantised, and by which method, as far as it says."""
    from ladder.checkpoints.mlx_config import QUANT_METHOD, settings_of

    if (own := settings_of(config)) is not None:
        return dict(own), QUANT_METHOD
    given = config.get("quantization_config")
    return given, given.get("quant_method") if isinstance(given, dict) else None


def _has_stored_types(folder: Path, config: dict[str, Any]) -> bool:
    """Whether headers say how modules are quantised. Of GPTQ and AWQ config.json alone will do."""
    from ladder.checkpoints.hqq_files import written_by_hqq
    from ladder.checkpoints.source import FALLBACKS, METHODS

    given, method = _quantization(config)
    if method == "ladder" or (given is None and written_by_hqq(folder)):
        return True
    known = method in METHODS or any((folder / name).is_file() for name in FALLBACKS)
    return known and any(next(folder.glob(f"*.{kind}"), None) for kind in ("safetensors", "bin"))


def _stored(folder: Path, active: int, head: tuple[int, int]) -> list[Matmul]:
    """The matrices of a quantised folder, those of one shape and type together.

    Args:
        active: experts that one token uses; of unlike ones, those with the fewest bytes.
        head: [N, K] of an ``lm_head`` that no tensor is of, because it is tied to the embedding.
    """
    from ladder.checkpoints.info import matrices

    experts: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    uses: dict[tuple[int, int, str], tuple[list[str], int]] = {}

    def use(row: dict[str, Any], count: int) -> None:
        names, before = uses.setdefault((row["n"], row["k"], row["type"]), ([], 0))
        last = row["name"].split(".")[-1]
        if last not in names:
            names.append(last)
        uses[row["n"], row["k"], row["type"]] = (names, before + count)

    found = matrices(folder)
    for row in found:
        expert = _EXPERT.fullmatch(row["name"])
        if expert:
            experts[expert[1], expert[2]].append(row)
        else:
            use(row, min(active, row.get("experts", 1)))
    for rows in experts.values():
        for row in sorted(rows, key=lambda each: each["bytes"])[:active]:
            use(row, 1)
    matmuls = [
        Matmul(names, count, n, k, weight=text) for (n, k, text), (names, count) in uses.items()
    ]
    if not any("lm_head" in each.names for each in matmuls):
        matmuls.append(Matmul(["lm_head"], 1, *head))
    return matmuls


def _name(path: Path, config: dict[str, Any]) -> str:
    given = config.get("_name_or_path")
    return Path(given).name if given else path.absolute().parent.name


def _activation(config: dict[str, Any]) -> str:
    given = config.get("dtype") or config.get("torch_dtype") or "float16"
    return given if given in ("float16", "bfloat16", "float32") else "float16"


def _weight(path: Path, config: dict[str, Any], matmuls: list[Matmul]) -> str:
    """The stored format, where the configuration says so; else that of the activations."""
    given, method = _quantization(config)
    if not isinstance(given, dict):
        return _activation(config)
    from ladder.checkpoints.source import METHODS

    method = method or "gptq"
    if method not in (*METHODS, "ladder"):
        raise Unsupported(
            f'{path} has quant_method "{method}", which ladder does not read: say with --w which '
            "format the weights have"
        )
    if method == "ladder":
        return str(parse(given["weight_type"]))
    if method not in ("awq", "gptq"):
        stored = (each.weight for each in matmuls if each.weight and "lm_head" not in each.names)
        if (most := next(stored, None)) is None:
            raise Unsupported(
                f"{path} is of {method} without its tensors: say with --w which format the weights "
                "have"
            )
        return most
    bits = given.get("bits", given.get("w_bit"))
    group = given.get("group_size", given.get("q_group_size"))
    if not isinstance(bits, int) or not 1 <= bits <= 8:
        raise CheckpointError(f"bits of {path} is {bits!r}, not from 1 to 8")
    grouped = isinstance(group, int) and group > 0
    zero = "midpoint" if given.get("sym", True) and not given.get("zero_point") else "quantized"
    block = f"group={group}" if grouped else "channel"
    return str(parse(f"uint{bits},{block},scale=float16,zero={zero}"))


def einsum_of(
    matmul: Matmul, m: int, context: int, *, weight: str, activation: str
) -> bounds.Einsum:
    """The Einsum for ``m`` tokens. Attention reads ``context`` keys of one sequence, in the format
    of the activations."""
    if matmul.heads:
        n, k = matmul.n or context, matmul.k or context
        return bounds.grouped_matmul(
            matmul.heads, matmul.groups, m, n, k, a=activation, w=activation, c=activation
        )
    stored = weight_of(matmul, weight=weight, activation=activation)
    return bounds.matmul(m, matmul.n, matmul.k, a=activation, w=stored, c=activation)


def weight_of(matmul: Matmul, *, weight: str, activation: str) -> str:
    """The format of its weight, or of the keys and values: what is stored, else ``weight``, else
    for ``lm_head`` and routers, which quantisers leave alone, ``activation``."""
    if matmul.heads or (not matmul.weight and matmul.names[0] in ("lm_head", "router")):
        return activation
    return matmul.weight or weight
