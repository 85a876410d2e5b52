# SPDX-License-Identifier: Apache-2.0
"""ladder._C loads in every Python from 3.10 on, from one file, and is what its stubs say."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "inspection.py"
VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]


def interpreter(version: str) -> str | None:
    """A Python of this version: this one, one of the path or one of pyenv."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = [str(path) for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    return found[0] if found else shutil.which(f"python{version}")


@pytest.mark.parametrize("version", VERSIONS)
def test_inspection_loads_and_works(version):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    command = [python, "-I", str(SCRIPT), str(ROOT / "ladder")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("_C: fine in Python " + version)


def test_inspection_needs_no_function_of_one_python_only():
    """The limited API has no private names, but for those that its macros stand for."""
    command = ["nm", "-D", "--undefined-only", str(ROOT / "ladder/_C.abi3.so")]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    of_python = set(re.findall(r"\b_?Py\w+", symbols))
    assert len(of_python) > 30
    objects = {"_Py_NoneStruct", "_Py_NotImplementedStruct", "_Py_TrueStruct"}
    functions = {"_Py_Dealloc", "_Py_BuildValue_SizeT", "_PyObject_CallFunction_SizeT"}
    private = {name for name in of_python if name.startswith("_Py")}
    assert private <= objects | functions


def test_the_stubs_are_the_signatures():
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy.stubtest", "--mypy-config-file", "pyproject.toml"]
    done = subprocess.run([*command, "ladder._C"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
