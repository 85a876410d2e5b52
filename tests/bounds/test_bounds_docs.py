# SPDX-License-Identifier: Apache-2.0
"""docs/bounds.md: its chain is read, its command prints what it shows, its pictures are current."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ladder import bounds
from ladder.bounds.chains import read_chain
from ladder.cli import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "bounds.md").read_text()


def test_its_chain_is_one(tmp_path):
    (block,) = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.M | re.S)
    (tmp_path / "chain.yaml").write_text(block)
    chain = read_chain(tmp_path / "chain.yaml")
    assert [layer.name for layer in chain] == ["q", "qk", "qkv", "o", "fc1", "fc2"]
    assert bounds.segmented(chain).at(2**28) < bounds.unfused(chain).at(2**28)


def test_its_command_prints_what_it_shows(capsys):
    line, _, *shown = re.search(r"^```\n\$ ladder (.*?)^```", TEXT, re.M | re.S)[1].splitlines()
    with pytest.raises(SystemExit):
        main(line.split())
    printed = capsys.readouterr().out
    for cell in re.split(r"\s{2,}", shown[0]):
        assert cell in printed
    assert shown[1] in printed


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="no matplotlib")
def test_its_pictures_can_be_drawn_again_and_are_small(tmp_path):
    script = ROOT / "docs" / "bounds" / "figures.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, env={"PYTHONPATH": str(ROOT)})
    named = set(re.findall(r"\(bounds/(\w+\.svg)\)", TEXT))
    assert named == {path.name for path in tmp_path.glob("*.svg")}
    for name in named:
        assert (ROOT / "docs" / "bounds" / name).stat().st_size < 200_000
