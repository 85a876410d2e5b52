# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import pytest
from weights_on_device import device as device

# GPTQ and AWQ layers packed field by field, which the checkpoint tests have.
sys.path.append(str(Path(__file__).parents[1] / "checkpoints"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LADDER_CACHE", str(tmp_path))
