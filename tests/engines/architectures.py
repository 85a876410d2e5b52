# SPDX-License-Identifier: Apache-2.0
"""Small models of other architectures, packed and with the same values dense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoint_oracle as oracle
import models
import torch
from torch import Tensor

_SIZES = {name: size for name, size in models.SIZES.items() if name != "head_dim"}
_LATENT = {
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 128,
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
#: By transformers' model_type, what is not as in models.SIZES, and how many packed layers the
#: engine's model has.
KINDS: dict[str, tuple[dict[str, Any], int]] = {
    # Latent attention; experts in stacks, which its loader in vLLM does not know.
    "deepseek_v3": (_LATENT | _EXPERTS | {
        "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "topk_method": "noaux_tc",
    }, 13),
    "gpt_oss": ({"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 64}, 6),
    # Layers that vLLM's models give no name, or one that no tensor has.
    "minicpm3": (_LATENT, 14),
    "falcon_h1": ({
        "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_ssm": 512, "mamba_d_state": 16,
    }, 12),
    # It does not say what it fuses.
    "stablelm": ({}, 8),
    # The gate of its shared expert has one row, and is dense in vLLM.
    "qwen2_moe": (_EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 128}, 10),
}  # fmt: skip


def dense(folder: Path, kind: str) -> Path:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**_SIZES | {"initializer_range": 0.12} | KINDS[kind][0])
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def published(source: Path, folder: Path) -> tuple[Path, Path]:
    """A gpt-oss whose experts are MXFP4, as the published folders have it, and the ladder folder of
    the same values."""
    ours = models.converted(source, folder / "ours", "mxfp4", skip=("self_attn", "lm_head"))
    config = oracle.MXFP4 | {"modules_to_not_convert": ["self_attn", "router", "lm_head"]}
    tensors = oracle.mxfp4_of(models.tensors_of(ours))
    theirs = models.write(source, folder / "theirs", tensors, {"quantization_config": config})
    return theirs, ours


def dequantised(source: Path, folder: Path) -> Path:
    """A dense folder of the values of a ladder folder, experts one by one where vLLM's loader of
    dense ones wants them so."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model.dequantize()
    model.save_pretrained(folder / "stacked")
    tensors = models.tensors_of(folder / "stacked")
    if model.config.model_type == "deepseek_v3":
        tensors = {n: t for name, tensor in tensors.items() for n, t in _apart(name, tensor)}
    return models.write(folder / "stacked", folder / "dense", tensors, {})


def _apart(name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    head, _, last = name.rpartition(".")
    if last == "gate_up_proj" and tensor.dim() == 3:
        parts = {"gate_proj": tensor.chunk(2, 1)[0], "up_proj": tensor.chunk(2, 1)[1]}
    elif last == "down_proj" and tensor.dim() == 3:
        parts = {last: tensor}
    else:
        return [(name, tensor)]
    return [
        (f"{head}.{expert}.{part}.weight", one.contiguous())
        for part, stack in parts.items()
        for expert, one in enumerate(stack)
    ]
