# SPDX-License-Identifier: Apache-2.0
"""Layers and folders of MLX: nothing here shares a line with ladder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from checkpoint_oracle import float_values
from more_oracles import Drawn
from safetensors import safe_open
from safetensors.torch import save_file

FIXTURES = Path(__file__).parent / "fixtures" / "mlx"
MLX = {"group_size": 32, "bits": 4, "mode": "affine"}
_ELEMENTS = {"mxfp4": (2, 1), "nvfp4": (2, 1), "mxfp8": (4, 3)}


def codes(weight: torch.Tensor, bits: int) -> np.ndarray:
    """[..., K] of uint32 [..., K bits / 32], bit by bit."""
    octets = weight.contiguous().view(torch.uint8).numpy()
    each = np.unpackbits(octets, axis=-1, bitorder="little")
    each = each.reshape(*each.shape[:-1], -1, bits).astype(np.uint32)
    return (each << np.arange(bits, dtype=np.uint32)).sum(-1)


def decode(parts: dict[str, torch.Tensor], settings: dict) -> torch.Tensor:
    """The values of a layer, or of a stack of them, in float32."""
    settings = {"group_size": 64, "bits": 4, "mode": "affine"} | settings
    found, mode = codes(parts["weight"], settings["bits"]), settings["mode"]
    if mode == "affine":
        values = found.astype(np.float32)
        scales, biases = (parts[part].float().numpy() for part in ("scales", "biases"))
    else:
        values, biases = float_values(*_ELEMENTS[mode]).astype(np.float32)[found], None
        octets = parts["scales"].numpy()
        e8m0 = np.exp2(octets.astype(np.float64) - 127)
        scales = (float_values(4, 3)[octets] if mode == "nvfp4" else e8m0).astype(np.float32)
    with np.errstate(over="ignore"):  # scales of 2**127
        values = values * scales.repeat(settings["group_size"], -1)
    if biases is not None:
        values = values + biases.repeat(settings["group_size"], -1)
    return torch.from_numpy(values)


def pack(found: np.ndarray, bits: int) -> torch.Tensor:
    """:func:`codes`, backwards."""
    each = found[..., None].astype(np.uint32) >> np.arange(bits, dtype=np.uint32) & 1
    each = each.reshape(*found.shape[:-1], -1).astype(np.uint8)
    return torch.from_numpy(np.packbits(each, axis=-1, bitorder="little")).view(torch.uint32)


def mlx(n: int, k: int, *, bits: int = 4, group: int = 32, seed: int = 0) -> Drawn:
    """A layer of integers, with scales and biases of bfloat16."""
    rng = np.random.default_rng(seed)
    shape = (n, k // group)
    tensors = {
        "weight": pack(rng.integers(0, 1 << bits, (n, k)), bits),
        "scales": torch.from_numpy(rng.uniform(0.001, 0.01, shape)).bfloat16(),
        "biases": torch.from_numpy(rng.uniform(-0.05, 0, shape)).bfloat16(),
    }
    return Drawn(decode(tensors, {"bits": bits, "group_size": group}).numpy(), tensors)


def write_mlx(folder: Path, tensors: dict, settings: dict = MLX, **config) -> Path:
    """A folder as mlx-lm writes it, of a model that transformers does not know."""
    folder.mkdir(parents=True)
    fields = {"model_type": "toy", "quantization": settings, "quantization_config": settings}
    fields = {key: value for key, value in (fields | config).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})
    return folder


def fixture_layers() -> dict[str, tuple[dict, dict[str, torch.Tensor]]]:
    """name: (settings, tensors), as MLX made them."""
    found = {}
    with safe_open(FIXTURES / "layers.safetensors", "pt") as opened:
        for name, settings in sorted(opened.metadata().items()):
            parts = [key for key in opened.keys() if key.rpartition(".")[0] == name]  # noqa: SIM118
            tensors = {part.rpartition(".")[2]: opened.get_tensor(part) for part in parts}
            found[name] = json.loads(settings), tensors
    return found
