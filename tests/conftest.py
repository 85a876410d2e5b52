# SPDX-License-Identifier: Apache-2.0
import os
import tempfile
from pathlib import Path

import pytest

# Nothing that a test loads may come from a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Kernels and plans of the machine's user, or of another worker, would decide what a test finds.
STORE = tempfile.TemporaryDirectory(prefix="ladder-tests-")
os.environ["LADDER_CACHE"] = STORE.name

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def gptq_folder() -> Path:
    """A real GPTQ checkpoint: 7.3 M parameters, 4 bits, groups of 128, symmetric."""
    return ROOT / "examples" / "tiny-llama-gptq"


@pytest.fixture(autouse=True)
def same_compilers():
    """PEFT's BOFT sets CC and CXX, and where its extension does not build they stay."""
    before = {name: os.environ.get(name) for name in ("CC", "CXX")}
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
