# SPDX-License-Identifier: Apache-2.0
"""Synthetic GPTQ and AWQ layers, packed one field at a time with Python integers.

Nothing here shares a line with ladder: a layer is drawn as codes, scales and zeros, packed as the
format's own documents say, and kept beside what it must mean.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

PLANES = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}


@dataclass
class Truth:
    """What a layer means, and the tensors in which a foreign package stores it."""

    codes: np.ndarray  #: [N, K]
    scales: np.ndarray  #: [N, G]
    zeros: np.ndarray  #: [N, G] integers, or floats to subtract after scaling (rescaled)
    group_of: np.ndarray  #: [K]
    rescaled: bool = False
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def weight(self) -> np.ndarray:
        """[N, K] float32."""
        codes = self.codes.astype(np.float32)
        scales = self.scales[:, self.group_of].astype(np.float32)
        zeros = self.zeros[:, self.group_of].astype(np.float32)
        return codes * scales - zeros if self.rescaled else (codes - zeros) * scales


def stream(fields, bits: int) -> list[int]:
    """A little-endian bit stream of ``fields`` as 32-bit words."""
    number = sum(int(value) << (bits * at) for at, value in enumerate(fields))
    return [number >> (32 * w) & 0xFFFFFFFF for w in range((len(fields) * bits + 31) // 32)]


def planar(fields, bits: int) -> list[int]:
    """gptq_p: for each 32 fields, their low plane first, each plane a stream of its own."""
    words = []
    for first in range(0, len(fields), 32):
        block, low = [int(value) for value in fields[first : first + 32]], 0
        for width in PLANES[bits]:
            words += stream([value >> low & ((1 << width) - 1) for value in block], width)
            low += width
    return words


def words(rows: list[list[int]]) -> torch.Tensor:
    return torch.from_numpy(np.array(rows, dtype=np.uint32).view(np.int32).copy())


def draw(n, k, bits, group, *, symmetric, seed, lowest=0, dtype=np.float16) -> Truth:
    rng = np.random.default_rng(seed)
    group = k if group == -1 else group
    groups = -(-k // group)
    codes = rng.integers(0, 1 << bits, (n, k))
    scales = (rng.random((n, groups)) * 0.02 + 0.001).astype(dtype)
    zeros = rng.integers(lowest, 1 << bits, (n, groups))
    if symmetric:
        zeros[:] = 1 << (bits - 1)
    return Truth(codes, scales, zeros, np.arange(k) // group)


def gptq(n, k, *, bits=4, group=32, symmetric=True, form="gptq", order=False, seed=0, lowest=0,
         g_idx=True) -> Truth:  # fmt: skip
    """A GPTQ layer. ``order``: columns lie in groups in random order, as desc_act leaves them."""
    truth = draw(n, k, bits, group, symmetric=symmetric, seed=seed, lowest=lowest)
    if order:
        truth.group_of = np.random.default_rng(seed + 1).permutation(truth.group_of)
    pack = planar if form == "gptq_p" else stream
    zero_rows = []
    for zeros in truth.zeros.T:
        if form == "gptq" and 32 % bits == 0:  # minus one from whole words, borrows and all
            ones = int("".join(["1".zfill(bits)] * (32 // bits)), 2)
            zero_rows.append([(word - ones) % (1 << 32) for word in stream(zeros, bits)])
        elif form == "gptq":
            zero_rows.append(stream([(int(z) - 1) % (1 << bits) for z in zeros], bits))
        else:
            zero_rows.append(pack(zeros, bits))
    truth.tensors = {
        "qweight": words([pack(row, bits) for row in truth.codes]).t().contiguous(),
        "qzeros": words(zero_rows),
        "scales": torch.from_numpy(truth.scales.T.copy()),
    }
    if g_idx:
        truth.tensors["g_idx"] = torch.from_numpy(truth.group_of.astype(np.int32))
    return truth


def awq(n, k, *, group=32, version="gemm", symmetric=False, seed=0) -> Truth:
    """An AWQ layer of 4 bits."""
    truth = draw(n, k, 4, group, symmetric=symmetric, seed=seed)
    groups = truth.scales.shape[1]
    width = -(-groups // 8)
    group = k if group == -1 else group
    multiple = {32: 4, 64: 2}.get(group, 1)
    width = -(-width // multiple) * multiple
    padded = np.zeros((n, 8 * width), dtype=np.float16)
    padded[:, :groups] = truth.scales
    if version == "gemm":
        order = [0, 2, 4, 6, 1, 3, 5, 7]

        def line(values):
            return [word for c in range(0, len(values), 8)
                    for word in stream([values[c + o] for o in order], 4)]  # fmt: skip

        truth.tensors = {
            "qweight": words([line(column) for column in truth.codes.T]),
            "qzeros": words([line(row) for row in truth.zeros.T]),
            "scales": torch.from_numpy(truth.scales.T.copy()),
        }
    elif version == "gemv":
        fill = [0] * (8 * width - groups)
        truth.tensors = {
            "qweight": words([stream(row, 4) for row in truth.codes]),
            "qzeros": words([stream([*row, *fill], 4) for row in truth.zeros]),
            "scales": torch.from_numpy(padded),
        }
    else:
        scaled = np.zeros_like(padded)
        scaled[:, :groups] = -(truth.scales.astype(np.float32) * truth.zeros)
        truth.tensors = {
            "qweight": _fast_lines(truth.codes),
            "scaled_zeros": torch.from_numpy(scaled.T.copy()),
            "scales": torch.from_numpy(padded.T.copy()),
        }
        truth.zeros, truth.rescaled = -scaled[:, :groups], True
    return truth


def _fast_lines(codes: np.ndarray) -> torch.Tensor:
    """gemv_fast: 4 rows x 64 columns are 64 int16, the nibbles of a row in its kernel's order."""
    n, k = codes.shape
    lines = np.zeros((n // 4, k), dtype=np.uint16)
    for row in range(n):
        for column in range(k):
            a, rest = divmod(column % 32, 8)
            b, c = divmod(rest, 2)
            place = column % 64 // 32 * 32 + 8 * b + 4 * c + a
            nibble = row % 4 * 64 + place
            at = column // 64 * 64 + nibble // 4
            lines[row // 4, at] |= int(codes[row, column]) << (4 * (nibble % 4))
    return torch.from_numpy(lines.view(np.int16).copy())


def tensors_of(layers: dict[str, Truth]) -> dict[str, torch.Tensor]:
    return {f"{name}.{p}": t for name, truth in layers.items() for p, t in truth.tensors.items()}


def write_folder(folder: Path, quantization: dict[str, Any] | None, shards: list[dict]) -> Path:
    """A model folder of one or more safetensors shards, with a config and a few other files."""
    folder.mkdir(parents=True)
    config: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "torch_dtype": "float16"}
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "extra").mkdir()
    (folder / "extra" / "notes.txt").write_text("carried over")
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def small(folder: Path, **changes: Any) -> Path:
    """A one-layer GPTQ checkpoint, its tensors or settings changed by name; None leaves one out."""
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}
    settings |= changes.pop("settings", {})
    truth = gptq(32, 64, symmetric=False, lowest=1)
    tensors = tensors_of({"layer": truth}) | {"norm.weight": torch.ones(64)}
    tensors |= {f"layer.{part}": value for part, value in changes.items()}
    return write_folder(folder, settings, [{k: v for k, v in tensors.items() if v is not None}])
