# SPDX-License-Identifier: Apache-2.0
"""bitblas.Matmul under names and dtypes that users may write, beside those of BitBLAS."""

import pytest
import torch

import ladder.bitblas as bitblas
from ladder import InvalidArgument

N, K = 16, 64


def operator(**fields):
    return bitblas.Matmul(
        bitblas.MatmulConfig(**{"N": N, "K": K, "out_dtype": "float32", **fields})
    )


def product(matmul, weight, values, **parts):
    """Whether the operator multiplies by ``values``, exactly."""
    x = torch.randint(-2, 3, (3, K)).half()
    return torch.equal(matmul(x, matmul.transform_weight(weight), **parts), x.float() @ values.T)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("half", "float16"), ("FLOAT16", "float16"), ("bf16", "bfloat16"), ("fp32", "float32")],
)
def test_a_dense_weight_by_another_name_is_no_codes(typed, meant):
    weight = torch.randint(1, 8, (N, K)).to(getattr(torch, meant))
    matmul = operator(W_dtype=typed)
    assert matmul.config.W_dtype == meant
    assert product(matmul, weight, weight.float())


@pytest.mark.parametrize("typed", ["INT1", "Int4", "INT8", "UINT4"])
def test_capitals_change_nothing(typed):
    low, high = {"INT1": (0, 2), "Int4": (-8, 8), "INT8": (-128, 128), "UINT4": (0, 16)}[typed]
    weight = torch.randint(low, high, (N, K))
    weight = weight * 2 - 1 if typed == "INT1" else weight
    assert product(operator(W_dtype=typed), weight, weight.float())


@pytest.mark.parametrize("typed", ["fp8", "e4m3", "float8_e4m3fn", "F8_E5M2", "e5m2_float8"])
def test_float8_tensors_are_read_by_every_name_of_their_format(typed):
    dtype = torch.float8_e5m2 if "5" in typed else torch.float8_e4m3fn
    weight = torch.randint(-8, 9, (N, K)).float()
    assert product(operator(W_dtype=typed), weight.to(dtype), weight)


@pytest.mark.parametrize(
    ("W_dtype", "dtype"),
    [
        ("e4m3_float8", torch.float8_e5m2),
        ("e5m2_float8", torch.float8_e4m3fn),
        ("uint8", torch.float8_e4m3fn),
    ],
)
def test_float8_tensors_of_another_format_are_refused(W_dtype, dtype):
    message = f"weight has dtype {str(dtype)[6:]}, but W_dtype is {W_dtype}"
    with pytest.raises(InvalidArgument, match=message):
        operator(W_dtype=W_dtype).transform_weight(torch.ones(N, K).to(dtype))


def test_signed_integers_with_their_fields_are_values_too():
    weight = torch.randint(-8, 8, (N, K))
    scale = torch.tensor([0.5, 2.0]).half().expand(N, 2).contiguous()
    values = weight * scale.float().repeat_interleave(32, 1)
    matmul = operator(W_dtype="int4,group=32,scale=float16", with_scaling=True)
    assert product(matmul, weight, values, scale=scale)


def test_values_beyond_int32_are_clamped_and_do_not_wrap():
    weight = torch.full((N, K), 2**32 - 3)
    assert product(operator(W_dtype="int4"), weight, torch.full((N, K), 7.0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"W_dtype": "uint4,group=32"}, "with_scaling is True, but uint4,group=32 has no scales"),
        (
            {"W_dtype": "uint4,group=32,scale=float16,zero=rescale", "with_zeros": True},
            "zeros_mode original, which is zero=original, but .* has zero=rescale",
        ),
        (
            {"W_dtype": "uint4,group=32,scale=float16,zero=original"},
            "with_zeros is False .* has zero=original",
        ),
        (
            {"W_dtype": "uint4,group=32,scale=float16", "with_zeros": True},
            "with_zeros is True .* has zero=none",
        ),
    ],
)
def test_fields_of_w_dtype_that_contradict_the_others_are_refused(fields, message):
    with pytest.raises(InvalidArgument, match=message):
        bitblas.MatmulConfig(N=N, K=K, with_scaling=True, **fields)
