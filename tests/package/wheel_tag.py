# SPDX-License-Identifier: Apache-2.0
"""Whether a wheel's tags are true: python tests/package/wheel_tag.py WHEEL.

cp310-abi3: its one module of Python keeps to the limited API. manylinux_X_Y_PROCESSOR: its binaries
are for that processor, and no symbol that they need is younger than the libraries of a system with
glibc X.Y (PEP 600). macosx_X_Y_arm64: they are for that processor and macOS X.Y, need what it has,
and are signed, without which its kernel runs no code for arm64.
"""

import base64
import csv
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from mach_o import MachO

#: Newest versions of symbols in GCC's libraries on the oldest systems with that glibc; auditwheel's
#: policies have the same.
RUNTIMES = {
    (2, 28): {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)},
    (2, 31): {"GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12), "GCC": (10, 0, 0)},
    (2, 34): {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (11, 0)},
    (2, 35): {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)},
    (2, 36): {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)},
}
#: Libraries that every system of the tag has, ours and torch's.
ALLOWED = {
    *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libstdc++.so.6"),
    *("libgcc_s.so.1", "libladder_core.so", "libtorch_cpu.so"),
}
SYSTEM, CXX = "/usr/lib/libSystem.B.dylib", "/usr/lib/libc++.1.dylib"
TORCH = "@rpath/libtorch_cpu.dylib"
MACOS_ALLOWED = {SYSTEM, CXX, TORCH, "@rpath/libladder_core.so"}
#: Of each processor the number in ELF's header and the name of glibc's loader.
PROCESSORS = {
    "x86_64": (62, "ld-linux-x86-64.so.2"),
    "aarch64": (183, "ld-linux-aarch64.so.1"),
}
BINARIES = {"libladder.so", "libladder_core.so", "_C.abi3.so", "ladder-nvrtc"}
VERSION = re.compile(r"Name: (GLIBCXX|GLIBC|CXXABI|GCC)_([\d.]+)")


def needed_versions(library: Path) -> dict[str, tuple[int, ...]]:
    """The newest version of each family of symbols that the library needs."""
    command = ["readelf", "--wide", "--version-info", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    newest: dict[str, tuple[int, ...]] = {}
    for family, version in VERSION.findall(text):
        number = tuple(int(part) for part in version.split("."))
        newest[family] = max(newest.get(family, ()), number)
    return newest


def needed_libraries(library: Path) -> set[str]:
    command = ["readelf", "--wide", "-d", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))


def elf_machine(library: Path) -> int:
    return int.from_bytes(library.read_bytes()[18:20], "little")


def objections(libraries: list[Path], glibc: tuple[int, int], processor: str) -> list[str]:
    """Why these binaries are not of manylinux_<glibc>_<processor>; empty if they are."""
    machine, loader = PROCESSORS[processor]
    limits = {"GLIBC": glibc, **RUNTIMES[max(known for known in RUNTIMES if known <= glibc)]}
    out = []
    for library in libraries:
        if elf_machine(library) != machine:
            out.append(f"{library.name} is not for {processor}")
        for family, version in needed_versions(library).items():
            if version > limits[family]:
                out.append(f"{library.name} needs {family}_{'.'.join(map(str, version))}")
        others = needed_libraries(library) - ALLOWED - {loader}
        out += [f"{library.name} needs {name}" for name in others]
    return out


def macos_objections(binaries: list[Path], macos: tuple[int, int]) -> list[str]:
    """Why these binaries are not of macosx_<macos>_arm64; empty if they are."""
    out = []
    for path in binaries:
        try:
            binary = MachO.read(path)
        except ValueError as error:
            out.append(str(error))
            continue
        if binary.oldest > macos:
            out.append(f"{path.name} needs macOS {'.'.join(map(str, binary.oldest))}")
        out += [f"{path.name} needs {name}" for name in set(binary.needs) - MACOS_ALLOWED]
        if binary.rpaths != ["@loader_path"]:
            out.append(f"{path.name} has libraries looked for in {binary.rpaths}")
        if why := binary.unsigned():
            out.append(f"{path.name}: {why}")
    return out


def check_record(archive: zipfile.ZipFile) -> None:
    """Every file is in RECORD once, with its size and digest."""
    # auditwheel adds entries of folders.
    files = [name for name in archive.namelist() if not name.endswith("/")]
    (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    rows = list(csv.reader(archive.read(record).decode().splitlines()))
    listed = {row[0] for row in rows}
    assert len(listed) == len(rows), f"RECORD has {len(rows)} rows, of {len(listed)} files"
    assert listed == {*files}, f"RECORD and the wheel differ in {sorted(listed ^ {*files})}"
    for name, digest, size in rows:
        data = archive.read(name)
        told = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        if name != record:
            assert (digest, size) == (f"sha256={told}", str(len(data))), (
                f"RECORD is wrong of {name}"
            )


def main(wheel: Path) -> None:
    tag = re.fullmatch(r"ladder_torch-[\d.a-z]+-cp310-abi3-(.*)\.whl", wheel.name)
    assert tag, f"{wheel.name} is for one version of Python only"
    platforms = re.findall(rf"manylinux_(\d+)_(\d+)_({'|'.join(PROCESSORS)})", tag[1])
    macos = re.findall(r"macosx_(\d+)_(\d+)_arm64", tag[1])
    assert platforms or macos, f"{wheel.name} is for this machine only"
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if Path(name).name in BINARIES]
        others = [name for name in archive.namelist() if re.search(r"\.so\b", name)]
        assert {Path(name).name for name in names} == BINARIES, f"binaries are {names}"
        assert set(others) <= set(names), f"another's binary is in the wheel: {others}"
        libraries = [Path(archive.extract(name, folder)) for name in names]
        for major, minor, processor in platforms:
            found = objections(libraries, (int(major), int(minor)), processor)
            assert not found, f"not manylinux_{major}_{minor}_{processor}: {found}"
        for major, minor in macos:
            found = macos_objections(libraries, (int(major), int(minor)))
            assert not found, f"not macosx_{major}_{minor}_arm64: {found}"
        check_record(archive)
    print(f"tag: {tag[1]} is what the binaries satisfy")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
