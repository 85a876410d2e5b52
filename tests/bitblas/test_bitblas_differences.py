# SPDX-License-Identifier: Apache-2.0
"""One test for each row of the table in docs/bitblas.md."""

from pathlib import Path

import checkpoint_oracle as oracle
import pytest
import torch
from test_bitblas_linear import module_of

import ladder
import ladder.bitblas as bitblas

N, K = 16, 64


def matmul(**fields):
    return bitblas.Matmul(
        bitblas.MatmulConfig(**{"N": N, "K": K, "out_dtype": "float32", **fields})
    )


def identity():
    """[K, K] activations that read one column of the weight each."""
    return torch.eye(K, dtype=torch.float16)


def test_int1_is_minus_one_and_one():
    op, w = matmul(W_dtype="int1"), torch.randint(0, 2, (N, K), dtype=torch.int8) * 2 - 1
    assert torch.equal(op(identity(), op.transform_weight(w)), w.T.float())
    with pytest.raises(ladder.InvalidArgument, match="weight has value 0; int1 has -1 and 1"):
        op.transform_weight(torch.zeros(N, K, dtype=torch.int8))


def test_fp4_e2m1_has_the_values_of_its_name():
    op = matmul(W_dtype="fp4_e2m1")
    codes = torch.arange(16).repeat(N, K // 16).to(torch.uint8)
    values = op(identity(), op.transform_weight(codes))[:16, 0]
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert values.tolist() == magnitudes + [-value for value in magnitudes]


def test_e4m3_weights_keep_zero_and_subnormals():
    for a in ("float16", "bfloat16"):
        op = matmul(W_dtype="e4m3_float8", A_dtype=a, N=4)
        codes = torch.arange(4 * K).view(4, K).to(torch.uint8).clamp(max=126)
        y = op(identity().to(getattr(torch, a)), op.transform_weight(codes.view(torch.int8)))
        assert torch.equal(y.T, codes.view(torch.float8_e4m3fn).float())


def test_e5m2_weights_work_with_float16():
    op, w = matmul(W_dtype="e5m2_float8"), torch.randn(N, K).to(torch.float8_e5m2)
    assert torch.equal(op(identity(), op.transform_weight(w)), w.T.float())


@pytest.mark.parametrize("fast", [None, True, False])
def test_w4a8_is_not_off_by_one(fast):
    op = matmul(K=16, A_dtype="int8", W_dtype="int4", out_dtype="int32", fast_decoding=fast)
    y = op(torch.ones(1, 16, dtype=torch.int8), op.transform_weight(torch.ones(N, 16).char()))
    assert y.tolist() == [[16] * N]


def test_int4_is_clamped_at_seven():
    op, w = matmul(W_dtype="int4"), torch.tensor([8, 1, -9, 100]).repeat(N, K // 4)
    y = op(identity(), op.transform_weight(w.to(torch.int8)))
    assert y[:4, 0].tolist() == [7, 1, -8, 7]


def test_rescale_subtracts_negative_zeros():
    op = matmul(W_dtype="uint4", with_scaling=True, with_zeros=True, zeros_mode="rescale")
    w, scale = torch.randint(0, 16, (N, K), dtype=torch.uint8), torch.full((N, 1), 2.0).half()
    y = op(identity(), op.transform_weight(w), scale=scale, zeros=torch.full((N, 1), -3.0).half())
    assert torch.equal(y, (w * 2.0 + 3).T)


def test_int4_takes_scales_in_one_call():
    op = matmul(W_dtype="int4", with_scaling=True, group_size=32)
    w, scale = torch.randint(-8, 8, (N, K), dtype=torch.int8), torch.rand(N, 2).half()
    packed = op.transform_weight(w, scale=scale)
    assert torch.equal(
        op(identity(), packed, scale=scale), (w * scale.float().repeat_interleave(32, 1)).T
    )


def test_nf4_takes_scales_also_in_a_linear():
    layer = bitblas.Linear(
        K, N, W_dtype="nf4", group_size=32, with_scaling=True, out_dtype="float32"
    )
    codes, scales = torch.randint(0, 16, (N, K), dtype=torch.uint8), torch.rand(N, 2).half()
    layer.load_and_transform_weight(codes, scales=scales)
    values = ladder.types.element("nf4").values.float()[codes.long()]
    assert torch.equal(layer(identity()), (values * scales.float().repeat_interleave(32, 1)).T)


def test_a_fixed_m_is_checked():
    op = matmul(M=4, W_dtype="uint4")
    with pytest.raises(ladder.InvalidArgument, match="A has 5 rows; M is fixed at 4"):
        op(torch.ones(5, K).half(), op.transform_weight(torch.ones(N, K)))


def test_act_order_is_honoured():
    truth = oracle.gptq(N, K, group=32, order=True)
    layer = bitblas.Linear(
        K, N, W_dtype="int4", group_size=32, with_scaling=True, out_dtype="float32"
    )
    layer.repack_from_gptq(module_of(truth))
    assert layer.g_idx is not None
    assert torch.equal(layer(identity()), torch.from_numpy(truth.weight).T)


def test_three_bits_repack():
    truth = oracle.gptq(N, K, bits=3, group=32, symmetric=False)
    layer = bitblas.Linear(
        K,
        N,
        W_dtype="uint3",
        group_size=32,
        with_scaling=True,
        with_zeros=True,
        zeros_mode="quantized",
        out_dtype="float32",
    )
    layer.repack_from_gptq(module_of(truth))
    assert torch.equal(layer(identity()), torch.from_numpy(truth.weight).T)


def test_a_zero_of_zero_leaves_its_neighbours_alone():
    truth = oracle.gptq(N, K, group=32, symmetric=False, seed=3)
    assert (truth.zeros == 0).any()
    layer = bitblas.Linear(
        K,
        N,
        W_dtype="uint4",
        group_size=32,
        with_scaling=True,
        with_zeros=True,
        out_dtype="float32",
    )
    layer.repack_from_gptq(module_of(truth))
    assert torch.equal(layer(identity()), torch.from_numpy(truth.weight).T)


def test_sums_are_float32_by_default():
    op = matmul(K=4096, W_dtype="uint1", accum_dtype="float16")
    y = op(torch.ones(1, 4096).half(), op.transform_weight(torch.ones(N, 4096)))
    assert (y == 4096).all(), "float16 sums of ones stop at 2048"


def test_n_and_k_need_not_be_multiples():
    layer = bitblas.Linear(37, 5, W_dtype="int4", out_dtype="float32")
    w = torch.randint(-8, 8, (5, 37), dtype=torch.int8)
    layer.load_and_transform_weight(w)
    assert torch.equal(layer(torch.eye(37).half()), w.T.float())


def test_scales_of_8_bit_pairs_are_applied():
    scale = torch.rand(N, 1) + 0.5
    w = torch.randint(-128, 128, (N, K), dtype=torch.int8)
    op = matmul(A_dtype="int8", W_dtype="int8", with_scaling=True)
    y = op(torch.eye(K, dtype=torch.int8), op.transform_weight(w), scale=scale)
    assert torch.equal(y, (w * scale).T)
    op = matmul(A_dtype="e4m3_float8", W_dtype="e4m3_float8", with_scaling=True)
    w8 = torch.randn(N, K).to(torch.float8_e4m3fn)
    y = op(torch.eye(K).to(torch.float8_e4m3fn), op.transform_weight(w8), scale=scale)
    assert torch.equal(y, (w8.float() * scale).T)


def test_scales_where_there_are_none_are_refused():
    with pytest.raises(ladder.InvalidArgument, match="a W of float16 has neither"):
        matmul(with_scaling=True)
    with pytest.raises(ladder.InvalidArgument, match="scale or zeros given"):
        matmul()(torch.ones(1, K).half(), torch.ones(N, K).half(), scale=torch.ones(N, 1))


def test_gradients_flow_to_the_activations():
    op, w = matmul(W_dtype="int4"), torch.randint(-8, 8, (N, K), dtype=torch.int8)
    x = torch.ones(1, K, dtype=torch.float16, requires_grad=True)
    op(x, op.transform_weight(w)).sum().backward()
    assert torch.equal(x.grad[0], w.sum(0).half())


def test_a_linear_compiles_to_one_graph():
    layer = bitblas.Linear(
        K,
        N,
        W_dtype="uint4",
        group_size=32,
        with_scaling=True,
        with_zeros=True,
        zeros_mode="quantized",
        bias=True,
    )
    layer.load_and_transform_weight(
        torch.randint(0, 16, (N, K)),
        torch.rand(N, 2),
        torch.randint(-128, 128, (2, N // 2), dtype=torch.int8),
    )
    compiled, x = torch.compile(layer, fullgraph=True, backend="eager"), torch.randn(3, K).half()
    assert torch.equal(compiled(x), layer(x))


def test_what_needs_tvm_is_refused_with_the_way_out():
    for call in (bitblas.fast_tune, bitblas.ApplyDefaultSchedule, lambda: bitblas.tvm):
        with pytest.raises(ladder.Unsupported, match="ladder.register_type"):
            call()


def test_the_table_names_every_test_here():
    page = (Path(__file__).parents[2] / "docs" / "bitblas.md").read_text()
    tests = [name for name in globals() if name.startswith("test_")]
    missing = [
        name
        for name in tests
        if name != "test_the_table_names_every_test_here" and f"`{name}`" not in page
    ]
    assert missing == []
