# SPDX-License-Identifier: Apache-2.0
"""Small things that BitBLAS' users call beside the operators."""

from __future__ import annotations

import logging
from typing import Any

import torch

logger = logging.getLogger("ladder.bitblas")


def auto_detect_nvidia_target(gpu_id: int = 0) -> str:
    """The name of a GPU in lower case, "nvidia/nvidia-h200"; "cpu" where there is none."""
    if not torch.cuda.is_available():
        return "cpu"
    return "nvidia/" + torch.cuda.get_device_name(gpu_id).lower().replace(" ", "-")


def default_target() -> str:
    """Where an operator without a target runs: wherever its tensors are."""
    return auto_detect_nvidia_target()


def set_log_level(level: int | str) -> None:
    """Set the level of the logger "ladder.bitblas": a number, or a name in any case."""
    logger.setLevel(level.upper() if isinstance(level, str) else level)


def set_debug_level(level: int | str) -> None:
    """Older name of :func:`set_log_level`."""
    set_log_level(level)


def apply_transform_on_input(input_tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    """The activations as they are: ladder permutes none."""
    return input_tensor
