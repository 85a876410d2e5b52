# SPDX-License-Identifier: Apache-2.0
"""The kernels of ``ladder calibrate`` compile without a device, and have what they measure."""

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

from ladder.cuda import calibrate_kernels as kernels

CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)


def nvrtc():
    """NVRTC where pip put it, or None."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(root) / "cu13" / "lib"
        if (folder / "libnvrtc.so.13").exists():
            # NVRTC looks for it by name, where no loader searches.
            ctypes.CDLL(str(next(folder.glob("libnvrtc-builtins.so.13*"))), ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(folder / "libnvrtc.so.13"))
    return None


def compiled(library, text, capability):
    """The log of ptxas, in the options of csrc/codegen/cuda/toolchain.cpp."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    name = f"sm_{capability}{'a' if capability >= 90 else ''}"
    options = (f"--gpu-architecture={name}", "--std=c++17", "--ptxas-options=-v")
    library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    result = library.nvrtcCompileProgram(program, len(options), given)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    assert result == 0, log.value.decode()
    return log.value.decode()


def texts(capability):
    found = {
        "read": kernels.READ.replace("PASSES", "64"),
        "integers": kernels.INTEGERS,
        "latency": kernels.LATENCY,
        "ticket": kernels.TICKET,
    }
    if capability >= 90:
        found["cluster"] = kernels.CLUSTER
    for operand in kernels.OPERANDS:
        if text := kernels.warp_text(operand, capability):
            found[f"mma {operand}"] = text
        if capability == 90:
            found[f"wgmma {operand}"] = kernels.group_text(operand)
    return found


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_all_compile_without_spills_or_warnings(capability):
    library = nvrtc()
    if library is None:
        pytest.skip("needs NVRTC from pip")
    for name, text in texts(capability).items():
        log = compiled(library, text, capability)
        assert "0 bytes spill stores, 0 bytes spill loads" in log, f"{name}: {log}"
        assert "Performance Loss" not in log and "warning" not in log, f"{name}: {log}"


def test_a_trip_has_the_products_that_are_counted():
    for capability in CAPABILITIES:
        for operand in kernels.OPERANDS:
            text = kernels.warp_text(operand, capability)
            if not text:
                assert kernels.warp_products(operand, capability) == 0
                continue
            m, n, k = map(int, re.search(r"\.m(\d+)n(\d+)k(\d+)\.", text).groups())
            steps = int(re.search(r"i < (\d+); \+\+i\)\s+asm", text)[1])
            assert kernels.warp_products(operand, capability) == m * n * k * steps
    for operand in kernels.OPERANDS:
        shapes = re.findall(r"\.m(\d+)n(\d+)k(\d+)\.", kernels.group_text(operand))
        # A warp has a quarter of a warpgroup's.
        products = sum(int(m) * int(n) * int(k) for m, n, k in shapes)
        assert kernels.group_products(operand) == products // 4
