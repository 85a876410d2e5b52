# SPDX-License-Identifier: Apache-2.0
"""Small models for the tests of this folder, and ways to damage them."""

import json
import shutil
from pathlib import Path

import torch
from torch import nn

import ladder

ROOT = Path(__file__).parents[2]
GPTQ = ROOT / "examples" / "tiny-llama-gptq"

TINY = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 128, "max_position_embeddings": 64,
}  # fmt: skip


def model_class():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM


def load(folder, **options):
    """Load in float32 unless told otherwise, and check that nothing was left to chance."""
    options = {"dtype": torch.float32, "output_loading_info": True} | options
    model, info = model_class().from_pretrained(folder, **options)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model


def logits(model, low=50, count=24):
    with torch.no_grad():
        return model(torch.arange(low, low + count)[None]).logits


def edit_tensors(folder: Path, change) -> None:
    """Apply ``change(tensors)`` to the only safetensors file of ``folder``."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder: Path, **fields) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def foreign_folder(dense: Path, folder: Path, draw, settings, skip=("lm_head",)):
    """A GPTQ or AWQ folder of the model of ``dense``, and the dense model that it means.

    Args:
        draw: makes a layer, called with N, K and ``seed``.
        settings: its quantization_config.
        skip: ends of names that stay dense.
    """
    shutil.copytree(dense, folder)
    edit_config(folder, quantization_config=settings)
    model = load(dense)
    truths = {}
    for seed, (name, linear) in enumerate(list(model.named_modules())):
        if isinstance(linear, torch.nn.Linear) and not name.endswith(skip):
            truth = draw(linear.out_features, linear.in_features, seed=seed)
            linear.weight.data = torch.from_numpy(truth.weight)
            truths[name] = truth

    def change(tensors):
        for name, truth in truths.items():
            del tensors[f"{name}.weight"]
            tensors |= {f"{name}.{part}": t for part, t in truth.tensors.items()}

    edit_tensors(folder, change)
    return folder, model


def built(family, **options):
    """A random model with packed layers; biases where the family has them."""
    import transformers

    name = {"Gemma3": "Gemma3Text"}.get(family, family)
    config = getattr(transformers, f"{name}Config")(**TINY, **options)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            nn.init.normal_(parameter, std=0.1)
    ladder.convert(model, "uint4", group_size=32)
    return model
