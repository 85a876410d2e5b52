# SPDX-License-Identifier: Apache-2.0
"""Benchmarks start as their documents say: by their path, from the root of the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(p for p in ROOT.glob("benchmarks/*.py") if "__main__" in p.read_text())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_a_benchmark_says_how_it_is_used(script):
    """The folder of a script comes first on its path: a sibling named as a module of Python's own
    would take that module's place."""
    command, environment = [sys.executable, script, "--help"], {**os.environ, "PYTHONPATH": "."}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("usage: " + script.name)
