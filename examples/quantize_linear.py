# SPDX-License-Identifier: Apache-2.0
"""Quantise one Linear to many types and see what each costs in bits and in error."""

import torch

import ladder

torch.manual_seed(0)
linear = torch.nn.Linear(1024, 512)
x = torch.randn(4, 1024)
with torch.no_grad():
    exact = linear(x)
    print(f"{'type':44} {'bits/weight':>11} {'relative error':>15}")
    for name, group in (("uint4", 128), ("nf4", 64), ("float6_e3m2", -1), ("mxfp4", None),
                        ("ternary", 64), ("int8", -1)):  # fmt: skip
        packed = ladder.Linear.from_linear(linear, weight_type=name, group_size=group)
        error = (packed(x) - exact).norm() / exact.norm()
        bits = packed.packed_weight.nbytes * 8 / (512 * 1024)
        print(f"{packed.weight_type!s:44} {bits:11.3f} {error:15.4f}")

# A packed layer is a module like any other: it saves, loads and moves.
twin = ladder.Linear(1024, 512, weight_type="uint4", group_size=128)
packed = ladder.Linear.from_linear(linear, weight_type="uint4", group_size=128)
twin.load_state_dict(packed.state_dict())
assert torch.equal(twin(x), packed(x))
