# SPDX-License-Identifier: Apache-2.0
"""A kernel of your own: decode a uint4 weight, G = 128, and transpose it, in one pass.

Each block reads 64 rows of 64 codes as words, sees the words as codes, scales them, turns the tile
in shared memory and writes rows of the transpose. On a CPU the interpreter runs and checks it.
"""

import torch

import ladder
from ladder import program as tile

N, K, G = 128, 256, 128
p = tile.Builder("dequantize_transpose", grid=(K // 64, N // 64), threads=128)
codes = p.input("codes", "u32", (N, K // 8))
scales = p.input("scales", "f16", (N, K // G))
out = p.output("out", "f16", (K, N))
turned = p.shared("turned", "f16", (64, 64), (72, 1))  # rows along K; the pad spreads the banks

k, n = p.x * 64, p.y * 64
words = p.load(codes, (n, p.x * 8), tile.spatial(64, 2) * tile.local(1, 4))
code = p.view(words, "u4", tile.spatial(64, 2) * tile.local(1, 32))
scale = p.load(scales, (n, p.x // (G // 64)), tile.spatial(64, 1) * tile.replicated(2))
value = (p.cast(code, "f32") - 8) * p.cast(scale, "f32")
p.store(p.cast(value, "f16"), p.array(turned, (64, 64), (1, 72)), (0, 0))
p.store(p.load(turned, (0, 0), tile.spatial(16, 8) * tile.local(4, 8)), out, (k, n))
kernel = p.build()  # places the one barrier that the turn needs
print(kernel)

device = "cuda" if torch.cuda.is_available() else "cpu"
weight = ladder.quantize(torch.randn(N, K), "uint4", group_size=G)
result = torch.empty(K, N, dtype=torch.float16, device=device)
kernel(weight.qweight.to(device), weight.scales.to(device, torch.float16), result)
assert torch.equal(result.cpu(), weight.dequantize().to(torch.float16).t())
print(f"equal to the reference on {device}; {kernel.barriers} barrier")
