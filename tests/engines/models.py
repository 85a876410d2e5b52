# SPDX-License-Identifier: Apache-2.0
"""A two-layer LLaMA in every form that an engine is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_oracle as oracle
import foreign
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ladder import Weight
from ladder.checkpoints import repack
from ladder.checkpoints.convert import convert
from ladder.checkpoints.folder import StoredConfig
from ladder.weight import PARTS

SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
MODULES = {
    f"model.layers.{layer}.{kind}.{name}": name
    for layer in range(SIZES["num_hidden_layers"])
    for kind, names in (
        ("self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
        ("mlp", ("gate_proj", "up_proj", "down_proj")),
    )
    for name in names
}
#: vLLM's layers that hold them.
LAYERS = {
    module.rpartition(".")[0] + "." + {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up",
                                       "up": "gate_up"}.get(name[:-5], name[:-5]) + "_proj"
    for module, name in MODULES.items()
}  # fmt: skip


def dense(folder: Path) -> Path:
    """Random weights, far enough apart that greedy tokens do not hang on roundings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.12))
    model.save_pretrained(folder)
    return folder


#: Experts are vLLM's layers, too; where they are in its model.
EXPERTS = {"qwen3_moe": "mlp", "mixtral": "block_sparse_moe"}


def mixture_layers(kind: str) -> frozenset[str]:
    """vLLM's layers that hold the packed weights of :func:`mixture`."""
    found = {name for name in LAYERS if ".self_attn." in name}
    for layer in range(SIZES["num_hidden_layers"]):
        found.add(f"model.layers.{layer}.{EXPERTS[kind]}.experts.routed_experts")
    return frozenset(found)


def mixture(folder: Path, kind: str) -> Path:
    """A mixture of four experts, of which two have each token; as :func:`dense`. The seed is one
    with which no choice of an expert hangs on roundings to float16: the logits of the second and
    the third are 0.012 or more apart, for each token of the tests in each form."""
    from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3MoeConfig

    torch.manual_seed(15)
    own: dict[str, Any] = {"num_experts_per_tok": 2, "initializer_range": 0.12}
    if kind == "mixtral":
        config = MixtralConfig(**SIZES, **own, num_local_experts=4)
    else:
        wide = SIZES["intermediate_size"]
        config = Qwen3MoeConfig(
            **SIZES, **own, num_experts=4, moe_intermediate_size=wide, norm_topk_prob=True
        )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def mixture_from_others(
    dense_folder: Path, folder: Path, kind: Callable[..., foreign.Foreign], **how: Any
) -> tuple[Path, Path]:
    """The mixture with its experts as another package packs them, and a dense folder of the same
    values."""
    whole = tensors_of(dense_folder)
    names = [n.removesuffix(".weight") for n in whole if ".experts." in n]
    stored = kind(names, exponent=-6, **how)
    others = {n: t for n, t in whole.items() if n.removesuffix(".weight") not in names}
    theirs = write(dense_folder, folder / "theirs", others | oracle.tensors_of(stored.layers),
                   {"quantization_config": stored.settings})  # fmt: skip
    dense = {f"{name}.weight": stored.dense(name).float() for name in names}
    return theirs, write(dense_folder, folder / "ours", others | dense, {})


def converted(source: Path, folder: Path, type: str, **options: Any) -> Path:
    """The ladder folder of a dense one."""
    convert(source, folder, type, **options)
    return folder


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def write(source: Path, folder: Path, tensors: dict[str, Tensor], entries: dict[str, Any]) -> Path:
    """A folder with these tensors, and the config.json of ``source`` with these entries."""
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    config.pop("quantization_config", None)
    config.pop("transformers_weights", None)
    (folder / "config.json").write_text(json.dumps(config | entries))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def adapter(source: Path, folder: Path) -> Path:
    """A LoRA adapter, not zero, of every linear layer of the ladder folder ``source``."""
    import peft
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    names = sorted(set(MODULES.values()))
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=names))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    adapted.save_pretrained(folder)
    return folder


def reordered(source: Path, folder: Path) -> Path:
    """The ladder folder with the columns of its groups scattered: act-order."""
    tensors, config = tensors_of(source), json.loads((source / "config.json").read_text())
    torch.manual_seed(1)
    for module in MODULES:
        groups = tensors[f"{module}.scales"].shape[1]
        k = SIZES["intermediate_size" if module.endswith("down_proj") else "hidden_size"]
        columns = torch.arange(k) // (k // groups)
        tensors[f"{module}.g_idx"] = columns[torch.randperm(k)].to(torch.int32)
    kept = {key: config[key] for key in ("quantization_config", "transformers_weights")}
    return write(source, folder, tensors, kept)


def mixed(sources: dict[str, Path], dense_folder: Path, folder: Path) -> Path:
    """A ladder folder whose modules come from others by their last name, by default from that of
    ``""``; those of None are dense."""
    found: dict[str, Tensor] = {}
    types, left = {}, ["lm_head"]
    whole = tensors_of(dense_folder)
    for module, name in MODULES.items():
        source = sources.get(name, sources[""])
        if source is None:
            found[f"{module}.weight"] = whole[f"{module}.weight"]
            left.append(module)
            continue
        config = json.loads((source / "config.json").read_text())["quantization_config"]
        types[module] = StoredConfig.from_dict(config).type_of(module)
        stored = tensors_of(source)
        found |= {n: t for n, t in stored.items() if n.rpartition(".")[0] == module}
    packed = {f"{module}.weight" for module in MODULES}
    found |= {name: tensor for name, tensor in whole.items() if name not in packed}
    return write(dense_folder, folder, found, StoredConfig.describing(types, left).put_in({}))


def from_others(
    dense_folder: Path, folder: Path, stored: foreign.Foreign, bits: int
) -> tuple[Path, Path]:
    """The folder of another package whose layers are ``stored``, by full names, and the ladder
    folder of the same values."""
    whole = tensors_of(dense_folder)
    others = {n: t for n, t in whole.items() if n.removesuffix(".weight") not in MODULES}
    theirs = oracle.tensors_of(stored.layers)
    first = write(dense_folder, folder / "theirs", others | theirs,
                  {"quantization_config": stored.settings})  # fmt: skip
    ours: dict[str, Tensor] = {}
    types = {}
    for module, truth in stored.layers.items():
        order = not (truth.group_of == sorted(truth.group_of)).all()
        weight = Weight.from_codes(
            torch.from_numpy(truth.codes).to(torch.uint8),
            f"uint{bits},group={foreign.GROUP},scale=float16,zero=integer",
            scales=torch.from_numpy(truth.scales),
            zeros=torch.from_numpy(truth.zeros).to(torch.uint8),
            g_idx=torch.from_numpy(truth.group_of).to(torch.int32) if order else None,
        )
        types[module] = str(weight.type)
        ours |= {f"{module}.{part}": t for part, t in weight.tensors().items()}
    entries = StoredConfig.describing(types, ["lm_head"]).put_in({})
    return first, write(dense_folder, folder / "ours", others | ours, entries)


def repacked_from_others(
    dense_folder: Path, folder: Path, stored: foreign.Foreign
) -> tuple[Path, Path]:
    """The folder of another package whose layers are ``stored``, and the same repacked, for what
    both say of activations."""
    whole = tensors_of(dense_folder)
    others = {n: t for n, t in whole.items() if n.removesuffix(".weight") not in MODULES}
    theirs = write(dense_folder, folder / "theirs", others | oracle.tensors_of(stored.layers),
                   {"quantization_config": stored.settings})  # fmt: skip
    repack(theirs, folder / "ours")
    return theirs, folder / "ours"


def packed_parts(folder: Path) -> set[str]:
    """Modules that the folder holds packed."""
    return {n.rpartition(".")[0] for n in tensors_of(folder) if n.rpartition(".")[2] in PARTS}
