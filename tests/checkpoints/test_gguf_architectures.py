# SPDX-License-Identifier: Apache-2.0
"""Models of each architecture, written as llama.cpp's converter writes them and read again, are the
models that they were: configuration, tensors, logits."""

import pytest
import torch

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from gguf_models import Format, Writer, reference  # noqa: E402

import ladder  # noqa: E402
from ladder.checkpoints import repack  # noqa: E402

SIZES = dict(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=128, max_position_embeddings=64, pad_token_id=0,
    bos_token_id=1, eos_token_id=2,
)  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 50000.0}
RMS = dict(rope_parameters=ROPE, rms_norm_eps=1e-2)
HALF = ROPE | {"partial_rotary_factor": 0.5}
#: Numbers beside those that every model has, none at its default: (kind, architecture, sizes).
DENSE = [
    ("Llama", "llama", RMS),
    ("Mistral", "llama", RMS | {"sliding_window": None}),
    ("Qwen2", "qwen2", RMS),
    ("Qwen3", "qwen3", RMS | {"head_dim": 32}),
    ("Gemma", "gemma", RMS | {"head_dim": 32}),
    ("Gemma2", "gemma2", RMS | {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32,
                                "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}),
    ("Gemma3Text", "gemma3", {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32,
                              "num_hidden_layers": 7, "rms_norm_eps": 1e-2}),
    ("Phi3", "phi3", RMS | {"sliding_window": 16, "rope_parameters": HALF}),
    ("Starcoder2", "starcoder2", {"rope_parameters": ROPE, "norm_epsilon": 1e-2,
                                  "sliding_window": 16}),
    ("StableLm", "stablelm", {"rope_parameters": HALF, "layer_norm_eps": 1e-2}),
    ("Falcon", "falcon", {"rope_parameters": ROPE, "layer_norm_epsilon": 1e-2,
                          "num_key_value_heads": 1}),
    ("Nemotron", "nemotron", {"rope_parameters": HALF, "norm_eps": 1e-2, "head_dim": 64}),
    ("Cohere", "command-r", {"rope_parameters": ROPE, "layer_norm_eps": 1e-2, "logit_scale": 3.0}),
    ("Olmo2", "olmo2", RMS),
    ("Granite", "granite", RMS | {"attention_multiplier": 0.2, "embedding_multiplier": 3.0,
                                  "logits_scaling": 2.0, "residual_multiplier": 0.5}),
    ("SmolLM3", "smollm3", RMS | {"num_hidden_layers": 4}),
    ("Glm4", "glm4", RMS | {"rope_parameters": HALF, "head_dim": 32, "attention_bias": True}),
]  # fmt: skip
EXPERTS = dict(num_experts_per_tok=2)
MIXTURES = [
    ("Mixtral", "llama", RMS | EXPERTS | {"num_local_experts": 4}),
    ("Qwen2Moe", "qwen2moe", RMS | EXPERTS | {"num_experts": 4, "moe_intermediate_size": 96,
                                              "shared_expert_intermediate_size": 64}),
    ("Qwen3Moe", "qwen3moe", RMS | EXPERTS | {"num_experts": 4, "moe_intermediate_size": 96,
                                              "head_dim": 32, "norm_topk_prob": True}),
    ("Olmoe", "olmoe", RMS | EXPERTS | {"num_experts": 4, "intermediate_size": 64}),
    ("GptOss", "gpt-oss", EXPERTS | {
        "num_local_experts": 4, "head_dim": 32, "intermediate_size": 64, "sliding_window": 16,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 50000.0,
                            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                            "original_max_position_embeddings": 64}}),
]  # fmt: skip
#: What llama.cpp's converter writes besides.
FIELDS = {
    "command-r": {"logit_scale": 3.0},
    "gemma2": {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    "gpt-oss": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 64, "expert_feed_forward_length": 64},
    "granite": {"attention.scale": 0.2, "embedding_scale": 3.0, "logit_scale": 2.0,
                "residual_scale": 0.5},
}  # fmt: skip


def make(kind, sizes):
    """A model whose norms and biases are all different."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES | sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def make_writer(model, architecture):
    writer = Writer(model, architecture)
    more = FIELDS.get(architecture, {})
    writer.fields |= {f"{architecture}.{key}": value for key, value in more.items()}
    return writer


def logits(model):
    with torch.no_grad():
        return model(torch.arange(3, 43)[None]).logits


def check_is(model, folder, quantised):
    """``folder`` is ``model``, except for what ``quantised`` tensors were rounded by."""
    read = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    packed = [m for m in read.modules() if isinstance(m, (ladder.Linear, ladder.Experts))]
    assert packed
    by_ladder = logits(read)
    read.dequantize()
    wanted, found = model.state_dict(), read.state_dict()
    assert wanted.keys() == found.keys()
    changed = {name for name in wanted if not torch.equal(wanted[name], found[name])}
    for name in changed:
        most, moved = wanted[name].abs().max(), (wanted[name] - found[name]).abs().max()
        # A norm's offset is added and subtracted in float32; q8_0 rounds to 1/127 of a group's
        # most, and that to float16.
        allowed = 2.0**-23 * (most + 1) if "norm" in name else most * (0.5 / 127 + 2.0**-11)
        assert moved <= allowed, name
    assert sum("norm" not in name for name in changed) == quantised
    model.load_state_dict(found)
    assert torch.equal(logits(model), logits(read))
    # The same weights, multiplied in another order; test_transformers_folders allows 1e-3 of 10.
    assert (by_ladder - logits(model)).abs().max() <= 1e-4 * logits(model).abs().max()


@pytest.mark.parametrize(
    ("kind", "architecture", "sizes"), DENSE, ids=lambda value: str(value)[:10]
)
def test_dense_models_are_what_they_were(kind, architecture, sizes, tmp_path):
    model = make(kind, sizes)
    writer = make_writer(model, architecture)
    parts = ("attn_q.weight", "attn_k.weight", "attn_qkv.weight", "ffn_down.weight")
    writer_had = [name for name in writer.tensors if name.split(".", 2)[-1] in parts]
    for name in parts:
        writer.quantize(name, Format.Q8_0)
    repack(writer.write(tmp_path / "m.gguf"), tmp_path / "out")
    check_is(model, tmp_path / "out", len(writer_had))


@pytest.mark.parametrize(
    ("kind", "architecture", "sizes"), MIXTURES, ids=lambda value: str(value)[:10]
)
def test_mixtures_are_what_they_were(kind, architecture, sizes, tmp_path):
    model = make(kind, sizes)
    writer = make_writer(model, architecture)
    for name in ("attn_q.weight", "attn_k.weight", "_exps.weight"):
        writer.quantize(name, Format.Q8_0)
    report = repack(writer.write(tmp_path / "m.gguf"), tmp_path / "out")
    assert report.modules == 2 * (2 + 2)
    check_is(model, tmp_path / "out", 8)


@pytest.mark.parametrize(("kind", "architecture", "sizes"), MIXTURES[1:3] + MIXTURES[4:],
                         ids=lambda value: str(value)[:10])  # fmt: skip
def test_experts_are_stacks_of_the_files_weights(kind, architecture, sizes, tmp_path):
    """Gate and up of one format, down of another; mxfp4 as gpt-oss's files have it."""
    first, second = (2, 7) if kind != "GptOss" else (39, 39)
    writer = make_writer(make(kind, sizes), architecture)
    for name in ("gate_exps.weight", "up_exps.weight"):
        writer.quantize(name, Format(first))
    writer.quantize("down_exps.weight", Format(second))
    repack(writer.write(tmp_path / "m.gguf"), tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    for number, layer in enumerate(model.model.layers):
        assert isinstance(layer.mlp.experts, ladder.Experts)
        read = {
            which: reference(writer.tensors[f"blk.{number}.ffn_{which}_exps.weight"][0], of)
            for which, of in (("gate", first), ("up", first), ("down", second))
        }
        both = torch.cat((read["gate"], read["up"]), 1)
        assert torch.equal(layer.mlp.experts.gate_up.dequantize(torch.float32), both)
        assert torch.equal(layer.mlp.experts.down.dequantize(torch.float32), read["down"])


def test_gate_and_up_in_one_tensor_are_the_same_stack(tmp_path):
    writer = make_writer(make(*MIXTURES[2][::2]), "qwen3moe")
    writer.quantize("_exps.weight", Format.Q8_0)
    repack(writer.write(tmp_path / "m.gguf"), tmp_path / "apart")
    for layer in range(2):
        gate, up = (
            writer.tensors.pop(f"blk.{layer}.ffn_{which}_exps.weight") for which in ("gate", "up")
        )
        joined = torch.cat((torch.from_numpy(gate[0]), torch.from_numpy(up[0])), 1)
        writer.tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = (joined.numpy(), gate[1])
    repack(writer.write(tmp_path / "one.gguf"), tmp_path / "joined")
    wanted, found = (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict()
        for name in ("apart", "joined")
    )
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize(
    ("kind", "architecture", "rope", "fields"),
    [
        ("Llama", "llama", ROPE | {"rope_type": "linear", "factor": 4.0},
         {"type": "linear", "factor": 4.0}),
        ("Qwen3", "qwen3",
         ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
         {"type": "yarn", "factor": 4.0, "original_context_length": 64}),
        ("Qwen2", "qwen2",
         ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                 "beta_fast": 16.0, "beta_slow": 2.0},
         {"type": "yarn", "factor": 4.0, "original_context_length": 64, "yarn_beta_fast": 16.0,
          "yarn_beta_slow": 2.0}),
        ("Gemma3Text", "gemma3",
         {"full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
          "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0}},
         {"type": "linear", "factor": 8.0}),
    ],
)  # fmt: skip
def test_stretched_rotary_embeddings_are_the_models(kind, architecture, rope, fields, tmp_path):
    more = {"query_pre_attn_scalar": 64, "head_dim": 64, "num_hidden_layers": 7}
    model = make(kind, {"rope_parameters": rope, "max_position_embeddings": 256}
                 | (more if kind == "Gemma3Text" else {}))  # fmt: skip
    writer = make_writer(model, architecture)
    writer.quantize("ffn_down.weight", Format.Q8_0)
    writer.fields |= {f"{architecture}.rope.scaling.{key}": v for key, v in fields.items()}
    if kind == "Gemma3Text":
        writer.fields["gemma3.rope.freq_base_swa"] = 20000.0
    repack(writer.write(tmp_path / "m.gguf"), tmp_path / "out")
    check_is(model, tmp_path / "out", model.config.num_hidden_layers)


def test_phi3s_long_and_short_factors_reach_the_configuration(tmp_path):
    """Of 64 columns of a head half are turned; beyond 16 tokens the long factors hold."""
    most = {"long": 9, "short": 1}
    factors = {name: (1 + torch.rand(16) * most[name]).tolist() for name in most}
    rope = HALF | {"rope_type": "longrope", "original_max_position_embeddings": 16,
                   "attention_factor": 1.25, "long_factor": factors["long"],
                   "short_factor": factors["short"]}  # fmt: skip
    model = make("Phi3", {"rope_parameters": rope, "original_max_position_embeddings": 16})
    writer = make_writer(model, "phi3")
    writer.quantize("ffn_down.weight", Format.Q8_0)
    for name, values in factors.items():
        writer.tensors[f"rope_factors_{name}.weight"] = (torch.tensor(values).numpy(), None)
    writer.fields |= {"phi3.rope.scaling.original_context_length": 16,
                      "phi3.rope.scaling.attn_factor": 1.25}  # fmt: skip
    repack(writer.write(tmp_path / "m.gguf"), tmp_path / "out")
    check_is(model, tmp_path / "out", 2)


def test_tokens_that_end_a_text_are_the_files(tmp_path):
    """Those of transformers' default configurations would never come."""
    writer = make_writer(make("Llama", RMS), "llama")
    writer.quantize("ffn_down.weight", Format.Q8_0)
    writer.fields |= {f"tokenizer.ggml.{name}_token_id": token
                      for name, token in (("bos", 5), ("eos", 7), ("eot", 9))}  # fmt: skip
    repack(writer.write(tmp_path / "m.gguf"), tmp_path / "out")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.bos_token_id, config.eos_token_id) == (5, [7, 9])
