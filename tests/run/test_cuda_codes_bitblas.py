# SPDX-License-Identifier: Apache-2.0
"""ladder.bitblas with activations of 8 bits, on a GPU."""

import pytest
import torch
from coded import x_of
from drawn import generator
from gpu import E4M3, MARKS, prepared

import ladder
import ladder.bitblas as bitblas
from ladder.ops import codes
from ladder.types import parse

pytestmark = MARKS


@pytest.mark.parametrize("out", ["int32", "float16", "float32"])
@pytest.mark.parametrize("W", ["int1", "int2", "uint2", "int4", "uint4", "int8", "uint8"])
def test_bitblas_multiplies_int8_exactly(W, out):
    """BitNet's int2 by int8 among them; int8 by int8 is torch's integer product."""
    k = 1024
    matmul = bitblas.Matmul(
        bitblas.MatmulConfig(
            N=200, K=k, A_dtype="int8", W_dtype=W, accum_dtype="int32", out_dtype=out
        )  # fmt: skip
    )
    signed = W.startswith("int")
    if W == "int1":
        given = torch.randint(0, 2, (200, k), generator=generator(1)) * 2 - 1
    else:
        low = -(1 << (matmul.bit - 1)) if signed else 0
        given = torch.randint(low, low + (1 << matmul.bit), (200, k), generator=generator(1))
    packed = matmul.transform_weight(given.to(torch.int8 if signed else torch.uint8)).cuda()
    for m in (1, 5, 16, 17, 300):
        x = torch.randint(-128, 128, (m, k), generator=generator(m)).to(torch.int8).cuda()
        exact = x.double() @ given.double().cuda().T
        assert torch.equal(matmul(x, packed), exact.to(getattr(torch, out)))
    if W != "int8":
        (kept,) = matmul._images._kept.values()
        assert kept.image.for_codes is not None


@pytest.mark.parametrize("W", ["e4m3_float8", "fp4_e2m1"])
def test_bitblas_multiplies_float8_by_bytes(W):
    if not E4M3:
        pytest.skip("needs compute capability 8.9")
    matmul = bitblas.Matmul(
        bitblas.MatmulConfig(N=200, K=512, A_dtype="e4m3_float8", W_dtype=W, out_dtype="float32")
    )
    values = torch.randint(-2, 3, (200, 512), generator=generator(2)).float()
    element = parse(W).element
    table = element.values.float()
    stored = (table[None] - values.view(-1, 1)).abs().nan_to_num(9e9).argmin(-1).view(200, 512)
    packed = matmul.weight_transform(stored.to(torch.uint8)).cuda()
    for m in (1, 16, 100):
        x = x_of(m, 512, "float8_e4m3")
        y = matmul(x, packed)
        assert torch.equal(y, (x.double() @ values.double().cuda().T).float())
    (kept,) = matmul._images._kept.values()
    assert kept.image.for_codes is not None


def test_the_bound_by_which_int32_is_chosen_is_that_of_the_kernels():
    """The largest sum that float32 is said to hold, and the next smaller."""
    k = 16384
    stored = torch.zeros(64, k, dtype=torch.int64)  # -8 of int4 as two's complement is 8
    stored[:] = 8
    weight = ladder.Weight.from_codes(stored.to(torch.uint8), parse("int4"))
    layer = prepared(weight)
    assert codes.are_exact_in_float32(parse("int4"), k)
    x = torch.full((3, k), -128, dtype=torch.int8, device="cuda")
    x[1, 0] = -127
    y = layer.forward_codes(x, out_dtype=torch.int32)
    assert y[:, 0].tolist() == [2**24, 2**24 - 8, 2**24]
