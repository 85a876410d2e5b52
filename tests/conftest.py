# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

# Nothing that a test loads may come from a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def gptq_folder() -> Path:
    """A real GPTQ checkpoint: 7.3 M parameters, 4 bits, groups of 128, symmetric."""
    return ROOT / "examples" / "tiny-llama-gptq"
