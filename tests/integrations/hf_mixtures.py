# SPDX-License-Identifier: Apache-2.0
"""Small mixtures of experts for the tests of this folder."""

from __future__ import annotations

import importlib

import torch
from hf_models import TINY

import ladder

#: Models of which the experts have each layout and each function between the products.
MODELS = {
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3Moe",
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "head_dim": 32},
    ),
    "gpt_oss": ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32}),
}
FIRST = "model.layers.0.mlp.experts"


def fresh(kind: str, **more: int):
    """A model with weights that matter: biases and experts are not near zero. ``more`` of its
    configuration is otherwise."""
    name, fields = MODELS[kind]
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**(TINY | fields | more))
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if "experts" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def experts_of(model) -> dict[str, ladder.Experts]:
    return {n: m for n, m in model.named_modules() if isinstance(m, ladder.Experts)}
