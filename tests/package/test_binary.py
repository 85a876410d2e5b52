# SPDX-License-Identifier: Apache-2.0
"""One binary for every torch from 2.11 on: what libladder.so needs of others."""

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "ladder"


def lines(*command) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def needed(library: str) -> set[str]:
    return {
        line.split("[")[1].rstrip("]")
        for line in lines("readelf", "-d", PACKAGE / library)
        if "(NEEDED)" in line
    }


def test_the_ops_need_torch_for_the_cpu_by_name_and_nothing_of_cuda():
    libraries = needed("libladder.so")
    assert {"libladder_core.so", "libtorch_cpu.so"} <= libraries
    assert not [name for name in libraries if "cuda" in name or "nvrtc" in name]


def test_the_core_needs_neither_torch_nor_python():
    assert not [name for name in needed("libladder_core.so") if "torch" in name or "python" in name]


def test_the_ops_use_only_the_stable_abi_of_torch():
    """C symbols of the shim are promised to stay; C++ symbols of torch are not."""
    symbols = lines("nm", "-D", "-C", "--undefined-only", PACKAGE / "libladder.so")
    unstable = [s for s in symbols if "at::" in s or "c10::" in s or "torch::" in s]
    assert unstable == []
    assert [s for s in symbols if "aoti_torch_" in s]


def test_what_a_library_throws_is_one_type_in_all_of_them():
    """Where the loader compares addresses, as on macOS, a copy is not caught as what it copies."""
    thrown = {"libladder.so": ("InvalidArgument", "Unsupported", "ToolchainError")}
    thrown["_C.abi3.so"] = ("Unsupported",)
    for library, errors in thrown.items():
        symbols = " ".join(lines("nm", "-D", "-C", PACKAGE / library))
        for error in errors:
            assert f"U typeinfo for ladder::{error} " in symbols, f"{library} has {error} itself"


@pytest.mark.parametrize("library", ["libladder.so", "libladder_core.so"])
def test_libraries_find_each_other_beside_themselves(library):
    assert any("$ORIGIN" in line for line in lines("readelf", "-d", PACKAGE / library))


def test_importing_ladder_imports_nothing_heavy_but_torch():
    code = "import sys, ladder; print([m for m in ('transformers', 'safetensors', 'rich') "
    code += "if m in sys.modules])"
    assert lines(sys.executable, "-c", code) == ["[]"]


def test_the_stubs_name_everything_that_inspection_offers():
    from ladder import _C

    stubs = {_C: "__init__.pyi", _C.bounds: "bounds.pyi", _C.devices: "devices.pyi"}
    for module, stub in stubs.items():
        text = (PACKAGE / "_C" / stub).read_text()
        public = [name for name in dir(module) if not name.startswith("_")]
        assert [name for name in public if name not in text] == []
        for name in public:
            members = (
                [
                    m
                    for m in vars(
                        getattr(module, name),
                    )
                    if not m.startswith("_")
                ]
                if (isinstance(getattr(module, name), type))
                else []
            )
            assert [member for member in members if member not in text] == []
