# SPDX-License-Identifier: Apache-2.0
"""Experts as a checkpoint stores them, in vLLM's own layers and loaders.

Importing this module imports nothing of vLLM.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import checkpoint_oracle as oracle
import foreign
import torch
from drawn import exact_weight, formula, generator
from safetensors.torch import save_file
from torch import Tensor, nn

from ladder import Experts, Weight
from ladder.checkpoints.folder import StoredConfig
from ladder.nn.stack import PackedStack
from ladder.ops.gating import Gating

EXPERTS, HIDDEN, INTERMEDIATE, TOP_K = 4, 128, 64, 2
PREFIX = "model.layers.0.mlp.experts"
SHAPES = {"gate_up": (2 * INTERMEDIATE, HIDDEN), "down": (HIDDEN, INTERMEDIATE)}


class Stacks:
    """Random experts of these tTypes whose products with small integers are exact."""

    def __init__(
        self, gate_up: str, down: str | None = None, *, bias=False, act_order=False, seed=0
    ):
        types = {"gate_up": gate_up, "down": down or gate_up}
        self.weights: dict[str, list[Weight]] = {}
        self.biases: dict[str, Tensor] = {}
        for at, (name, type) in enumerate(types.items()):
            n, k = SHAPES[name]
            self.weights[name] = [
                exact_weight(type, n, k, act_order=act_order, seed=seed + 100 * at + e)
                for e in range(EXPERTS)
            ]
            if bias:
                drawn = torch.randint(-8, 9, (EXPERTS, n), generator=generator(seed + at))
                self.biases[name] = drawn.float()

    def tensors(self) -> dict[str, Tensor]:
        """What the files hold: stacks."""
        found = {f"{PREFIX}.{name}.bias": bias for name, bias in self.biases.items()}
        for name, weights in self.weights.items():
            for part in weights[0].tensors():
                found[f"{PREFIX}.{name}.{part}"] = torch.stack([w.tensors()[part] for w in weights])
        return found

    def config(self) -> dict[str, Any]:
        types = {f"{PREFIX}.{name}": str(w[0].type) for name, w in self.weights.items()}
        return StoredConfig.describing(types, []).to_dict()

    def dense(self, name: str) -> list[Tensor]:
        """[N, K] float64 of each expert, worked out apart from ladder's kernels."""
        return [formula(weight) for weight in self.weights[name]]

    def module(self, **gating: Any) -> Experts:
        """The same experts as a module of ladder, in float32."""
        experts = Experts(EXPERTS, HIDDEN, INTERMEDIATE, dtype=torch.float32, **gating)
        for name, weights in self.weights.items():
            bias = bool(self.biases)
            stack = PackedStack(EXPERTS, *SHAPES[name], weights[0].type, bias, dtype=torch.float32)
            stack.set_weights(weights)
            if bias:
                stack.bias.data.copy_(self.biases[name])
            setattr(experts, name, stack)
        return experts


def write(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"model_type": "qwen3_moe", "quantization_config": dict(config)}
    (folder / "config.json").write_text(json.dumps(fields))
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Model(nn.Module):
    """A model of vLLM as far as experts go: they are found by name, by vLLM's own loader."""

    def __init__(
        self, folder: Path, method: str = "ladder", dtype=torch.float32, mapper=None, **options: Any
    ):
        super().__init__()
        from vllm.model_executor.layers import fused_moe
        from vllm.model_executor.layers.quantization import get_quantization_config

        stored = json.loads((folder / "config.json").read_text())["quantization_config"]
        config = get_quantization_config(method).from_config(stored)
        config.maybe_update_config(str(folder), hf_config=None, revision=None)
        if mapper is not None:
            config.apply_vllm_mapper(mapper)
        made = getattr(fused_moe, "FusedMoE", None) or fused_moe.FusedMoEFactory
        runner = made(
            num_experts=EXPERTS, top_k=TOP_K, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE,
            params_dtype=dtype, quant_config=config, prefix=PREFIX, **options,
        )  # fmt: skip
        at: nn.Module = self
        *path, last = PREFIX.split(".")
        for name in path:
            at.add_module(name, nn.Module())
            at = getattr(at, name)
        at.add_module(last, runner)
        self.__dict__["experts"] = runner.routed_experts

    def load(self, tensors: Mapping[str, Tensor]) -> set[str]:
        from vllm.model_executor.models.utils import AutoWeightsLoader

        return AutoWeightsLoader(self).load_weights(iter(tensors.items()))

    def finish(self) -> None:
        self.experts.quant_method.process_weights_after_loading(self.experts)

    def forward(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        return self.experts.forward_modular(x, weights, index)


def serve(folder: Path, tensors: Mapping[str, Tensor], method: str = "ladder", **options) -> Model:
    """vLLM's experts of a folder, loaded and ready to run."""
    from vllm.config import get_current_vllm_config

    get_current_vllm_config().compilation_config.static_forward_context.clear()
    model = Model(folder, method, **options)
    model.load(tensors)
    model.finish()
    return model


def routed(tokens: int = 5, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Activations [T, H], experts [T, k] int32 and weights [T, k] of tokens."""
    drawn = generator(7)
    x = torch.randint(-2, 3, (tokens, HIDDEN), generator=drawn).to(dtype) / 8
    index = torch.rand(tokens, EXPERTS, generator=drawn).topk(TOP_K).indices.to(torch.int32)
    return x, index, torch.rand(tokens, TOP_K, generator=drawn)


@contextlib.contextmanager
def rank(number: int, size: int, *, expert_parallel: bool = False) -> Iterator[None]:
    """Layers made inside are those of one rank; sums over ranks are left to the test."""
    from vllm.model_executor.layers.fused_moe import config as config_module
    from vllm.model_executor.layers.fused_moe import layer as layer_module

    kind = config_module.FusedMoEParallelConfig
    alone = kind.make_no_parallel()
    own = dict(tp_size=size, tp_rank=number)
    if expert_parallel:
        own = dict(ep_size=size, ep_rank=number, use_ep=True)
    cut = dataclasses.replace(alone, **own)
    with mock.patch.object(layer_module, "make_parallel_config", lambda **_: cut):
        yield


class Others:
    """Experts of another package, one linear module for each weight, as tests/serving/foreign.py
    packs them."""

    def __init__(self, kind: Callable[..., foreign.Foreign], **how: Any) -> None:
        names = {
            f"{PREFIX}.{e}.{last}": shape
            for e in range(EXPERTS)
            for last, shape in (
                ("gate_proj", (INTERMEDIATE, HIDDEN)),
                ("up_proj", (INTERMEDIATE, HIDDEN)),
                ("down_proj", (HIDDEN, INTERMEDIATE)),
            )
        }
        shapes = {name.rpartition(".")[2]: shape for name, shape in names.items()}
        with mock.patch.object(foreign, "SHAPES", shapes):
            self.stored = kind(names, **how)

    def tensors(self) -> dict[str, Tensor]:
        return oracle.tensors_of(self.stored.layers)

    def config(self) -> dict[str, Any]:
        return self.stored.settings

    def dense(self, name: str) -> list[Tensor]:
        parts = ("gate_proj", "up_proj") if name == "gate_up" else ("down_proj",)
        return [
            torch.cat([self.stored.dense(f"{PREFIX}.{e}.{part}") for part in parts])
            for e in range(EXPERTS)
        ]


def expected(
    stored: Stacks | Others, x: Tensor, index: Tensor, weights: Tensor, gating: Gating | None = None
) -> Tensor:
    """[T, H] float64, worked out token by token on dense values."""
    gating = gating or Gating()
    first, second = stored.dense("gate_up"), stored.dense("down")
    biases = getattr(stored, "biases", {})
    y = torch.zeros(x.shape[0], HIDDEN, dtype=torch.float64)
    for t, (experts, given) in enumerate(zip(index.tolist(), weights.double(), strict=True)):
        for e, weight in zip(experts, given, strict=True):
            z = first[e] @ x[t].double()
            z = z + biases["gate_up"][e].double() if biases else z
            z = second[e] @ gating(z.float()).double()
            y[t] += weight * (z + biases["down"][e].double() if biases else z)
    return y


def served(stored: Stacks | Others, folder: Path, method: str = "ladder", **options: Any) -> Model:
    """vLLM's experts of what is stored, by way of ``folder``."""
    tensors = stored.tensors()
    return serve(write(folder, tensors, stored.config()), tensors, method, **options)


def check(stored: Stacks | Others, model: Model, gating: Gating | None = None) -> None:
    """The experts compute what the dense values give."""
    x, index, weights = routed()
    wanted = expected(stored, x, index, weights, gating)
    assert (model(x, index, weights) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
