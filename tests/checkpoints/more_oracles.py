# SPDX-License-Identifier: Apache-2.0
"""Layers of bitsandbytes, BitNet, Quark and Gemma as checkpoint_oracle.py has those of other
formats: nothing here shares a line with ladder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import torch
from checkpoint_oracle import float_values, octets

#: nf4 of QLoRA, and fp4 of bitsandbytes, whose values are twelfths.
TABLES = {
    "nf4": (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1.0,
    ),
    "fp4": [
        sign * twelfths / 12 for sign in (1, -1) for twelfths in (0, 0.0625, 8, 12, 4, 6, 2, 3)
    ],
}  # fmt: skip
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
INT8 = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}
BITNET = {"quant_method": "bitnet", "linear_class": "autobitlinear"}


@dataclass
class Drawn:
    """What a layer means [N, K] in float32, and its tensors."""

    weight: np.ndarray
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


def bnb(n, k, *, kind="nf4", blocksize=64, nested=False, seed=0) -> Drawn:
    """A layer of 4 bits; ``nested``: scales of uint8 in blocks of 256."""
    rng = np.random.default_rng(seed)
    table = np.array(TABLES[kind], np.float32)
    codes = rng.integers(0, 16, n * k)
    count = -(-n * k // blocksize)
    state = {"quant_type": kind, "blocksize": blocksize, "dtype": "bfloat16", "shape": [n, k]}
    tensors = {"weight.quant_map": torch.from_numpy(table)}
    if nested:
        absmax = rng.integers(0, 256, count).astype(np.uint8)
        values = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        scales = rng.uniform(0.001, 0.01, -(-count // 256)).astype(np.float32)
        offset = np.float32(0.03)
        state |= {
            "nested_blocksize": 256,
            "nested_dtype": "float32",
            "nested_offset": float(offset),
        }
        tensors["weight.nested_absmax"] = torch.from_numpy(scales)
        tensors["weight.nested_quant_map"] = torch.from_numpy(values)
        each = np.array([values[c] * scales[i // 256] + offset for i, c in enumerate(absmax)])
    else:
        absmax = each = rng.uniform(0.001, 0.05, count).astype(np.float32)
    meant = np.array([table[c] * each[i // blocksize] for i, c in enumerate(codes)], np.float32)
    padded = np.append(codes, [0] * (n * k % 2))
    octets = [int(a) << 4 | int(b) for a, b in zip(padded[::2], padded[1::2], strict=True)]
    tensors["weight"] = torch.tensor(octets, dtype=torch.uint8)[:, None]
    tensors["weight.absmax"] = torch.from_numpy(absmax)
    tensors[f"weight.quant_state.bitsandbytes__{kind}"] = told(state)
    return Drawn(meant.reshape(n, k), tensors)


def told(state) -> torch.Tensor:
    """A quant_state as bitsandbytes stores it."""
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


def llm_int8(n, k, *, seed=0) -> Drawn:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, (n, k)).astype(np.int8)
    largest = rng.uniform(0.01, 0.2, n).astype(np.float32)
    tensors = {
        "weight": torch.from_numpy(codes),
        "SCB": torch.from_numpy(largest),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return Drawn(codes.astype(np.float32) * (largest / np.float32(127))[:, None], tensors)


def bitnet(n, k, *, divides=False, seed=0) -> Drawn:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-1, 2, (n, k))
    scale = np.float32(rng.integers(1, 255) / 128)  # of bfloat16
    packed = np.zeros((n // 4, k), np.uint8)
    for row in range(n):
        packed[row % (n // 4)] |= (codes[row] + 1).astype(np.uint8) << 2 * (row // (n // 4))
    tensors = {
        "weight": torch.from_numpy(packed),
        "weight_scale": torch.tensor([float(scale)]).bfloat16(),
    }
    values = codes.astype(np.float32)
    return Drawn(values / scale if divides else values * scale, tensors)


def quark_settings(dtype="fp8_e4m3", qscheme="per_tensor", *, x=None, **more):
    """x: the settings of inputs, beside dtype and qscheme; None for none."""
    weight = {"dtype": dtype, "qscheme": qscheme, "is_dynamic": False, "symmetric": True}
    if qscheme == "per_group":
        weight |= {"group_size": 32, "scale_format": "e8m0"}
    inputs = None if x is None else weight | x
    usual = {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None}
    return {
        "quant_method": "quark", "global_quant_config": usual, "layer_quant_config": {},
        "exclude": ["lm_head"], "export": {"weight_format": "real_quantized"},
    } | more  # fmt: skip


def quark(n, k, dtype="fp8_e4m3", *, row=False, seed=0) -> Drawn:
    """A layer of Quark; ``row``: with a scale for each row. MX formats have groups of 32."""
    rng = np.random.default_rng(seed)
    if dtype in ("fp4", "fp6_e3m2"):
        bits, values = (4, float_values(2, 1)) if dtype == "fp4" else (6, float_values(3, 2))
        codes = rng.integers(0, 1 << bits, (n, k))
        exponents = rng.integers(120, 130, (n, k // 32))
        tensors = {
            "weight": octets(codes.tolist(), bits),
            "weight_scale": torch.from_numpy(exponents.astype(np.uint8)),
        }
        scales = np.exp2(exponents - 127.0).repeat(32, 1)
        return Drawn((values[codes] * scales).astype(np.float32), tensors)
    shape = (n,) if row else ()
    scale = torch.from_numpy(np.asarray(rng.uniform(0.001, 0.01, shape))).bfloat16()
    tensors = {"weight_scale": scale}
    if dtype == "int8":
        codes = rng.integers(-128, 128, (n, k)).astype(np.int8)
        meant, tensors["weight"] = codes.astype(np.float32), torch.from_numpy(codes)
        tensors["weight_zero_point"] = torch.zeros(shape, dtype=torch.int8)
    else:
        values = float_values(4, 3)
        codes = rng.choice(np.flatnonzero(np.isfinite(values) & (np.abs(values) <= 448)), (n, k))
        meant = values[codes].astype(np.float32)
        tensors["weight"] = torch.from_numpy(codes.astype(np.uint8)).view(torch.float8_e4m3fn)
    return Drawn(meant * scale.float().numpy().reshape(-1, 1), tensors)


GEMMA = {"quant_method": "gemma", "num_bits": 4, "quantize_embeddings": True}


def gemma(n, k, bits=4, *, x=None, y=None, table=0, seed=0) -> Drawn:
    """A layer of Gemma with static scales ``x`` and ``y``, None: without these tensors; or an
    embedding with ``table`` scales a row. Codes past K are drawn, too."""
    rng = np.random.default_rng(seed)
    each = 8 // bits
    codes = rng.integers(0, 1 << bits, (n, -(-k // each) * each))
    scales = rng.uniform(0.001, 0.02, (n, table or 1)).astype(np.float32)
    signed = (codes - (1 << bits - 1))[:, :k]
    if bits == 8:
        packed = torch.from_numpy(signed.astype(np.int8))
    else:
        packed = octets(codes.tolist(), bits)
    names = ("embedding_quantized", "embedding_scale") if table else ("weight", "weight_scale")
    tensors = dict(zip(names, (packed, torch.from_numpy(scales)), strict=True))
    for part, scale in (("input_activation_scale", x), ("output_activation_scale", y)):
        if scale is not None:
            tensors[part] = torch.tensor(scale)
    spread = scales.repeat(k // scales.shape[1], 1)
    return Drawn(signed.astype(np.float32) * spread, tensors)
