# SPDX-License-Identifier: Apache-2.0
"""csrc/binding/torch/shim.h against the torch that is installed: a build sees our declarations of
torch's C functions only, so a wrong one would be found when an op is called, or not at all."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "csrc/binding/torch/shim.h"
TORCH = Path(torch.__file__).parent
FUNCTION = re.compile(r"\b((?:aoti_)?torch_\w+)\(")


def symbols(library: Path, *options: str) -> dict[str, str]:
    """Names of a library's dynamic symbols with nm's letter for each."""
    command = ["nm", "-D", *options, str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in text.splitlines()]
    return {row[-1]: row[-2] for row in rows}


def torch_symbols_of_ladder() -> dict[str, str]:
    undefined = symbols(ROOT / "ladder/libladder.so", "--undefined-only")
    return {name: kind for name, kind in undefined.items() if FUNCTION.match(name + "(")}


def compiles(source: str, folder: Path) -> str:
    """The compiler's messages for `source`, which sees torch's headers and ours; "" if none."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    (folder / "both.cpp").write_text(source)
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{folder}", f"-I{ROOT / 'csrc'}"]
    command += [f"-I{TORCH / 'include'}", str(folder / "both.cpp")]
    return subprocess.run(command, capture_output=True, text=True).stderr


def test_every_declaration_is_that_of_torch_s_headers(tmp_path):
    """extern "C" functions of one name and two signatures do not compile."""
    header = "#include <torch/csrc/stable/c/shim.h>\n"
    assert compiles(header + '#include "binding/torch/shim.h"\n', tmp_path) == ""
    wrong = SHIM.read_text().replace("std::int64_t* result", "std::int32_t* result", 1)
    (tmp_path / "wrong.h").write_text(wrong)
    assert "aoti_torch_get_dim" in compiles(header + '#include "wrong.h"\n', tmp_path)


def test_torch_has_every_function_that_the_library_calls():
    needed = torch_symbols_of_ladder()
    has = symbols(TORCH / "lib/libtorch_cpu.so", "--defined-only")
    assert len(needed) > 20
    assert [name for name, kind in needed.items() if name not in has and kind != "w"] == []


def test_the_oldest_torch_has_every_function_that_the_library_calls():
    """torch_2.11_functions.txt: those that nm -D finds in libtorch_cpu.so of 2.11.0 on PyPI."""
    oldest = set((Path(__file__).parent / "torch_2.11_functions.txt").read_text().split())
    assert len(oldest) > 300 and "aoti_torch_get_dim" in oldest
    needed = torch_symbols_of_ladder()
    assert [name for name, kind in needed.items() if name not in oldest and kind != "w"] == []


def test_only_functions_younger_than_the_oldest_torch_may_be_missing():
    """A weak symbol is null where torch has none: only what is asked for before it is called."""
    weak = [name for name, kind in torch_symbols_of_ladder().items() if kind == "w"]
    assert weak == ["torch_exception_get_what_without_backtrace"]


def test_the_build_sees_no_header_of_torch():
    folder = ROOT / "csrc/binding"
    files = [*folder.rglob("*.h"), *folder.rglob("*.cpp"), *folder.rglob("CMakeLists.txt")]
    assert len(files) > 10
    assert [f for f in files if re.search(r"include <torch/|import torch", f.read_text())] == []
