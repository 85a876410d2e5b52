# SPDX-License-Identifier: Apache-2.0
"""ggml (llama.cpp) as a peer of the CPU benchmarks, through its own shared libraries.

Nothing of ggml is in this repository. Build it anywhere, with its own choice of instruction sets
(``cmake -DBUILD_SHARED_LIBS=ON``; ``-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON``
for AVX2), and pass the folder that holds ``libggml-base.so`` and ``libggml-cpu.so``.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from pathlib import Path

import torch

#: Numbers of types, which files in the GGUF format store: they never change.
TYPES = {
    **{"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8},
    **{"q2_k": 10, "q3_k": 11, "q4_k": 12, "q5_k": 13, "q6_k": 14, "iq4_nl": 20, "mxfp4": 39},
}

Ptr, Int, Long, Size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t


class _Init(ctypes.Structure):
    _fields_ = [("size", Size), ("buffer", Ptr), ("no_alloc", ctypes.c_bool)]


class _Plan(ctypes.Structure):
    """ggml_cplan. Later versions append fields: the room behind is theirs."""

    _fields_ = [("size", Size), ("data", Ptr), ("room", ctypes.c_uint8 * 240)]


class Ggml:
    """The functions of one build of ggml.

    Args:
        folder: where ``libggml-base.so`` and ``libggml-cpu.so`` are, at any depth.
    Raises:
        FileNotFoundError: one of them is not there.
    """

    def __init__(self, folder: str | Path):
        base, cpu = (self._load(Path(folder), name) for name in ("libggml-base", "libggml-cpu"))
        self._base, self._cpu = base, cpu
        for library, name, result, arguments in (
            (base, "ggml_init", Ptr, [_Init]),
            (base, "ggml_free", None, [Ptr]),
            (base, "ggml_row_size", Size, [Int, Long]),
            (base, "ggml_new_tensor_2d", Ptr, [Ptr, Int, Long, Long]),
            (base, "ggml_get_data", Ptr, [Ptr]),
            (base, "ggml_mul_mat", Ptr, [Ptr, Ptr, Ptr]),
            (base, "ggml_new_graph", Ptr, [Ptr]),
            (base, "ggml_build_forward_expand", None, [Ptr, Ptr]),
            (base, "ggml_quantize_chunk", Size, [Int, Ptr, Ptr, Long, Long, Long, Ptr]),
            (cpu, "ggml_cpu_init", None, []),
            (cpu, "ggml_graph_plan", _Plan, [Ptr, Int, Ptr]),
            (cpu, "ggml_graph_compute", Int, [Ptr, ctypes.POINTER(_Plan)]),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        cpu.ggml_cpu_init()

    @staticmethod
    def _load(folder: Path, name: str) -> ctypes.CDLL:
        found = sorted(folder.rglob(f"{name}.so*"))
        if not found:
            raise FileNotFoundError(f"no {name}.so below {folder}")
        return ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)

    def isas(self) -> str:
        """The instruction sets that this build was compiled for, as ggml names them."""
        names = ("avx", "avx2", "fma", "f16c", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16")
        names += ("amx_int8", "neon", "dotprod", "matmul_int8")
        has = {name: getattr(self._cpu, f"ggml_cpu_has_{name}", None) for name in names}
        return " ".join(name for name in names if has[name] and has[name]())

    def row_bytes(self, type_name: str, k: int) -> int:
        """Bytes of a row of k weights."""
        return self._base.ggml_row_size(self._type(type_name), k)

    @staticmethod
    def _type(name: str) -> int:
        if name not in TYPES:
            raise ValueError(f"no type of ggml is named {name!r} here; known: {', '.join(TYPES)}")
        return TYPES[name]

    def product(
        self, type_name: str, weight: torch.Tensor, x: torch.Tensor, threads: int, copies: int = 1
    ) -> Callable[[], torch.Tensor]:
        """A function that multiplies: ``y[m, n] = sum_k x[m, k] * weight[n, k]``.

        ggml quantises x itself, at every call, where its type asks for it.

        Args:
            type_name: as ggml names it: q4_0, q8_0, q4_k, f32.
            weight: [N, K], float32; quantised here, once.
            x: [M, K], float32.
            threads: of every call.
            copies: of the weight; calls take them in turns, so that they come from memory.
        Returns:
            the function; its result is [M, N], float32, valid until the copy's next turn.
        """
        (n, k), m = weight.shape, x.shape[0]
        kind, base = self._type(type_name), self._base
        row = self.row_bytes(type_name, k)
        room = copies * (n * row + 4 * m * (n + k) + (1 << 20)) + (1 << 20)
        context = base.ggml_init(_Init(room, None, False))
        weight, x = weight.float().contiguous(), x.float().contiguous()
        first, calls = None, []
        for _ in range(copies):
            w = base.ggml_new_tensor_2d(context, kind, k, n)
            data = base.ggml_get_data(w)
            if first is None:
                first = data
                if type_name == "f32":
                    ctypes.memmove(data, weight.data_ptr(), n * row)
                else:
                    base.ggml_quantize_chunk(kind, weight.data_ptr(), data, 0, n, k, None)
            else:
                ctypes.memmove(data, first, n * row)
            tokens = base.ggml_new_tensor_2d(context, self._type("f32"), k, m)
            ctypes.memmove(base.ggml_get_data(tokens), x.data_ptr(), 4 * m * k)
            y = base.ggml_mul_mat(context, w, tokens)
            graph = base.ggml_new_graph(context)
            base.ggml_build_forward_expand(graph, y)
            plan = self._cpu.ggml_graph_plan(graph, threads, None)
            work = torch.empty(plan.size + 64, dtype=torch.uint8)
            plan.data = work.data_ptr()
            numbers = (ctypes.c_float * (m * n)).from_address(base.ggml_get_data(y))
            result = torch.frombuffer(numbers, dtype=torch.float32).view(m, n)
            calls.append((graph, plan, work, result))
        turns = itertools.cycle(calls)

        def run() -> torch.Tensor:
            graph, plan, _, result = next(turns)
            if self._cpu.ggml_graph_compute(graph, ctypes.byref(plan)) != 0:
                raise RuntimeError("ggml could not compute the product")
            return result

        return run
