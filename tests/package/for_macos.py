# SPDX-License-Identifier: Apache-2.0
"""What the wheel for macOS takes from others, besides what wheel_tag.py reads; run by
.ci/macos_build, where nothing of macOS runs. Arguments: the wheel, and the folder where torch for
macOS is."""

import sys
import tempfile
import zipfile
from pathlib import Path

from mach_o import MachO
from wheel_tag import BINARIES, CXX, SYSTEM, TORCH

wheel, system = map(Path, sys.argv[1:])
with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
    archive.extractall(folder)
    ours = {name: MachO.read(Path(folder, "ladder", name)) for name in BINARIES}
torch = [MachO.read(path) for path in (system / "torch/lib").glob("*.dylib")]
core, ops, inspection = (ours[n] for n in ("libladder_core.so", "libladder.so", "_C.abi3.so"))

# Before it looks for a file, dyld takes a library that is loaded already and calls itself by the
# @rpath/name that is needed (Loader::getLoader, JustInTimeLoader::matchesPath): torch, wherever
# Python has it from.
(torch_cpu,) = (each for each in torch if each.name == TORCH)
assert TORCH in ops.needs and core.name == "@rpath/libladder_core.so"

#: Functions of macOS' C library that torch does not take: of POSIX.1-2008 and C99, and two of BSD.
LIBC = """_cbrt _dladdr _faccessat _fdopendir _fstatat _fputs _getentropy _ilogb _ldexpf _mkdirat
_mkostemp _openat _renameat _unlinkat"""
oldest = (Path(__file__).parent / "torch_2.11_functions.txt").read_text().split()
there = {
    CXX: set((system / "lib/libc++.tbd").read_text().split('"')),
    SYSTEM: {s for each in torch for s, (of, _) in each.takes.items() if of == SYSTEM}
    | set(LIBC.split()),
    TORCH: torch_cpu.gives & {f"_{name}" for name in oldest},
    core.name: core.gives,
}
for name, binary in ours.items():
    for symbol, (owner, may_lack) in binary.takes.items():
        python = binary is inspection and owner == "" and symbol.startswith(("_Py", "__Py"))
        assert python or may_lack or symbol in there[owner], f"{name}: {symbol} of {owner or 'any'}"

# What one library throws another catches: macOS compares addresses (csrc/base/error.h).
for error in ("15InvalidArgument", "11Unsupported", "14ToolchainError"):
    symbol = f"__ZTIN6ladder{error}E"
    assert symbol in core.gives and symbol not in ops.gives | inspection.gives, symbol
    assert ops.takes[symbol][0] == core.name, symbol
print(f"{len(ours)} binaries take {sum(len(b.takes) for b in ours.values())} symbols, all there")
