# SPDX-License-Identifier: Apache-2.0
"""Files that hqq itself writes: ``qmodel.pt``, a dictionary of dictionaries in which numbers and
words are as they are in Python (ladder.checkpoints.hqq has them as tensors)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.shards import Pickles, open_shards
from ladder.errors import CheckpointError

QMODEL = "qmodel.pt"
#: Scales and zeros that are quantised in their turn, or offloaded: older versions had them.
NESTED = ("scale_q", "zero_q", "zero_scale", "meta_scale", "meta_zero")


def written_by_hqq(folder: Path) -> bool:
    """Whether a folder whose config.json says nothing has weights of hqq."""
    if (folder / QMODEL).is_file():
        return True
    try:
        return any(name.endswith(".W_q") for name in open_shards(folder).home)
    except CheckpointError:
        return False  # whoever opens it is told


def _flatten(loaded: Any, path: Path) -> tuple[Any, dict[str, str]]:
    if not isinstance(loaded, dict) or not all(isinstance(each, dict) for each in loaded.values()):
        return loaded, {}
    tensors: dict[str, Tensor] = {}
    for module, state in loaded.items():
        old = state.get("meta")  # of the first versions, which kept all but the codes in it
        for part, value in {**state, **(old if isinstance(old, dict) else {})}.items():
            if part == "meta" or value is None:
                continue
            tensors[f"{module}.{part}"] = _as_tensor(value, f"{path}: {module}.{part}")
    return tensors, {}


def _as_tensor(value: Any, where: str) -> Tensor:
    """What hqq itself makes of a value in files of safetensors."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, torch.Size | tuple | list):
        return torch.tensor(list(value))
    if isinstance(value, bool):
        return torch.tensor(int(value), dtype=torch.uint8)
    if isinstance(value, int | float):
        return torch.tensor(value, dtype=torch.int32 if isinstance(value, int) else torch.float32)
    if isinstance(value, dict):
        return torch.tensor(0)  # of NESTED, which is refused by its name
    if isinstance(value, str | torch.dtype):
        return torch.tensor(list(str(value).encode()), dtype=torch.uint8)
    raise CheckpointError(f"{where} is a {type(value).__name__}, which hqq does not write")


PICKLES = Pickles(_flatten, name=QMODEL)
