# SPDX-License-Identifier: Apache-2.0
"""The parts of bitblas beside Matmul and Linear: the cache, attention, codes that users pack."""

import pytest
import torch

import ladder
import ladder.bitblas as bitblas
from ladder import InvalidArgument

N, K, G = 32, 128, 32


def test_operators_are_shared_saved_and_loaded(tmp_path):
    cache = bitblas.cache.OperatorCache()
    config = bitblas.MatmulConfig(N=N, K=K, W_dtype="uint4", with_scaling=True)
    flash = bitblas.FlashAttenConfig(batch=1, heads=2, seq_len=8, dim=16)
    cache.add(config, bitblas.Matmul(config))
    cache.add(flash, bitblas.FlashAtten(flash))
    assert cache.exists(config) and cache.size() == 2
    cache.save_into_database(tmp_path, "cpu")
    loaded = bitblas.cache.OperatorCache()
    loaded.load_from_database(tmp_path, "cpu")
    assert loaded.size() == 2 and loaded.get(config).config == config
    loaded.clear()
    assert loaded.get(config) is None
    assert bitblas.cache.get_database_path().startswith(str(tmp_path))
    bitblas.cache.set_database_path(tmp_path)
    try:
        found = bitblas.cache.load_global_ops_cache(target="cpu")
        assert found is bitblas.global_operator_cache and found.exists(config)
    finally:
        bitblas.cache._database.clear()
    a, b = (bitblas.Linear(K, N, W_dtype="uint2") for _ in range(2))
    assert a.bitblas_matmul is b.bitblas_matmul
    (tmp_path / "cpu" / "torn.json").write_text("{")
    with pytest.raises(ladder.CheckpointError, match="torn.json is not a saved operator"):
        loaded.load_from_database(tmp_path, "cpu")


@pytest.mark.parametrize("layout", ["nnn", "ntn"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_softmax_attention(layout, causal):
    shape = (2, 16, 4, 32)
    config = bitblas.FlashAttenConfig(2, 4, None, 16, 32, layout=layout, is_causal=causal)
    q, k, v = (torch.randn(shape).half() for _ in range(3))
    y = bitblas.FlashAtten(config)(q, k.transpose(1, 3) if layout == "ntn" else k, v)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) / 32**0.5
    if causal:
        scores.masked_fill_(torch.ones(16, 16).triu(1).bool(), float("-inf"))
    wanted = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.float())
    # A mean of v: probabilities and result are rounded to float16 at most, v is exact.
    limit = 2.0**-10 * v.float().abs().amax()
    assert (y.float() - wanted).abs().max() <= limit
    with pytest.raises(InvalidArgument, match="Q has shape"):
        bitblas.FlashAtten(config)(q[:1], k, v)


def test_compressed_and_interleaved_codes():
    import numpy as np

    codes = np.arange(16, dtype=np.int8).reshape(2, 8)
    packed = bitblas.quantization.general_compress(codes, 4)
    assert packed.view(np.uint32).tolist() == [[0x76543210], [0xFEDCBA98]]
    # Code e at bit 0, 16, 4, 20, 8, 24, 12, 28: the even codes below, the odd ones above.
    order = bitblas.quantization.interleave_weight(packed, 4, "float16")
    assert order.view(np.uint32).tolist() == [[0x75316420], [0xFDB9ECA8]]
    with pytest.raises(ladder.Unsupported, match="1 bits for float16"):
        bitblas.quantization.interleave_weight(packed, 1, "float16")
    original, linear, scales, quantised = bitblas.quantization.gen_quant4(K, N, G)
    assert original.shape == quantised.shape == (K, N) and scales.shape == (K // G, N)
    wanted = quantised.half() * scales.repeat_interleave(G, 0)
    assert torch.equal(linear.weight, wanted.t())
