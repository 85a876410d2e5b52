# SPDX-License-Identifier: Apache-2.0
"""Starts a kernel of every type, and those that make and read images, for compute-sanitizer:

    LADDER_CACHE=/tmp/kernels python tests/run/sanitize.py         # compiles them
    LADDER_CACHE=/tmp/kernels compute-sanitizer --tool memcheck --error-exitcode 1 \\
        python tests/run/sanitize.py                               # and --tool racecheck

Exits with 1 if a result is not exact.
"""

import sys
from itertools import product

import torch
from drawn import exact_weight, formula, integers, stored_types

import ladder

# Ragged in both dimensions; and long rows, which several blocks add up.
SHAPES = ((200, 1000), (128, 4096))
TOKENS = (1, 7, 16, 17)


def main() -> int:
    wrong = kernels = 0
    for type, (n, k) in product(stored_types(), SHAPES):
        for act_order in (False, True) if k % 64 == 0 else (False,):
            weight = exact_weight(type, n, k, act_order=act_order)
            layer, wanted = ladder.Linear.from_weight(weight).cuda(), formula(weight)
            if not layer.prepare():
                print(f"{type} [{n}, {k}] has no kernels")
                wrong += 1
                continue
            for dtype, m in product((torch.float16, torch.bfloat16), TOKENS):
                kernels += layer.compile_for(dtype, m) != ""
                x = integers((m, k), dtype, m)
                if not torch.equal(layer(x.cuda()).cpu(), (x.double() @ wanted.T).to(dtype)):
                    print(f"{type} [{n}, {k}] m={m} {dtype}: wrong")
                    wrong += 1
            if not torch.equal(layer.packed_weight.qweight.cpu(), weight.qweight):
                print(f"{type} [{n}, {k}]: other codes came back")
                wrong += 1
    print(f"{kernels} kernels of few tokens, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
