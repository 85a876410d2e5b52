# SPDX-License-Identifier: Apache-2.0
"""The check of a wheel's tags can fail, and cmake/stub_libraries.py makes binaries that pass it."""

import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.package import wheel_tag

ROOT = Path(__file__).parents[2]
SOURCE = """
#include <dlfcn.h>
void* opened(const char* name) { return dlopen(name, RTLD_NOW); }
"""


#: The first glibc of each processor, whose version a symbol of that age has.
FIRST = {"x86_64": (2, 2, 5), "aarch64": (2, 17)}


@pytest.fixture(params=FIRST)
def processor(request):
    return request.param


@pytest.fixture
def compiler(processor):
    """This machine's, or a cross compiler, whose glibc is of the same age on Debian."""
    native = platform.machine() == processor
    found = shutil.which("gcc" if native else f"{processor}-linux-gnu-gcc")
    glibc = tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2])
    if found is None or glibc < (2, 34):
        pytest.skip(f"needs gcc for {processor} with glibc 2.34, where dlopen got a new version")
    return found


@pytest.fixture
def build(tmp_path, compiler):
    """A function that links a library which needs dlopen, with more options."""
    (tmp_path / "opened.c").write_text(SOURCE)

    def built(*options: str) -> Path:
        library = tmp_path / "libopened.so"
        command = [compiler, "-shared", "-fPIC", tmp_path / "opened.c", "-o", library, *options]
        subprocess.run(command, check=True)
        return library

    return built


def test_a_binary_of_a_younger_system_is_refused_and_of_the_stand_ins_not(
    build, compiler, processor, tmp_path
):
    why = ["libopened.so needs GLIBC_2.34"]
    assert wheel_tag.objections([build()], (2, 28), processor) == why
    assert wheel_tag.objections([build()], (2, 34), processor) == []
    script, stubs = ROOT / "cmake/stub_libraries.py", tmp_path / "stubs"
    subprocess.run([sys.executable, script, stubs, "2.28", compiler], check=True)
    old = build("-nodefaultlibs", str(stubs / "libc.so.6"))
    assert wheel_tag.needed_versions(old) == {"GLIBC": FIRST[processor]}
    assert wheel_tag.objections([old], (2, 28), processor) == []


def test_a_library_that_not_every_system_has_is_refused(build, processor):
    library = build("-Wl,--no-as-needed", "-l:libresolv.so.2")
    why = "libopened.so needs libresolv.so.2"
    assert why in wheel_tag.objections([library], (2, 36), processor)


def test_a_binary_for_another_processor_is_refused(build, processor):
    (other,) = set(wheel_tag.PROCESSORS) - {processor}
    assert f"libopened.so is not for {other}" in wheel_tag.objections([build()], (2, 36), other)


@pytest.mark.parametrize(
    ("name", "members", "why"),
    [
        ("ladder_torch-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl", [], "one version of Python"),
        ("ladder_torch-0.1.0-cp310-abi3-linux_x86_64.whl", [], "this machine only"),
        ("ladder_torch-0.1.0-cp310-abi3-manylinux_2_28_x86_64.whl", ["ladder-nvrtc"], "binaries"),
    ],
)
def test_a_wheel_of_other_tags_or_without_a_binary_is_refused(tmp_path, name, members, why):
    left = [f"ladder/{binary}" for binary in wheel_tag.BINARIES if binary not in members]
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        for member in left:
            wheel.writestr(member, b"")
    with pytest.raises(AssertionError, match=why):
        wheel_tag.main(tmp_path / name)
