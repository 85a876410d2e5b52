# SPDX-License-Identifier: Apache-2.0
"""Writing programs, an instruction a call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ladder._C import program as _core
from ladder._C.program import Array, Signal
from ladder.program.layouts import Index, Layout
from ladder.program.program import Program
from ladder.types import _checked


class Tile:
    """Registers spread over the threads of a block. Arithmetic with another tile or a number adds
    an instruction; ``+=``, ``-=`` and ``*=`` change the tile itself, as sums over a loop need."""

    def __init__(self, builder: Builder, handle: Any) -> None:
        self._builder, self._handle = builder, handle

    @property
    def layout(self) -> Layout:
        return self._builder._core.layout(self._handle)

    def _with(self, op: str, other: Tile | float) -> Tile:
        return self._builder.binary(op, self, other)

    def _change(self, op: str, other: Tile) -> Tile:
        self._builder._core.update(op, self._handle, other._handle)
        return self

    def __add__(self, other: Tile | float) -> Tile:
        return self._with("add", other)

    def __sub__(self, other: Tile | float) -> Tile:
        return self._with("subtract", other)

    def __mul__(self, other: Tile | float) -> Tile:
        return self._with("multiply", other)

    def __truediv__(self, other: Tile | float) -> Tile:
        return self._with("divide", other)

    def __and__(self, other: Tile | float) -> Tile:
        return self._with("bit_and", other)

    def __rshift__(self, other: Tile | float) -> Tile:
        return self._with("shift_right", other)

    def __lshift__(self, other: Tile | float) -> Tile:
        return self._with("shift_left", other)

    def __neg__(self) -> Tile:
        return self._builder.unary("negate", self)

    def __iadd__(self, other: Tile) -> Tile:  # type: ignore[misc]
        return self._change("add", other)

    def __isub__(self, other: Tile) -> Tile:  # type: ignore[misc]
        return self._change("subtract", other)

    def __imul__(self, other: Tile) -> Tile:  # type: ignore[misc]
        return self._change("multiply", other)


class Builder:
    """Writes a program, an instruction a call.

    Element types are "f16", "bf16", "f32", "u32" and, for tiles, "u1" to "u31": unsigned integers
    packed in words. Names are lower case and unique; numbers replace the empty ones.

    Args:
        name: of the kernel.
        grid: blocks; ``builder.x`` and ``builder.y`` are a block's numbers.
        threads: of a block, a multiple of 32.
    Raises:
        InvalidArgument: by every method, for what no program may have.
    """

    def __init__(self, name: str, grid: tuple[int, int] = (1, 1), threads: int = 128) -> None:
        self._core = _checked(_core.Builder, name, *grid, threads)
        self._given: list[bool] = []

    @property
    def x(self) -> Index:
        return self._core.x

    @property
    def y(self) -> Index:
        return self._core.y

    # --- memory ---

    def input(
        self, name: str, type: str, shape: Sequence[int], strides: Sequence[int] = ()
    ) -> Array:
        """A parameter that the program only reads. Row-major unless ``strides`` say else."""
        return self._memory("input", name, type, shape, strides, True)

    def output(
        self,
        name: str,
        type: str,
        shape: Sequence[int],
        strides: Sequence[int] = (),
        given: bool = False,
    ) -> Array:
        """A parameter that the program writes; with ``given``, one that it may read before."""
        return self._memory("output", name, type, shape, strides, given)

    def shared(
        self, name: str, type: str, shape: Sequence[int], strides: Sequence[int] = ()
    ) -> Array:
        """Memory that the threads of a block share."""
        return _checked(self._core.memory, "shared", name, type, list(shape), list(strides))

    def _memory(
        self,
        kind: str,
        name: str,
        type: str,
        shape: Sequence[int],
        strides: Sequence[int],
        given: bool,
    ) -> Array:
        array = _checked(self._core.memory, kind, name, type, list(shape), list(strides))
        self._given.append(given)
        return array

    def array(
        self,
        of: Array,
        shape: Sequence[int],
        strides: Sequence[int] = (),
        offset: Index | int = 0,
    ) -> Array:
        """The same memory with other extents and strides, from element ``offset`` on."""
        return _checked(self._core.array_view, of, list(shape), list(strides), offset)

    # --- tiles ---

    def _tile(self, method: Callable[..., Any], *arguments: Any) -> Tile:
        return Tile(self, _checked(method, *arguments))

    def load(self, array: Array, at: Sequence[Index | int], layout: Layout, name: str = "") -> Tile:
        """The tile of ``array`` whose first element is ``at``; zero outside."""
        return self._tile(self._core.load, array, list(at), layout, name)

    def store(self, tile: Tile, array: Array, at: Sequence[Index | int]) -> None:
        """Writes a tile; nothing outside of ``array``."""
        _checked(self._core.store, tile._handle, array, list(at))

    def atomic_add(self, tile: Tile, array: Array, at: Sequence[Index | int]) -> None:
        """Adds a float32 tile to global memory, in any order: the one thing that may differ from
        run to run."""
        _checked(self._core.atomic_add, tile._handle, array, list(at))

    def fill(self, type: str, layout: Layout, value: float, name: str = "") -> Tile:
        return self._tile(self._core.fill, type, layout, value, name)

    def view(self, tile: Tile, type: str, layout: Layout, name: str = "") -> Tile:
        """The bits of a tile as another type under another layout: the same threads, as many bits
        in each. Costs nothing."""
        return self._tile(self._core.view, tile._handle, type, layout, name)

    def cast(self, tile: Tile, type: str, name: str = "") -> Tile:
        """Numbers in another type: floats rounded to nearest even, integers towards zero and into
        their range."""
        return self._tile(self._core.cast, tile._handle, type, name)

    def unary(self, op: str, tile: Tile, name: str = "") -> Tile:
        """negate, absolute, reciprocal, square_root, round_to_even of a float32 tile."""
        return self._tile(self._core.unary, op, tile._handle, name)

    def binary(self, op: str, a: Tile, b: Tile | float, name: str = "") -> Tile:
        """add, subtract, multiply, divide, minimum, maximum of float32 or uint32 tiles (divide:
        float32), bit_and, bit_or, bit_xor, shift_left, shift_right of uint32. A dimension of extent
        1 repeats."""
        other = b._handle if isinstance(b, Tile) else float(b)
        return self._tile(self._core.binary, op, a._handle, other, name)

    def reduce(self, op: str, tile: Tile, dim: int, name: str = "") -> Tile:
        """add, minimum or maximum of a float32 tile along ``dim``, in a fixed order."""
        return self._tile(self._core.reduce, op, tile._handle, dim, name)

    def load_matrix(
        self, array: Array, at: Sequence[Index | int], layout: Layout, name: str = ""
    ) -> Tile:
        """A "b" operand out of a shared array [warps, n, k] with rows whole 16 bytes apart."""
        return self._tile(self._core.load_matrix, array, list(at), layout, name)

    def mma(self, total: Tile, a: Tile, b: Tile) -> None:
        """``total[w, m, n] += sum_k a[w, m, k] * b[w, n, k]``, by tensor cores, in float32."""
        _checked(self._core.mma, total._handle, a._handle, b._handle)

    # --- copies and order ---

    def copy_async(self, to: Array, source: Array, at: Sequence[Index | int]) -> None:
        """Starts copying a tile to the shared array ``to``, by all threads."""
        _checked(self._core.copy_async, to, source, list(at))

    def commit(self) -> None:
        """Closes the group of copies since the last one."""
        self._core.commit()

    def wait(self, pending: int = 0) -> None:
        """Waits until at most ``pending`` groups are unfinished."""
        self._core.wait(pending)

    def barrier(self) -> None:
        """All threads of a block. :meth:`build` places those that are needed."""
        self._core.barrier()

    def signal(self, name: str, count: int = 1, arrivals: int = 1) -> Signal:
        """``count`` mbarriers, each phase of which takes ``arrivals``. Initialise it first."""
        return _checked(self._core.signal, name, count, arrivals)

    def signal_init(self, signal: Signal) -> None:
        self._core.signal_init(signal)

    def expect(self, signal: Signal, index: Index | int, bytes: int) -> None:
        """The phase does not end before ``bytes`` have been copied."""
        _checked(self._core.expect, signal, index, bytes)

    def copy_bulk(
        self,
        to: Array,
        source: Array,
        at: Sequence[Index | int],
        signal: Signal,
        index: Index | int = 0,
    ) -> None:
        """Starts the copy engine on a tile; its bytes are counted by a phase. sm_90 and later."""
        _checked(self._core.copy_bulk, to, source, list(at), signal, index)

    def arrive(self, signal: Signal, index: Index | int = 0) -> None:
        """All threads arrive at a phase."""
        _checked(self._core.arrive, signal, index)

    def await_phase(self, signal: Signal, index: Index | int, parity: Index | int) -> None:
        """All threads wait for the end of the phase of that parity: 0, 1, 0, 1, ..."""
        _checked(self._core.await_phase, signal, index, parity)

    # --- control ---

    @contextlib.contextmanager
    def loop(self, name: str, trips: int, unroll: int = 1) -> Iterator[Index]:
        """``with p.loop("i", 8) as i:``. ``unroll`` 0 writes every trip out."""
        yield _checked(self._core.begin_for, name, trips, unroll)
        self._core.end()

    @contextlib.contextmanager
    def when(self, number: Index, value: int) -> Iterator[None]:
        """What follows only where a block or loop number is ``value``."""
        _checked(self._core.begin_if, number, value)
        yield
        self._core.end()

    def build(self, stages: int = 1, device: str = "h200", barriers: bool = True) -> Program:
        """The program, checked.

        Args:
            stages: with 2 or more, loops that begin with copies start them so many trips ahead,
                less one.
            device: the machine whose shared memory it is to fit.
            barriers: False keeps those that were written; True places those that are needed.
        Raises:
            RuntimeError: naming every instruction that is not well formed.
        """
        core = _checked(self._core.finish)
        core = _checked(core.with_pipeline, stages)
        if barriers:
            core = core.with_barriers()
        core.verify(device)
        return Program(core, tuple(self._given))
