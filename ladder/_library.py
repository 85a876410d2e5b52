# SPDX-License-Identifier: Apache-2.0
"""Loads libladder.so, which registers ``torch.ops.ladder``."""

from pathlib import Path

import torch


def load() -> None:
    """Register the ops. Raises ImportError that says how to build when the library is missing."""
    path = Path(__file__).parent / "libladder.so"
    if not path.exists():
        raise ImportError(
            f"{path.name} is not in {path.parent}: run `make build` in a checkout, "
            "or `pip install --no-build-isolation .`"
        )
    torch.ops.load_library(str(path))


load()
