# SPDX-License-Identifier: Apache-2.0
"""``ladder repack`` of GGUF files, which the ``gguf`` package writes, against its own decoding and
transformers' loader."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from gguf_models import Format, Writer, random_blocks, reference  # noqa: E402

import ladder  # noqa: E402
from ladder.checkpoints import repack  # noqa: E402
from ladder.checkpoints.gguf import read  # noqa: E402
from ladder.checkpoints.gguf import repack as gguf_repack  # noqa: E402
from ladder.checkpoints.gguf.blocks import BLOCKS  # noqa: E402
from ladder.checkpoints.gguf.header import GgufFile  # noqa: E402
from ladder.checkpoints.gguf.read import unpack  # noqa: E402

ROOT = Path(__file__).parents[2]
LLAMA = dict(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=64, vocab_size=128, max_position_embeddings=64,
)  # fmt: skip
FILE = GgufFile("a file", 3, {}, {})


def make(kind, seed=0, **sizes):
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**LLAMA | sizes)
    return transformers.AutoModelForCausalLM.from_config(config).float().eval()


def of_transformers(path):
    model = transformers.AutoModelForCausalLM
    return model.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def of_ladder(path):
    model = transformers.AutoModelForCausalLM
    model, info = model.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(3, 40)[None]).logits


def check_equal(path, folder):
    """The folder's model is the one that transformers makes of the file, bit by bit."""
    dense, model = of_transformers(path), of_ladder(folder)
    packed = logits(model)
    model.dequantize()
    ours, theirs = model.state_dict(), dense.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
    assert torch.equal(logits(model), logits(dense))
    # The same weights, multiplied in another order. With iq1_m scores of attention are so large
    # that a softmax near a tie makes their rounding 1e-4 of the largest logit (AVX2; NEON: 2e-4).
    assert (packed - logits(dense)).abs().max() <= 1e-3 * logits(dense).abs().max()


def bits_of(weight):
    return 8 * weight.nbytes / weight.shape[0] / weight.shape[1]


@pytest.mark.parametrize("number", BLOCKS, ids=lambda number: BLOCKS[number].name)
def test_blocks_mean_what_gguf_says_bit_by_bit(number):
    """Blocks of any bits: every code, scale and minimum is one of them."""
    blocks = random_blocks(number, 16, 1024)
    weight = unpack(FILE, "w", BLOCKS[number], torch.from_numpy(blocks))
    found, wanted = weight.dequantize(), reference(blocks, number)
    assert torch.equal(found, wanted)
    if number not in (Format.MXFP4, Format.NVFP4):  # whose code 8 is -0, for gguf 0
        assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))


def test_documented_bits_of_a_weight_are_those_that_it_takes():
    text = (ROOT / "docs" / "format.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \| `([^|]+)` \| ([\d.]+) \|$", text, re.MULTILINE)
    said = {name: row[1:] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert said.keys() == {block.name for block in BLOCKS.values()}
    for number, block in BLOCKS.items():
        weight = unpack(FILE, "w", block, torch.from_numpy(random_blocks(number, 4, 1024)))
        assert said[block.name] == (str(block.ttype), f"{bits_of(weight):g}"), block.name


@pytest.mark.parametrize("number", [n for n in BLOCKS if n != Format.NVFP4],
                         ids=lambda number: BLOCKS[number].name)  # fmt: skip
def test_a_llama_of_each_format_is_the_model_that_transformers_loads(number, tmp_path):
    writer = Writer(make("Llama"))
    for name in ("attn_q.weight", "attn_k.weight", "ffn_down.weight"):
        writer.quantize(name, Format(number))
    path = writer.write(tmp_path / "m.gguf")
    report = repack(path, tmp_path / "out")
    assert report.quant_method == "gguf"
    assert list(report.types) == [str(BLOCKS[number].ttype)]
    assert report.modules == 6
    check_equal(path, tmp_path / "out")


def test_a_file_of_several_formats_with_embedding_and_head(tmp_path):
    """As llama.cpp's Q4_K_M has it: most q4_K, some q6_K, norms f32; here q5_1 and f16 as well."""
    writer = Writer(make("Llama", tie_word_embeddings=False))
    values, _ = writer.tensors["blk.1.ffn_gate.weight"]
    for name in ("attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_down", "token_embd"):
        writer.quantize(f"{name}.weight", Format.Q4_K)
    writer.quantize("attn_v.weight", Format.Q6_K)
    writer.quantize("ffn_up.weight", Format.Q5_1)
    writer.tensors["blk.1.ffn_gate.weight"] = (values.astype("float16"), None)
    head, _ = writer.tensors["output.weight"]
    writer.tensors["output.weight"] = (gguf.quantize(head, Format.Q8_0), Format.Q8_0)
    path = writer.write(tmp_path / "m.gguf")
    report = repack(path, tmp_path / "out")
    check_equal(path, tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "config.json").read_text())
    left = stored["quantization_config"]["modules_to_not_convert"]
    assert left == ["model.layers.1.mlp.gate_proj"]
    assert any("embed_tokens" in note for note in report.notes)
    model = of_ladder(tmp_path / "out")
    assert isinstance(model.lm_head, ladder.Linear)
    assert model.model.layers[1].mlp.gate_proj.weight.dtype == torch.float32  # as asked for
    assert stored["dtype"] == "float16" and stored["architectures"] == ["LlamaForCausalLM"]


def test_gpt2_keeps_rows_in_its_packed_weights(tmp_path):
    """Its parameters are [K, N], which a square one does not show."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=2, n_ctx=64)
    config.tie_word_embeddings = True
    writer = Writer(transformers.GPT2LMHeadModel(config).float(), "gpt2")
    for name in ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight"):
        writer.quantize(name, Format.Q8_0)
    path = writer.write(tmp_path / "m.gguf")
    repack(path, tmp_path / "out")
    check_equal(path, tmp_path / "out")


def test_tensors_of_many_pieces_and_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "_ROWS_AT_ONCE", 5 * 256)
    monkeypatch.setattr(gguf_repack, "_SHARD_BYTES", 300_000)
    writer = Writer(make("Llama"))
    for name in ("attn_q.weight", "ffn_down.weight", "token_embd.weight"):
        writer.quantize(name, Format.Q5_1)
    path = writer.write(tmp_path / "m.gguf")
    assert repack(path, tmp_path / "out").shards > 3
    check_equal(path, tmp_path / "out")


def test_float16_scales_take_fewer_bits_and_say_what_they_change(tmp_path):
    writer = Writer(make("Llama"))
    writer.quantize("ffn_down.weight", Format.Q4_K)
    writer.quantize("attn_q.weight", Format.Q4_0)
    path = writer.write(tmp_path / "m.gguf")
    exact = repack(path, tmp_path / "exact")
    narrow = repack(path, tmp_path / "narrow", float16_scales=True)
    rounded = narrow.types["uint4,group=32,scale=float16,zero=rescale"].bytes
    assert rounded / 5 == exact.types["q4_k"].bytes / 4.625
    assert not any("rounded" in note for note in exact.notes)
    (note,) = (note for note in narrow.notes if "rounded" in note)
    assert note.startswith("q4_k: ") and "q4_0" not in note
    states = []
    for folder in ("exact", "narrow"):
        model = of_ladder(tmp_path / folder)
        model.dequantize()
        states.append(model.state_dict())
    names = [name for name in states[0] if "down_proj" in name]
    most = max((states[0][n] - states[1][n]).abs().max().item() for n in names)
    assert f"at most {most:.2g}" in note
    for name, tensor in states[0].items():
        assert (name in names) != torch.equal(tensor, states[1][name]), name


def test_the_tokenizer_of_the_file_is_the_folders(tmp_path):
    tokens = ROOT / "examples" / "tiny-llama-gptq"
    writer = Writer(make("Llama", vocab_size=4096))
    writer.quantize("ffn_down.weight", Format.Q4_0)
    report = repack(writer.write(tmp_path / "m.gguf", tokens), tmp_path / "out")
    assert not any("tokenizer" in note for note in report.notes)
    text = "A test, of 12 words; and 3 lines\n\n of \u00fcmlauts."
    ours, theirs = (
        transformers.AutoTokenizer.from_pretrained(p) for p in (tmp_path / "out", tokens)
    )
    assert ours(text).input_ids == theirs(text).input_ids
    bare = repack(writer.write(tmp_path / "bare.gguf"), tmp_path / "bare")
    assert any("no tokenizer" in note for note in bare.notes)


def test_the_command_repacks_a_file_and_says_what_float16_scales_change(tmp_path):
    writer = Writer(make("Llama"))
    writer.quantize("ffn_down.weight", Format.Q6_K)
    path = writer.write(tmp_path / "m.gguf")
    command = [sys.executable, "-m", "ladder", "repack", path, tmp_path / "out"]
    done = subprocess.run(
        [*command, "--float16-scales"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "q6_k: scales rounded to float16 change weights by" in done.stdout
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    refused = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert refused.returncode != 0 and "--force" in refused.stderr


def test_llama3s_rotary_factors_reach_the_configuration(tmp_path):
    """transformers passes over rope_freqs.weight, without which long texts are another model's."""
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    dense = make("Llama", rope_parameters=rope)
    plain = make("Llama", rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    factors = plain.model.rotary_emb.inv_freq / dense.model.rotary_emb.inv_freq
    writer = Writer(dense)
    writer.tensors["rope_freqs.weight"] = (factors.numpy(), None)
    writer.quantize("ffn_down.weight", Format.Q8_0)
    repack(writer.write(tmp_path / "m.gguf"), tmp_path / "out")
    model = of_ladder(tmp_path / "out")
    assert model.config.rope_parameters == rope
    assert torch.equal(model.model.rotary_emb.inv_freq, dense.model.rotary_emb.inv_freq)
    writer.tensors["rope_freqs.weight"] = ((factors * 1.01).numpy(), None)
    with pytest.raises(ladder.Unsupported, match="not Llama 3's factors"):
        repack(writer.write(tmp_path / "other.gguf"), tmp_path / "other")


def test_a_real_file_of_a_whole_model(real_checkpoint, tmp_path):
    """The small trained model, quantised by gguf."""
    folder = real_checkpoint("tiny-llama-fp16")
    dense = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    writer = Writer(dense)
    for name, number in (("attn_q.weight", Format.Q4_0), ("attn_k.weight", Format.Q4_1),
                         ("attn_v.weight", Format.Q8_0), ("attn_output.weight", Format.Q5_0),
                         ("ffn_up.weight", Format.Q5_1), ("ffn_gate.weight", Format.Q4_0),
                         ("ffn_down.weight", Format.Q8_0), ("token_embd.weight", Format.Q8_0),
                         ):  # fmt: skip
        writer.quantize(name, number)
    path = writer.write(tmp_path / "m.gguf", folder)
    repack(path, tmp_path / "out")
    check_equal(path, tmp_path / "out")
