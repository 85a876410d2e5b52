# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def left_nothing(tmp_path):
    """A destination, checked afterwards to be absent together with every temporary folder."""
    parent = tmp_path / "out"
    parent.mkdir()
    yield parent / "model"
    assert sorted(p.name for p in parent.iterdir()) == []


@pytest.fixture
def real_checkpoint():
    """Find a real checkpoint by name; skips, visibly, where the repository stands alone."""

    def find(name: str, *places: str) -> Path:
        beside = [folder / "shared" / "models" / name for folder in ROOT.parents]
        for place in (*(ROOT / place for place in places), *beside):
            if (place / "config.json").is_file():
                return place
        pytest.skip(f"{name} is not beside the repository")

    return find
