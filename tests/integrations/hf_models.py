# SPDX-License-Identifier: Apache-2.0
"""Small models for the tests of this folder, and ways to damage them."""

import json
from pathlib import Path

import torch

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
