# SPDX-License-Identifier: Apache-2.0
"""docs/new-type.md and docs/new-device.md: the rows of tables that they quote are there, and the
device that they describe can be scheduled and compiled for."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ladder._C import explain

ROOT = Path(__file__).parents[2]
CPP = re.compile(r"^```cpp\n(.*?)^```", re.M | re.S)
HEADERS = ["iostream", "compile.h", "device/device.h", "device/hint.h", "expr/constructors.h"]


def test_the_rows_that_new_type_quotes_are_rows_of_the_table():
    (block,) = CPP.findall((ROOT / "docs/new-type.md").read_text())
    rows = [line.partition("  //")[0].strip() for line in block.splitlines()]
    table = [line.strip() for line in (ROOT / "csrc/types/table.cpp").read_text().splitlines()]
    assert len(rows) == 2 and set(rows) <= set(table)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the program of docs/new-device.md prints: its row, then its statements."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    row, statements = CPP.findall((ROOT / "docs/new-device.md").read_text())
    folder = tmp_path_factory.mktemp("new_device")
    source, program = folder / "main.cpp", folder / "main"
    includes = "".join(f"#include <{header}>\n" for header in HEADERS)
    body = f"using namespace ladder;\n{row}\nint main() {{\n{statements}}}\n"
    source.write_text(includes + body)
    library = ROOT / "ladder"
    command = [compiler, "-std=c++20", "-Werror=missing-field-initializers", f"-I{ROOT / 'csrc'}"]
    command += [source, f"-L{library}", "-lladder_core", f"-Wl,-rpath,{library}", "-o", program]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def test_the_device_of_new_device_gets_a_kernel(printed):
    assert printed.startswith("l4: sm_89, 58 multiprocessors of 65536 registers")
    assert re.search(r"^tokens 16, warps .* per multiprocessor$", printed, re.M)
    assert "__global__" in printed and "mma.sync" in printed


def test_the_device_of_new_device_is_in_no_table_yet():
    """Once it is, the document needs another example."""
    with pytest.raises(ValueError, match="no device is called l4"):
        explain(1, 64, 64, "uint4,group=64,scale=float16", "float16", "l4")
