# SPDX-License-Identifier: Apache-2.0
"""Every example runs as its reader would run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Arguments that make an example fast, and words that its output must have.
EXAMPLES = {
    "demo.py": (["--windows", "1", "--tokens", "4", "--out"], "bytes in memory, whole model"),
    "dequantize_transpose.py": ([], "equal to the reference"),
    "load_gptq.py": ([], "uint4,group=128,scale=float16,zero=midpoint"),
    "lora.py": ([], "step 7"),
    "own_format.py": ([], "lloyd3,group=64"),
    "quantize_linear.py": ([], "ternary,group=64"),
}


def test_every_example_is_listed():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name, tmp_path):
    arguments, expected = EXAMPLES[name]
    if "--out" in arguments:
        arguments = [*arguments, str(tmp_path / "model")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert expected in done.stdout
