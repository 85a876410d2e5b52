# SPDX-License-Identifier: Apache-2.0
"""A block of a LLaMA as a checkpoint stores it, and as vLLM's own layer classes load and run it.

Importing this module imports nothing of vLLM.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from drawn import exact_weight, formula, generator
from safetensors.torch import save_file
from torch import Tensor, nn

from ladder import Weight
from ladder.checkpoints.folder import StoredConfig

HIDDEN, HEAD, HEADS, KV_HEADS, INTERMEDIATE, VOCABULARY = 256, 64, 4, 2, 512, 300

#: The package of vLLM's layer classes.
VLLM = "vllm.model_executor.layers"

#: [N, K] of each module of a checkpoint.
SHAPES = {
    "q_proj": (HEADS * HEAD, HIDDEN),
    "k_proj": (KV_HEADS * HEAD, HIDDEN),
    "v_proj": (KV_HEADS * HEAD, HIDDEN),
    "o_proj": (HIDDEN, HEADS * HEAD),
    "gate_proj": (INTERMEDIATE, HIDDEN),
    "up_proj": (INTERMEDIATE, HIDDEN),
    "down_proj": (HIDDEN, INTERMEDIATE),
    "router": (HIDDEN, HIDDEN),
    "kv_b_proj": (INTERMEDIATE, HIDDEN),
    "in_proj": (INTERMEDIATE, HIDDEN),
    "lm_head": (VOCABULARY, HIDDEN),
    "embed_tokens": (VOCABULARY, HIDDEN),
}
#: vLLM's fused layers: the modules of the checkpoint, and the shard that each is to vLLM.
FUSED = {
    "qkv_proj": {"q_proj": "q", "k_proj": "k", "v_proj": "v"},
    "gate_up_proj": {"gate_proj": 0, "up_proj": 1},
}


def parts_of(layer: str) -> tuple[str, ...]:
    """Modules of the checkpoint that are one layer in vLLM."""
    return tuple(FUSED.get(layer, {layer: None}))


def prefix(name: str) -> str:
    """The full name of a module."""
    if name == "lm_head":
        return name
    if name == "embed_tokens":
        return f"model.{name}"
    attention = ("qkv_proj", "o_proj", "kv_b_proj", *FUSED["qkv_proj"])
    kind = "self_attn" if name in attention else "mlp"
    return f"model.layers.0.{kind}.{name}"


@dataclass
class Stored:
    """A checkpoint: packed weights or dense ones [N, K], and biases [N], by short name."""

    weights: dict[str, Weight | Tensor]
    biases: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def drawn(
        cls,
        types: Mapping[str, str],
        *,
        bias: bool = False,
        act_order: bool = False,
        seed: int = 0,
    ) -> Stored:
        """Random weights whose products with small integers are exact, of these tTypes."""
        stored = cls({})
        for at, (name, type) in enumerate(types.items()):
            n, k = SHAPES[name]
            if type == "dense":
                weight = torch.randint(-4, 5, (n, k), generator=generator(seed + at)).float()
            else:
                weight = exact_weight(type, n, k, act_order=act_order, seed=seed + at)
            stored.weights[name] = weight
            if bias:
                drawn = torch.randint(-8, 9, (n,), generator=generator(seed + 50 + at))
                stored.biases[name] = drawn.float()
        return stored

    def dense(self, name: str) -> Tensor:
        """[N, K] float64: the values of a weight, worked out apart from ladder's kernels."""
        weight = self.weights[name]
        return weight.double() if isinstance(weight, Tensor) else formula(weight)

    def tensors(self) -> dict[str, Tensor]:
        """What the checkpoint's files hold."""
        found = {f"{prefix(name)}.bias": bias for name, bias in self.biases.items()}
        for name, weight in self.weights.items():
            if isinstance(weight, Tensor):
                found[f"{prefix(name)}.weight"] = weight
            else:
                found |= {f"{prefix(name)}.{part}": t for part, t in weight.tensors().items()}
        return found

    def config(self) -> dict[str, Any]:
        """``quantization_config`` of config.json."""
        packed = {prefix(n): str(w.type) for n, w in self.weights.items() if isinstance(w, Weight)}
        dense = [prefix(n) for n, w in self.weights.items() if isinstance(w, Tensor)]
        return StoredConfig.describing(packed, dense).to_dict()


def write(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Path:
    """A model folder of these tensors and this ``quantization_config``."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"model_type": "llama", "hidden_size": HIDDEN, "quantization_config": dict(config)}
    (folder / "config.json").write_text(json.dumps(fields))
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def quantization(folder: Path, method: str = "ladder") -> Any:
    """vLLM's QuantizationConfig of a folder, made in the steps in which vLLM makes it."""
    from vllm.model_executor.layers.quantization import get_quantization_config

    stored = json.loads((folder / "config.json").read_text())["quantization_config"]
    config = get_quantization_config(method).from_config(stored)
    config.maybe_update_config(str(folder), hf_config=None, revision=None)
    config.packed_modules_mapping = {name: list(parts) for name, parts in FUSED.items()}
    return config


def make(
    name: str, config: Any, *, bias: bool = False, dtype: torch.dtype, layers: str = VLLM
) -> nn.Module:
    """The layer called ``name`` of the package ``layers``, without its weights."""
    linear = importlib.import_module(f"{layers}.linear")
    vocabulary = importlib.import_module(f"{layers}.vocab_parallel_embedding")
    common = dict(params_dtype=dtype, quant_config=config, prefix=prefix(name))
    if name == "qkv_proj":
        return linear.QKVParallelLinear(HIDDEN, HEAD, HEADS, KV_HEADS, bias=bias, **common)
    if name == "gate_up_proj":
        sizes = [INTERMEDIATE, INTERMEDIATE]
        return linear.MergedColumnParallelLinear(HIDDEN, sizes, bias=bias, **common)
    n, k = SHAPES[name]
    if name in ("o_proj", "down_proj"):
        alone = {} if layers == VLLM else {"reduce_results": False}
        return linear.RowParallelLinear(k, n, bias=bias, **alone, **common)
    if name == "router":
        return linear.ReplicatedLinear(k, n, bias=bias, **common)
    if name == "lm_head":
        return vocabulary.ParallelLMHead(n, k, bias=bias, **common)
    if name == "embed_tokens":
        return vocabulary.VocabParallelEmbedding(n, k, **common)
    return linear.ColumnParallelLinear(k, n, bias=bias, **common)


def load(layer: nn.Module, name: str, tensors: Mapping[str, Tensor], config: Any) -> None:
    """Give a layer its tensors as vLLM's models do in ``load_weights``: by name, shard by shard,
    without those that ``config`` drops, and without a bias that the layer has not."""
    parameters = dict(layer.named_parameters())
    drops = getattr(config, "get_checkpoint_weight_mapper", None)
    for module in parts_of(name):
        for full, tensor in tensors.items():
            owner, _, part = full.rpartition(".")
            if owner != prefix(module) or (part == "bias" and part not in parameters):
                continue
            if drops is not None and not drops().apply_list([full]):
                continue
            loader = getattr(parameters[part], "weight_loader", copy)
            shard = (FUSED[name][module],) if name in FUSED else ()
            loader(parameters[part], tensor, *shard)


def copy(parameter: Tensor, tensor: Tensor) -> None:
    """What engines do for a parameter without a loader of its own."""
    parameter.data.copy_(tensor)


def serve(
    name: str,
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    method: str = "ladder",
    bias: bool = False,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """vLLM's layer ``name`` of a folder, loaded and ready to run."""
    config = quantization(folder, method)
    layer = make(name, config, bias=bias, dtype=dtype)
    load(layer, name, tensors, config)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def run(layer: nn.Module, x: Tensor) -> Tensor:
    """What the layer computes; a head's logits."""
    if type(layer).__name__ == "ParallelLMHead":
        return layer.quant_method.apply(layer, x, bias=getattr(layer, "bias", None))
    y = layer(x)
    return y[0] if isinstance(y, tuple) else y


def activations(name: str, tokens: int = 3) -> Tensor:
    """[tokens, K] small integers for a layer."""
    k = SHAPES[parts_of(name)[0]][1]
    return torch.randint(-2, 3, (tokens, k), generator=generator(99)).float()


def product(stored: Stored, name: str, x: Tensor) -> list[Tensor]:
    """[tokens, N] float32 of each module of a layer: the dense product, exact on integers."""
    parts = []
    for module in parts_of(name):
        y = x.double() @ stored.dense(module).T
        parts.append(y + stored.biases[module].double() if module in stored.biases else y)
    return [part.float() for part in parts]


@contextlib.contextmanager
def rank(number: int, size: int, gathered: Tensor | None = None) -> Iterator[None]:
    """Layers made inside are those of one rank of tensor parallelism. Sums over ranks are left to
    the test; gathering a rank's columns gives ``gathered``."""
    from vllm.model_executor import parameter
    from vllm.model_executor.layers import linear, vocab_parallel_embedding

    from ladder.integrations.vllm import method

    def gather(own: Tensor, dim: int = -1) -> Tensor:
        assert dim in (-1, own.dim() - 1) and torch.equal(own, gathered.chunk(size, -1)[number])
        return gathered

    ours = {
        "get_tensor_model_parallel_rank": lambda: number,
        "get_tensor_model_parallel_world_size": lambda: size,
        "tensor_model_parallel_all_reduce": lambda y: y,
        "tensor_model_parallel_all_gather": gather,
    }
    with contextlib.ExitStack() as stack:
        for module in (linear, parameter, vocab_parallel_embedding, method):
            for name, function in ours.items():
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, function))
        yield
