# SPDX-License-Identifier: Apache-2.0
"""QuantizedCache in models of transformers."""

import copy

import numpy as np
import pytest
import torch
import transformers
from hf_models import GPTQ, TINY, load
from transformers import DynamicCache, EncoderDecoderCache

import ladder
from ladder.errors import InvalidArgument, Unsupported
from ladder.integrations.transformers import QuantizedCache
from ladder.integrations.transformers.cache_layers import PackedLayer

INT8 = "int8,group=32,scale=float16"
SMALL = {"keys": INT8, "values": INT8, "residual": 0, "block": 32}


@pytest.fixture(scope="module")
def example(ladder_folder):
    return load(ladder_folder).eval()


@pytest.fixture(scope="module")
def tokens():
    return torch.from_numpy(np.load(GPTQ / "val_tokens.npy").astype(np.int64))


def generated(model, ids, cache=None, **options):
    options = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0} | options
    return model.generate(ids, past_key_values=cache, **options)


def fresh(kind, **fields):
    """A random model."""
    config = getattr(transformers, f"{kind}Config")(**TINY | fields)
    auto = "Seq2SeqLM" if config.is_encoder_decoder else "CausalLM"
    torch.manual_seed(0)
    return getattr(transformers, f"AutoModelFor{auto}").from_config(config).eval()


def last_logits(model, ids, cache, piece=8, **options):
    """Of the tokens of the last call, in calls of ``piece`` tokens."""
    with torch.no_grad():
        for part in ids.split(piece, 1):
            out = model(part, past_key_values=cache, use_cache=True, **options)
    return out.logits


def test_a_cache_of_dense_layers_is_a_dynamic_cache(example, tokens):
    ids = tokens[:2, :90]
    for options in ({"dense": range(8)}, {"keys": None, "values": None, "block": 32}):
        cache = QuantizedCache(example.config, **options)
        own = last_logits(example, ids, cache)
        assert torch.equal(own, last_logits(example, ids, DynamicCache(config=example.config)))
        assert cache.nbytes == cache.dense_nbytes == 2 * 8 * 2 * 90 * 2 * 64 * 4


def test_a_prompt_in_one_call_has_the_logits_of_a_dynamic_cache(example, tokens):
    cache = QuantizedCache(example.config, keys="uint2", values="uint2", residual=0, block=32)
    own = last_logits(example, tokens[:1, :100], cache, piece=100)
    theirs = last_logits(example, tokens[:1, :100], DynamicCache(config=example.config), piece=100)
    assert torch.equal(own, theirs)
    later = last_logits(example, tokens[:1, 100:101], cache)
    assert not torch.equal(later, last_logits(example, tokens[:1, :101], None)[:, -1:])


def test_eight_bits_give_the_tokens_of_a_dynamic_cache_and_take_their_bytes(example, tokens):
    ids = tokens[:2, :64]
    cache = QuantizedCache(example.config, **SMALL)
    assert torch.equal(generated(example, ids, cache), generated(example, ids))
    assert cache.get_seq_length() == 64 + 39
    packed, dense = 96, 103 - 96  # float32
    assert cache.dense_nbytes == 2 * 8 * 2 * 103 * 2 * 64 * 4
    assert cache.nbytes == 2 * 8 * 2 * 2 * 64 * (packed * (8 + 16 / 32) / 8 + dense * 4)


def test_left_padding_changes_no_token(example, tokens):
    """Tokens that are masked are quantised like others, and seen by none."""
    short = tokens[3:4, :50]
    padded = torch.cat([torch.zeros(1, 14, dtype=torch.int64), short], 1)
    both = torch.cat([tokens[:1, :64], padded])
    mask = torch.ones_like(both)
    mask[1, :14] = 0
    options = {"attention_mask": mask, "max_new_tokens": 12}
    together = generated(example, both, QuantizedCache(example.config, **SMALL), **options)
    for row, ids in ((0, tokens[:1, :64]), (1, short)):
        cache = QuantizedCache(example.config, **SMALL)
        alone = generated(example, ids, cache, max_new_tokens=12)
        assert torch.equal(together[row, 64:], alone[0, ids.shape[1] :])


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"num_beams": 2, "num_return_sequences": 2}])
def test_beams_change_places(example, tokens, options):
    """With dense blocks, so that beams of nearly one score stay in order."""
    ids, options = tokens[:2, :56], options | {"max_new_tokens": 12}
    cache = QuantizedCache(example.config, **SMALL | {"keys": None, "values": None})
    found = generated(example, ids, cache, **options)
    assert torch.equal(found, generated(example, ids, **options))
    assert cache.layers[0].packed[0].length == 64


def test_assisted_decoding_rolls_back(example, tokens):
    """By n-grams of the prompt, most of whose guesses are wrong."""
    ids = torch.cat([tokens[:1, :64], tokens[:1, :20]], 1)
    cache = QuantizedCache(example.config, **SMALL)
    guessed = generated(example, ids, cache, prompt_lookup_num_tokens=8, max_new_tokens=24)
    assert torch.equal(guessed, generated(example, ids, max_new_tokens=24))
    assert cache.get_seq_length() == guessed.shape[1] - 1


def test_a_prompt_is_kept_by_a_copy_and_gone_on_with(example, tokens):
    prompt = QuantizedCache(example.config, **SMALL)
    last_logits(example, tokens[:1, :64], prompt, piece=64)
    for end in (80, 100):
        ids = tokens[:1, :end]
        out = generated(example, ids, copy.deepcopy(prompt), max_new_tokens=8)
        assert torch.equal(out, generated(example, ids, max_new_tokens=8))
    assert prompt.get_seq_length() == 64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes(tokens, dtype):
    model = fresh("Llama", max_position_embeddings=256).to(dtype)
    cache = QuantizedCache(model.config, **SMALL)
    own = last_logits(model, tokens[:1, :100] % 128, cache)
    theirs = last_logits(model, tokens[:1, :100] % 128, DynamicCache(config=model.config))
    assert own.dtype == dtype
    # Logits are below 1, and steps of int8 move them by less than the dtype rounds: 7e-4 and 4e-3.
    torch.testing.assert_close(own, theirs, atol=2 * torch.finfo(dtype).eps, rtol=0)


# --- kinds of models ------------------------------------------------------------------------------

MODELS = {
    "Mistral": {"sliding_window": 70},
    "Gemma3Text": {"sliding_window": 70, "layer_types": ["sliding_attention", "full_attention"]},
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 256},
    # Keys of 16 + 8 numbers, values of 20.
    "DeepseekV3": {
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 20, "first_k_dense_replace": 2, "head_dim": 8, "num_key_value_heads": 2,
    },
    "Qwen3Next": {
        "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "shared_expert_intermediate_size": 32, "head_dim": 32,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_kinds_of_models_predict_as_with_a_dynamic_cache(kind, tokens):
    model = fresh(kind, **{"max_position_embeddings": 256, "head_dim": 32} | MODELS[kind])
    ids = tokens[:2, :160] % 128
    cache = QuantizedCache(model.config, **SMALL)
    assert any(isinstance(layer, PackedLayer) for layer in cache.layers)
    own = last_logits(model, ids, cache, piece=10)
    theirs = last_logits(model, ids, DynamicCache(config=model.config), piece=10)
    assert not torch.equal(own, theirs)
    # Logits are below 1. Steps of int8 move Gemma's by 5e-3, those of the others by 6e-4 at most.
    torch.testing.assert_close(own, theirs, atol=1e-2, rtol=0)
    assert cache.nbytes < cache.dense_nbytes


@pytest.mark.parametrize("kind", ["T5", "Bart"])
def test_encoders_and_decoders_have_a_cache_each(kind):
    """Keys of the encoder are read from the layer as ``keys``, without an update."""
    fields = {"d_model": 64, "num_hidden_layers": 2}
    if kind == "T5":
        fields |= {"d_kv": 32, "num_layers": 2, "num_heads": 2, "d_ff": 96}
    else:
        sizes = {"layers": 2, "attention_heads": 2, "ffn_dim": 96}
        fields |= {
            f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sizes.items()
        }
        fields |= {"max_position_embeddings": 256}
    fields |= {"decoder_start_token_id": 0, "eos_token_id": None, "forced_eos_token_id": None}
    model = fresh(kind, **fields)
    ids = torch.randint(1, 128, (2, 70), generator=torch.Generator().manual_seed(1))
    cache = EncoderDecoderCache(*(QuantizedCache(model.config, **SMALL) for _ in range(2)))
    options = {"max_new_tokens": 40, "min_new_tokens": 40, "output_scores": True}
    options |= {"return_dict_in_generate": True, "num_beams": 2}
    own, theirs = generated(model, ids, cache, **options), generated(model, ids, **options)
    assert torch.equal(own.sequences, theirs.sequences)
    assert any(map(lambda a, b: not torch.equal(a, b), own.scores, theirs.scores))
    for side in (cache.self_attention_cache, cache.cross_attention_cache):
        assert side.nbytes < side.dense_nbytes
    cache.crop(-3)
    assert cache.get_seq_length() == own.sequences.shape[1] - 1 - 3


def test_short_windows_and_named_layers_stay_dense(example):
    model = fresh("Mistral", sliding_window=64, head_dim=32)
    cache = QuantizedCache(model.config, residual=32, block=32)
    assert not any(isinstance(layer, PackedLayer) for layer in cache.layers)
    cache = QuantizedCache(model.config, residual=0, block=32, dense=[-1])
    assert [isinstance(layer, PackedLayer) for layer in cache.layers] == [True, False]
    assert cache.is_sliding == [True, True]


def test_layers_that_keep_more_than_keys_and_values_are_refused_by_name():
    config = transformers.FalconH1Config(**TINY, head_dim=32)
    with pytest.raises(Unsupported, match="layer 0 would be a LinearAttentionAndFullAttention"):
        QuantizedCache(config)
    assert len(QuantizedCache(config, dense=range(2)).layers) == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"block": 48}, InvalidArgument, "block is 48, not a multiple of 32"),
        ({"block": 0}, InvalidArgument, "block is 0, not a multiple of 32"),
        ({"residual": -1}, InvalidArgument, "residual is -1, not a number of tokens"),
        ({"residual": 1.5}, InvalidArgument, "residual is 1.5, not a number of tokens"),
        ({"dense": [8]}, InvalidArgument, "dense names layer 8; the model has 8 layers"),
        ({"keys": "bfloat16"}, InvalidArgument, "keys are of type .* keys=None keeps them"),
        ({"values": "uint4,tensor"}, Unsupported, "values are of type .* several rows"),
        ({"values_per": "row"}, InvalidArgument, "values_per is 'row'"),
        ({"method": "best"}, InvalidArgument, "method is 'best', not one of nearest, search"),
        (
            {"keys": "q4_k"},
            InvalidArgument,
            "keys: q4_k .* 256 columns, which do not divide K, 128",
        ),
    ],
)
def test_arguments_out_of_range_are_refused(example, options, error, message):
    with pytest.raises(error, match=message):
        QuantizedCache(example.config, **options)
    with pytest.raises(InvalidArgument, match="config is a LlamaForCausalLM"):
        QuantizedCache(example)


def test_superblocks_that_heads_do_not_have_are_refused_by_the_first_call(example, tokens):
    cache = QuantizedCache(example.config, values="q4_k")
    with pytest.raises(InvalidArgument, match="values of layer 0: q4_k .* divide K, 64"):
        example(tokens[:1, :4], past_key_values=cache)


def test_a_type_that_does_not_reach_names_the_layer_and_leaves_it(example, tokens):
    """Without scales e2m1 ends at 6, and keys of the example go beyond."""
    cache = QuantizedCache(example.config, keys="float4_e2m1,channel", residual=0, block=32)
    with pytest.raises(InvalidArgument, match=r"^keys of layer \d: "):
        last_logits(example, tokens[:1, :64], cache, piece=64)
    assert 0 in [layer.get_seq_length() for layer in cache.layers]


def test_the_class_is_where_it_is_documented():
    assert ladder.integrations.transformers.QuantizedCache is QuantizedCache
