# SPDX-License-Identifier: Apache-2.0
"""What ladder._C must do in every Python: run by test_inspection.py and by .ci/wheel_test with
interpreters that have neither torch nor numpy. Argument: the folder of the package."""

import gc
import importlib.util
import inspect
import sys
from pathlib import Path

(path,) = Path(sys.argv[1]).glob("_C*.so")
assert path.name == "_C.abi3.so", f"{path.name} is for one version of Python only"
spec = importlib.util.spec_from_file_location("ladder._C", path)
_C = importlib.util.module_from_spec(spec)
spec.loader.exec_module(_C)


def refused(error, words, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except error as raised:
        assert words in str(raised), f"{raised!r} lacks {words!r}"
    else:
        raise AssertionError(f"{function} took {args} {kwargs}")


# Classes, their members and functions; words of both sides in a refusal.
e2m3 = _C.element(name="float6_e2m3")
assert (e2m3.bits, e2m3.decode(1), e2m3.encode(7.5)) == (6, 0.125, 31)
assert repr(e2m3) == "<Element float6_e2m3>" and "format of this name" in _C.element.__doc__
assert str(inspect.signature(_C.bounds.Curve.scaled)) == "(self, /, buffer, traffic)"
assert inspect.signature(_C.explain).parameters["candidates"].default == 8
refused(TypeError, "decode(): code is str, not int", e2m3.decode, "1")
refused(TypeError, "decode(): code is -1, not 0 to 4294967295", e2m3.decode, -1)
refused(TypeError, "decode(): code is float, not int", e2m3.decode, 1.0)
refused(TypeError, "element() takes 1 arguments, not 2", _C.element, "a", "b")
refused(TypeError, "element() lacks name", _C.element)
refused(TypeError, "element() has no parameter for some of {'nam': 'a'}", _C.element, "a", nam="a")
refused(TypeError, "element() has two of name", _C.element, "a", name="a")
refused(TypeError, "instances of this class come from functions", _C.Element)
refused(ValueError, "uint9", _C.element, "uint9")
refused(AttributeError, "", setattr, e2m3, "bits", 3)

# Numbers, enumerations, sequences, dictionaries.
bounds = _C.bounds
half = bounds.Bytes(store=2, buffer=2)
assert (half.store, half.code) == (2.0, 0.0)
einsum = bounds.matmul(16, 256, 512, half, half, half)
assert sorted(size for _, size in einsum.ranks) == [16, 256, 512]
assert list(bounds.Factors.__members__) == ["divisors", "integers"]
assert (
    bounds.Factors.divisors.name == "divisors" and bounds.Factors.__module__ == "ladder._C.bounds"
)
curve = bounds.ski_slope(einsum, bounds.Factors.divisors, bounds.Space.uniform)
assert len(curve) == len(curve.points) > 2 and curve == bounds.Curve(curve.points)
assert curve != 1 and not isinstance(hash(bounds), type(None))
refused(TypeError, "unhashable", hash, curve)
refused(
    TypeError,
    "arg1 is int, not a member of its enumeration",
    bounds.ski_slope,
    einsum,
    0,
    bounds.Space.uniform,
)
refused(TypeError, "points is str, not a sequence", bounds.Curve, "points")
refused(TypeError, "arg0 is list, not 9 items", bounds.conv2d, [1, 2], half, half, half)
_, _, tile, order = bounds.best_mappings(einsum, bounds.Factors.divisors, bounds.Space.uniform)[0]
assert set(tile) == set(order) == {name for name, _ in einsum.ranks}
area = bounds.AreaModel()
area.hertz = 1.5e9
assert area.hertz == 1.5e9
refused(TypeError, "is str, not float", setattr, area, "hertz", "fast")
refused(TypeError, "cannot be deleted", delattr, area, "hertz")

# Operators, overloads, numbers in the place of an index, memory that the interpreter writes.
program = _C.program
layout = program.local([2, 1]) * program.spatial([1, 32])
assert layout.shape == [2, 32] and layout.threads == 32
refused(TypeError, "unsupported operand", lambda: layout * 2)
builder = program.Builder("twice", 1, 1, 32)
to = builder.memory("output", "y", "f32", [2, 32], [])
tile = builder.fill("f32", layout, 1.5, "a")
tile = builder.binary("add", tile, tile, "b")
tile = builder.binary("multiply", tile, 2, "c")
index = 2 * builder.x + 0
index = (1 + index) // 1 % 2
assert isinstance(index, program.Index)
refused(TypeError, "arg2 is str, not Index or int", builder.store, tile, to, [0, "0"])
refused(ValueError, "operation nonsense is not one of", builder.binary, "nonsense", tile, tile, "")
builder.store(tile, to, [0, builder.x])
done = builder.finish().with_barriers()
done.verify("h200")
assert done.parameters(tokens=1) == [("y", "f32", False, 64)] and "twice" in done.source("CUDA")
memory = bytearray(256)
import ctypes  # noqa: E402

address = ctypes.addressof((ctypes.c_char * 256).from_buffer(memory))
done.interpret([(address, 256, False)], 1)
assert list(memoryview(memory).cast("f")) == [6.0] * 64
refused(NotImplementedError, "no matrix instruction takes u32", program.operand, "u32", "a")

# References: nothing that is made and dropped stays, and no shared object loses a reference.
if sys.implementation.name == "cpython":

    def work():
        points = bounds.Curve(curve.points).points
        refused(TypeError, "is str", e2m3.decode, "1")
        return points, einsum.ranks, bounds.Layer, curve == curve, done.parameters(1)

    shared = (None, bounds.Curve, curve, bounds.Factors.divisors)
    for _ in range(3):
        work()
    gc.collect()
    counts = [
        sys.getrefcount(item) for item in (None, bounds.Curve, curve, bounds.Factors.divisors)
    ]
    blocks, calls = sys.getallocatedblocks(), 2000
    for _ in range(calls):
        work()
    gc.collect()
    after = [sys.getrefcount(item) for item in shared]
    # A leak is one object a call; caches of the interpreter take up to some hundred.
    assert sys.getallocatedblocks() - blocks < calls / 2, "objects of Python leak"
    assert all(abs(b - a) < 500 for a, b in zip(counts, after, strict=True)), (counts, after)
print(f"_C: fine in Python {sys.version.split()[0]}")
