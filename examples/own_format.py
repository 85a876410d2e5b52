# SPDX-License-Identifier: Apache-2.0
"""A number format of your own: say what each code means, and everything else works.

The eight values are where 3-bit codes of normally distributed weights belong (Lloyd's algorithm).
"""

import torch

import ladder

torch.manual_seed(0)
sample = torch.randn(200_000)
values = torch.linspace(-2, 2, 8)
for _ in range(50):
    nearest = (sample[:, None] - values).abs().argmin(1)
    values = torch.stack([sample[nearest == code].mean() for code in range(8)])
values = values / values.abs().max()

ladder.register_type("lloyd3", bits=3, values=values.tolist())
ladder.float_type("float3_mine", exponent=2, mantissa=0)

weight = torch.randn(256, 512) * 0.02
for name in ("lloyd3", "float3_mine", "uint3"):
    packed = ladder.quantize(weight, name, group_size=64)
    error = (packed.dequantize() - weight).norm() / weight.norm()
    print(f"{packed.type!s:44} relative error {error:.4f}")

# It is packed at exactly three bits: 512 codes are 48 words of 32 bits.
assert ladder.quantize(weight, "lloyd3", group_size=64).qweight.shape == (256, 48)
