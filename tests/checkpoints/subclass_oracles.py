# SPDX-License-Identifier: Apache-2.0
"""Layers of torchao and HQQ as more_oracles.py has those of others: nothing here shares a line with
ladder."""

from __future__ import annotations

import json

import numpy as np
import torch
from more_oracles import Drawn

TORCHAO = {"quant_method": "torchao", "modules_to_not_convert": None}
HQQ = {
    "quant_method": "hqq",
    "skip_modules": ["lm_head"],
    "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 32, "axis": 1}},
}
_BFLOAT16 = {"_type": "torch.dtype", "_data": "bfloat16"}


def torchao_said(kind="IntxUnpackedToInt8Tensor", **data) -> str:
    """The metadata of a layer of :func:`torchao`, with other fields."""
    usual = {
        "target_dtype": {"_type": "torch.dtype", "_data": "int4"}, "block_size": [1, 32],
        "dtype": _BFLOAT16, "activation_quantization": None,
    }  # fmt: skip
    names = ["qdata", "scale", "zero_point"]
    return json.dumps({"_type": kind, "_data": usual | data, "_tensor_data_names": names})


def torchao(n, k, *, group=32, seed=0) -> Drawn:
    """A layer of 4 bits in bytes, whose zero points are integers: :func:`torchao_said`."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-8, 8, (n, k)).astype(np.int8)
    zeros = rng.integers(-8, 8, (n, k // group)).astype(np.int8)
    scales = torch.from_numpy(rng.uniform(0.001, 0.01, zeros.shape)).bfloat16()
    each = [np.repeat(p, group, 1).astype(np.float32) for p in (scales.float().numpy(), zeros)]
    tensors = {
        "_weight_qdata": torch.from_numpy(codes),
        "_weight_scale": scales,
        "_weight_zero_point": torch.from_numpy(zeros),
    }
    return Drawn((codes.astype(np.float32) - each[1]) * each[0], tensors)


def _word(text: str) -> torch.Tensor:
    return torch.tensor([ord(letter) for letter in text], dtype=torch.uint8)


def hqq(n, k, *, group=32, seed=0) -> Drawn:
    """A layer of 4 bits in groups of axis 1, with every tensor that hqq saves."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (n * k // group, group)).astype(np.uint8)
    scale, zero = (
        torch.from_numpy(rng.uniform(*span, (len(codes), 1))).half()
        for span in ((0.001, 0.01), (5, 9))
    )
    half = len(codes) // 2
    flags = {"view_as_float": 0, "quant_scale": 0, "quant_zero": 0, "offload_meta": 0,
             "encoded_state_dict": 1, "stores_quant_config": 1, "channel_wise": 1, "optimize": 1,
             "round_zero": 1}  # fmt: skip
    numbers = {"nbits": 4, "group_size": group, "axis": 1}
    words = {"packing": "4bit_u8", "unpack_view_dtype": "torch.uint8",
             "compute_dtype": "torch.float16"}  # fmt: skip
    tensors = {
        "W_q": torch.from_numpy(codes[:half] << 4 | codes[half:]), "scale": scale, "zero": zero,
        "shape": torch.tensor([n, k]),
        **{part: torch.tensor(value, dtype=torch.uint8) for part, value in flags.items()},
        **{part: torch.tensor(value, dtype=torch.int32) for part, value in numbers.items()},
        **{part: _word(text) for part, text in words.items()},
    }  # fmt: skip
    values = (codes.astype(np.float32) - zero.float().numpy()) * scale.float().numpy()
    return Drawn(values.reshape(n, k), tensors)
