# SPDX-License-Identifier: Apache-2.0
"""The check of a wheel for macOS can fail. Its binaries here are LLVM's, linked with stand-ins."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.package import wheel_tag
from tests.package.mach_o import MachO
from tests.package.wheel_tag import CXX, SYSTEM, macos_objections

SOURCE = """
extern void first(void);
extern void second(void) __attribute__((weak_import));
void third(void) { first(); if (second) second(); }
__attribute__((visibility("hidden"))) void fourth(void) {}
"""
LIBRARY = """--- !tapi-tbd
tbd-version: 4
targets: [ arm64-macos ]
install-name: "{}"
exports:
  - targets: [ arm64-macos ]
    symbols: [ _first, _second ]
...
"""
TOOLS = ("clang-19", "ld64.lld-19")


@pytest.fixture
def build(tmp_path):
    """A function that links a library for a macOS, with a library by its name, looked for there."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    (tmp_path / "opened.c").write_text(SOURCE)

    def built(
        macos="14.0", needs=SYSTEM, rpath="@loader_path", processor="arm64", sign=True
    ) -> Path:
        (tmp_path / "needed.tbd").write_text(LIBRARY.format(needs).replace("arm64", processor))
        library, target = tmp_path / "libopened.so", f"--target={processor}-apple-macos{macos}"
        command = ["clang-19", target, "-fuse-ld=lld", "-nostdlib", "-dynamiclib", "-o", library]
        command += [tmp_path / "opened.c", tmp_path / "needed.tbd", "-install_name"]
        command += ["@rpath/libopened.so", f"-Wl,-rpath,{rpath}"]
        subprocess.run(command + ([] if sign else ["-Wl,-no_adhoc_codesign"]), check=True)
        return library

    return built


def test_a_library_says_what_it_takes_from_whom(build):
    library = MachO.read(build())
    assert library.takes == {"_first": (SYSTEM, False), "_second": (SYSTEM, True)}
    assert library.gives == {"_third"} and library.name == "@rpath/libopened.so"
    assert MachO.read(build(needs=CXX)).needs == [CXX]


def test_a_library_of_the_tag_is_taken_and_others_are_refused_by_name(build):
    assert macos_objections([build()], (14, 0)) == []
    assert macos_objections([build("14.1")], (14, 0)) == ["libopened.so needs macOS 14.1"]
    other = "@rpath/libomp.dylib"
    assert macos_objections([build(needs=other)], (14, 0)) == [f"libopened.so needs {other}"]
    why = "libopened.so has libraries looked for in ['/opt']"
    assert macos_objections([build(rpath="/opt")], (14, 0)) == [why]
    intel = build(processor="x86_64")
    assert macos_objections([intel], (14, 0)) == ["libopened.so is not for macOS on arm64"]


def test_a_library_that_was_changed_after_it_was_signed_is_refused(build):
    """As strip and patchelf would."""
    library = build(sign=False)
    assert macos_objections([library], (14, 0)) == ["libopened.so: it has no signature"]
    library = build()
    data = bytearray(library.read_bytes())
    data[data.index(b"@loader_path")] ^= 1
    library.write_bytes(data)
    assert macos_objections([library], (14, 0))[-1] == "libopened.so: page 0 is not what was signed"


def test_a_wheel_for_intel_s_processors_is_refused():
    with pytest.raises(AssertionError, match="this machine only"):
        wheel_tag.main(Path("ladder_torch-0.1.0-cp310-abi3-macosx_14_0_x86_64.whl"))
