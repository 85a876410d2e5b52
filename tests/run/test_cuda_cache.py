# SPDX-License-Identifier: Apache-2.0
"""Keys and values in a type (QuantizedCache) on a GPU: what the CPU stores and gives."""

import pytest
import torch
from gpu import MARKS

pytest.importorskip("transformers")

from transformers import LlamaConfig, LlamaForCausalLM

from ladder.errors import InvalidArgument
from ladder.integrations.transformers import QuantizedCache

pytestmark = MARKS
CONFIG = LlamaConfig(
    hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, vocab_size=128,
)  # fmt: skip
TYPES = ["int8,group=32,scale=float16", "uint3,group=32,scale=float16,zero=rescale", "mxfp4",
         "float4_e2m1,group=16,scale=float8_e4m3", "nvfp4"]  # fmt: skip


def small(ttype, **options):
    return QuantizedCache(CONFIG, ttype, ttype, **{"residual": 8, "block": 32} | options)


@pytest.mark.parametrize("along", [("channel", "token"), ("token", "channel")])
@pytest.mark.parametrize("ttype", TYPES)
def test_codes_and_values_are_those_of_the_cpu(ttype, along):
    torch.manual_seed(0)
    caches = [small(ttype, keys_per=along[0], values_per=along[1]) for _ in range(2)]
    seen = []
    for tokens in (100, 1, 60):
        states = [torch.randn(3, 2, tokens, 32, dtype=torch.bfloat16) for _ in range(2)]
        for cache, device in zip(caches, ("cpu", "cuda"), strict=True):
            seen.append([each.cpu() for each in cache.update(*(s.to(device) for s in states), 0)])
    for cache in caches:
        cache.layers[0].crop(-70)
        cache.reorder_cache(torch.tensor([2, 0, 2]))
        seen.append([cache.layers[0].keys.cpu(), cache.layers[0].values.cpu()])
    assert caches[1].layers[0].keys.is_cuda and caches[0].nbytes == caches[1].nbytes
    for on_cpu, on_gpu in zip(seen[::2], seen[1::2], strict=True):
        assert all(map(torch.equal, on_cpu, on_gpu))


def test_numbers_that_are_not_finite_leave_the_layer_as_it_was():
    layer = small(TYPES[0]).layers[0]
    states = torch.randn(1, 2, 20, 32, device="cuda")
    layer.update(states, states)
    bad = states.clone()
    bad[0, 1, 3, 5] = float("nan")
    with pytest.raises(InvalidArgument, match=r"values of layer 0 at \[0, 1, 23, 5\]"):
        layer.update(states, bad)
    assert layer.held == 20 and torch.equal(layer.values, states)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 4}])
@pytest.mark.parametrize("offloading", [False, True])
def test_tokens_of_dense_blocks_are_those_without_a_cache_of_ours(offloading, options):
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).cuda().eval()
    ids = torch.randint(128, (1, 50), device="cuda")
    options = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0} | options
    cache = small(None, offloading=offloading)
    found = model.generate(ids, past_key_values=cache, **options)
    assert cache.layers[0].packed[0].length >= 32
    assert torch.equal(found, model.generate(ids, **options))
