# SPDX-License-Identifier: Apache-2.0
"""bitblas.MatmulConfig: what it completes and what it refuses."""

import pytest

import ladder.bitblas as bitblas
from ladder import InvalidArgument

N, K = 24, 64


def test_configurations_are_made_legal_as_bitblas_does():
    config = bitblas.MatmulConfig(
        N=N,
        K=K,
        W_dtype="uint4",
        group_size=None,
        with_bias=None,
        with_scaling=None,
        with_zeros=None,
        zeros_mode=None,
    )
    assert config.M == (1, 16, 32, 64, 128, 256, 512, 1024)
    assert (config.group_size, config.with_bias, config.zeros_mode) == (-1, False, "original")
    assert config.fast_decoding and config.storage_dtype == "int8"
    assert hash(config) == hash(bitblas.MatmulConfig(N=N, K=K, W_dtype="uint4"))
    batching = bitblas.MatmulConfig(N=N, K=K, optimize_stratety=1)
    assert batching.M[0] == 16 and batching.storage_dtype == "float16"
    assert bitblas.MatmulConfig(M=[1, 2], N=N, K=K).M == (1, 2)
    assert bitblas.MatmulConfig(N=N, K=K, propagate_b=True).propagate_b == 3
    assert not bitblas.MatmulConfig(N=N, K=K, A_dtype="int8", W_dtype="int4").fast_decoding
    assert not bitblas.MatmulConfig(N=N, K=K, A_dtype="bfloat16", W_dtype="int4").fast_decoding
    with pytest.raises(AttributeError):
        config.N = 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"N": None}, "N is None"),
        ({"K": 0}, "K is 0"),
        ({"M": 0}, "M has 0"),
        ({"M": []}, "empty"),
        ({"W_dtype": "int44"}, 'unknown type "int44"'),
        ({"A_dtype": "nf4"}, 'A_dtype is "nf4"'),
        ({"out_dtype": "float7"}, 'out_dtype is "float7"'),
        ({"zeros_mode": "other"}, 'zeros_mode is "other"'),
        ({"layout": "nx"}, 'layout is "nx"'),
        ({"W_dtype": "int4", "layout": "nn"}, 'layout is "nn"'),
        ({"W_dtype": "int4", "with_zeros": True}, "int4 is not an unsigned integer"),
        ({"W_dtype": "uint4", "group_size": 0, "with_scaling": True}, "group_size is 0"),
        ({"W_dtype": "uint4", "group_size": "32"}, "group_size is '32'"),
        ({"propagate_a": 9}, "propagate_a is 9"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(fields, message):
    with pytest.raises(InvalidArgument, match=message):
        bitblas.MatmulConfig(**{"N": N, "K": K, **fields})
