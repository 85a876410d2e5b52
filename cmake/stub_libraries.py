# SPDX-License-Identifier: Apache-2.0
"""Writes stand-ins for the C and C++ libraries of an older system, to link with.

A program that links with this machine's glibc asks for the newest version of each function and runs
on no older system. The libraries still have the older versions. A stand-in has the name of a
library and, of each of its symbols, the newest version that the older system has, without code.

    python stub_libraries.py FOLDER 2.28 [gcc]

The compiler is that of the processor to link for.
"""

import re
import subprocess
import sys
from pathlib import Path

#: The newest versions of symbols with each glibc, those of the oldest systems that have it.
LIMITS = {"2.28": {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}}
LIBRARIES = ("libc.so.6", "libm.so.6", "libstdc++.so.6")
KINDS = {"FUNC": "@function", "IFUNC": "@function", "OBJECT": "@object", "NOTYPE": "@notype"}
SYMBOL = re.compile(r"(.+?)@@?((\w+?)_([\d.]+))")

Symbol = tuple[tuple[int, ...], str, str, int]


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def symbols(library: str, limits: dict[str, tuple[int, ...]]) -> dict[str, Symbol]:
    """Version as numbers, its name, kind and bytes of each symbol that an older system has."""
    found: dict[str, Symbol] = {}
    for line in run("readelf", "--wide", "--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) < 8 or fields[6] == "UND" or fields[3] not in KINDS:
            continue
        match = SYMBOL.fullmatch(fields[7])
        if match is None or match[3] not in limits:
            continue
        version = tuple(int(part) for part in match[4].split("."))
        if version <= limits[match[3]] and version > found.get(match[1], ((),))[0]:
            found[match[1]] = (version, match[2], KINDS[fields[3]], int(fields[2], 0))
    return found


def write(folder: Path, name: str, limits: dict[str, tuple[int, ...]], gcc: str) -> None:
    library = run(gcc, f"-print-file-name={name}").strip()
    assembly = ['.section .note.GNU-stack,"",@progbits', ".data"]
    versions = set()
    for number, (symbol, row) in enumerate(sorted(symbols(library, limits).items())):
        _, version, kind, size = row
        versions.add(version)
        assembly += [f".globl s{number}", f".type s{number},{kind}", f".size s{number},{size}"]
        assembly += [f"s{number}: .skip {max(size, 1)}", f".symver s{number},{symbol}@@{version}"]
    text, script = folder / f"{name}.s", folder / f"{name}.map"
    text.write_text("\n".join(assembly) + "\n")
    script.write_text("".join(f"{version} {{}};\n" for version in sorted(versions)))
    with script.open("a") as out:
        out.write("none { local: s*; };\n")
    link = ["-shared", "-nostdlib", f"-Wl,-soname,{name}", f"-Wl,--version-script,{script}"]
    run(gcc, *link, "-o", str(folder / name), str(text))


if __name__ == "__main__":
    target, glibc, compiler = Path(sys.argv[1]), sys.argv[2], (sys.argv[3:] or ["gcc"])[0]
    target.mkdir(parents=True, exist_ok=True)
    for each in LIBRARIES:
        write(target, each, LIMITS[glibc], compiler)
