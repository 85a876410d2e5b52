# SPDX-License-Identifier: Apache-2.0
"""Activations that are codes of 8 bits, on a device of the test (weights_on_device.py)."""

import copy
import pickle

import pytest
import torch
from weights_on_device import N, operator, parts_of, right


def codes_of(matmul, m):
    if matmul.torch_output_dtype is torch.float32 and "e4m3" in matmul.A_dtype:
        return torch.randint(-16, 17, (m, matmul.K)).to(torch.float8_e4m3fn)
    if "e4m3" in matmul.A_dtype:
        return torch.randint(-3, 4, (m, matmul.K)).to(torch.float8_e4m3fn)
    return torch.randint(-128, 128, (m, matmul.K), dtype=torch.int8)


OF_CODES = [
    ({"A_dtype": "int8", "W_dtype": W, "with_scaling": scaled, "out_dtype": out}, seen)
    for W in ("int1", "int2", "uint2", "int4", "uint4", "uint8")
    for scaled, out, seen in [
        (False, "int32", torch.int32), (False, "float16", torch.float16),
        (False, "float32", torch.float32), (True, "float16", torch.float16),
        (True, "bfloat16", torch.bfloat16), (True, "float32", torch.float32),
    ]
] + [
    ({"A_dtype": "e4m3_float8", "W_dtype": W, "out_dtype": out}, getattr(torch, out))
    for W in ("e4m3_float8", "fp4_e2m1", "int4")
    for out in ("float16", "float32")
]  # fmt: skip


@pytest.mark.parametrize("config,seen", OF_CODES, ids=lambda c: "-".join(map(str, c.values()))
                         if isinstance(c, dict) else "")  # fmt: skip
@pytest.mark.parametrize("with_bias", [False, True])
def test_codes_are_multiplied_by_kernels_of_bytes(device, config, seen, with_bias):
    """Exact, and what the kernel writes is what is asked for, unless a bias comes behind it."""
    matmul = operator(**config, K=256, with_bias=with_bias)
    parts = parts_of(matmul, torch.float32)
    if "scale" in parts:
        parts["scale"] = torch.exp2(parts["scale"].round())
    bias = torch.randint(-4, 5, (N,)).float() if with_bias else None
    weight = matmul.packed_weight(parts["W"], parts.get("scale")).dequantize().double()
    for m in (1, 40):
        x = codes_of(matmul, m)
        y = x.double() @ weight.T + (0 if bias is None else bias)
        wanted = y.to(matmul.torch_output_dtype)
        assert torch.equal(matmul(x, **parts, bias=bias).nan_to_num(), wanted.nan_to_num())
    if with_bias:
        seen = torch.int32 if seen is torch.int32 else torch.float32
    assert device.of_codes == [seen] * 2 and (device.packed, device.multiplied) == (1, 0)


def test_sums_that_float32_does_not_hold_come_as_whole_numbers(device):
    matmul = operator(K=2048, A_dtype="int8", W_dtype="uint8", with_scaling=False, group_size=-1)
    stored = torch.randint(0, 256, (N, 2048), dtype=torch.uint8)
    x = torch.randint(-128, 128, (3, 2048), dtype=torch.int8)
    y = matmul(x, matmul.weight_transform(stored))
    assert torch.equal(y, (x.double() @ stored.double().T).half())
    assert device.of_codes == [torch.int32]


def test_codes_that_no_kernel_takes_go_the_old_way(device):
    matmul = operator(K=256, A_dtype="e4m3_float8", W_dtype="uint8", out_dtype="float32")
    parts, x = parts_of(matmul, torch.float32), torch.randint(-3, 4, (5, 256)).float()
    y = matmul(x.to(torch.float8_e4m3fn), **parts)
    assert torch.equal(y, right(matmul, x, parts))
    assert (device.of_codes, device.multiplied) == ([], 1)


def test_float8_that_asks_for_a_gradient_gets_it(device):
    matmul = operator(K=256, A_dtype="e4m3_float8", W_dtype="e4m3_float8", out_dtype="float32")
    x = torch.zeros(5, 256, requires_grad=True)
    matmul(x.to(torch.float8_e4m3fn), **parts_of(matmul, torch.float32)).sum().backward()
    assert device.of_codes == [] and x.grad.any()


def test_a_bias_of_float8_has_its_gradient(device):
    matmul = operator(K=256, A_dtype="e4m3_float8", W_dtype="e4m3_float8", with_bias=True,
                      out_dtype="float32")  # fmt: skip
    bias = torch.zeros(N, requires_grad=True)
    matmul(codes_of(matmul, 5), **parts_of(matmul, torch.float32), bias=bias).sum().backward()
    assert device.of_codes == [torch.float32] and torch.equal(bias.grad, torch.full((N,), 5.0))


def test_copies_of_an_operator_know_what_their_codes_are():
    matmul = operator(A_dtype="int8")
    assert copy.deepcopy(matmul)._images._codes is torch.int8
    assert pickle.loads(pickle.dumps(matmul))._images._codes is torch.int8
