# SPDX-License-Identifier: Apache-2.0
"""Starts a kernel of every type, and those that make and read images, for compute-sanitizer:

    export LADDER_CACHE=$(mktemp -d)
    python tests/run/sanitize.py                                   # compiles them
    compute-sanitizer --tool memcheck --error-exitcode 1 \\
        python tests/run/sanitize.py                               # and --tool racecheck

With two numbers PART PARTS it takes every PARTS-th case from PART on, so that processes can share
the work. Exits with 1 if a result is not exact.
"""

import sys
from itertools import islice, product

import torch
from drawn import STORED, exact_weight, formula, integers, stored_types

import ladder

HALVES = (torch.float16, torch.bfloat16)
TOKENS = (1, 7, 16)  # above, the product is torch's


def cases():
    """Every type, ragged in both dimensions; and every kind of metadata with long rows, which
    several blocks add up, in both orders of columns."""
    yield from ((type, 200, 1000, False) for type in stored_types())
    yield from product(STORED, (128,), (4096,), (False, True))


#: What only large weights have among their first schedules, where, and the types to start: CTAs
#: of several tiles of rows, activations that come in stages.
LARGE = (
    (
        "tiles per CTA",
        28672,
        2048,
        ("uint1,zero=midpoint", "uint4,zero=midpoint", "float6_e3m2", "nf4"),
    ),
    ("activation stages", 8192, 8192, ("uint4,zero=midpoint", "float6_e3m2")),
)


def large():
    """Each of :data:`LARGE` with each type, activation and number of tokens."""
    for (kind, n, k, elements), dtype, m in product(LARGE, HALVES, (1, 16)):
        yield from ((kind, n, k, element, dtype, m) for element in elements)


def run_large(kind: str, n: int, k: int, element: str, dtype: torch.dtype, m: int) -> tuple:
    """Calls and wrong results of the schedules of that kind."""
    calls = wrong = 0
    ops = torch.ops.ladder
    type = f"{element},group=128,scale=float16"
    weight = exact_weight(type, n, k)
    layer, wanted = ladder.Linear.from_weight(weight).cuda(), formula(weight)
    if not layer.prepare():
        return 0, 1
    x = integers((m, k), dtype, m)
    right = (x.double() @ wanted.T).to(dtype)
    for schedule in ops.schedules(layer._weight_number, 0, dtype, m, 24).splitlines():
        if kind not in schedule:
            continue
        try:
            ops.use_schedule(layer._weight_number, 0, dtype, m, schedule, False)
        except RuntimeError:  # it spills: no kernel
            continue
        calls += 1
        if not torch.equal(layer(x.cuda()).cpu(), right):
            print(f"{type} {dtype} {schedule}: wrong")
            wrong += 1
    return calls, wrong


def main(part: int = 0, parts: int = 1) -> int:
    counts = [run_large(*case) for case in islice(large(), part, None, parts)]
    large_calls, wrong = (sum(count[i] for count in counts) for i in range(2))
    kernels = 0
    for type, n, k, act_order in islice(cases(), part, None, parts):
        name = f"{type} [{n}, {k}]{' act-order' if act_order else ''}"
        weight = exact_weight(type, n, k, act_order=act_order)
        layer, wanted = ladder.Linear.from_weight(weight).cuda(), formula(weight)
        if not layer.prepare():
            print(f"{name} has no kernels")
            wrong += 1
            continue
        for dtype in (*HALVES, torch.float32):
            values = torch.ops.ladder.dequantize_image(
                layer.image, layer._weight_number, n, k, dtype
            )
            if not torch.equal(values.cpu(), wanted.to(dtype)):
                print(f"{name} {dtype}: wrong values")
                wrong += 1
        for dtype, m in product(HALVES, TOKENS):
            if layer.compile_for(dtype, m) == "":  # the range of the format is not float16's
                continue
            kernels += 1
            x = integers((m, k), dtype, m)
            if not torch.equal(layer(x.cuda()).cpu(), (x.double() @ wanted.T).to(dtype)):
                print(f"{name} m={m} {dtype}: wrong")
                wrong += 1
        if not torch.equal(layer.packed_weight.qweight.cpu(), weight.qweight):
            print(f"{name}: other codes came back")
            wrong += 1
    print(f"{kernels} calls of kernels, {large_calls} more of large weights, {wrong} results wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
