# SPDX-License-Identifier: Apache-2.0
"""GGUF files that are damaged, or hold what ladder cannot hold: refused in a sentence, and no
folder is left behind."""

import struct

import numpy as np
import pytest
import torch

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from gguf_models import Format, Writer  # noqa: E402

from ladder.checkpoints import repack  # noqa: E402
from ladder.checkpoints.gguf.header import read_file  # noqa: E402
from ladder.errors import CheckpointError, InvalidArgument, LadderError, Unsupported  # noqa: E402

SIZES = dict(
    hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=4, head_dim=64, vocab_size=64, max_position_embeddings=64,
)  # fmt: skip


@pytest.fixture
def writer():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES)
    writer = Writer(transformers.AutoModelForCausalLM.from_config(config))
    writer.quantize("attn_v.weight", Format.Q4_0)
    return writer


@pytest.fixture
def whole(writer, tmp_path):
    return writer.write(tmp_path / "whole.gguf")


def refused(path, destination, error, *words, **options):
    with pytest.raises(error) as raised:
        repack(path, destination, **options)
    for word in words:
        assert word in str(raised.value)


def test_a_file_cut_anywhere_is_refused(whole, left_nothing, tmp_path):
    data, cut = whole.read_bytes(), tmp_path / "cut.gguf"
    begin = min(entry.begin for entry in read_file(whole).entries.values())
    for length in (*range(0, begin, 97), begin - 1, begin, len(data) // 2, len(data) - 40):
        cut.write_bytes(data[:length])
        refused(cut, left_nothing, CheckpointError, str(cut))


def test_headers_of_random_bytes_raise_nothing_but_ladders_errors(whole, tmp_path):
    data = whole.read_bytes()
    begin = min(entry.begin for entry in read_file(whole).entries.values())
    rng, changed = np.random.default_rng(0), tmp_path / "changed.gguf"
    refusals = 0
    for _ in range(300):
        damaged = bytearray(data)
        for at in rng.integers(4, begin, 3):
            damaged[at] = rng.integers(256)
        changed.write_bytes(damaged)
        try:
            read_file(changed)
        except LadderError:
            refusals += 1
    assert refusals > 100


@pytest.mark.parametrize(
    ("at", "data", "error", "words"),
    [
        (0, b"GGML", CheckpointError, ["b'GGML'", "no GGUF file"]),
        (4, struct.pack("<I", 1), Unsupported, ["version 1", "2 and 3"]),
        (4, struct.pack(">I", 3), Unsupported, ["big-endian"]),
    ],
)
def test_what_is_no_gguf_file_of_a_known_version(at, data, error, words, whole, left_nothing):
    changed = bytearray(whole.read_bytes())
    changed[at : at + len(data)] = data
    whole.write_bytes(changed)
    refused(whole, left_nothing, error, *words)


def test_formats_that_no_ttype_holds_are_refused_by_name(writer, left_nothing, tmp_path):
    nbytes = gguf.GGML_QUANT_SIZES[Format.IQ2_XXS][1]
    writer.tensors["blk.0.attn_q.weight"] = (np.zeros((256, nbytes), np.uint8), Format.IQ2_XXS)
    path = writer.write(tmp_path / "m.gguf")
    refused(path, left_nothing, Unsupported, "blk.0.attn_q.weight is iq2_xxs", "q4_k", "several")


def test_an_unknown_architecture_is_refused_by_name(writer, left_nothing, tmp_path):
    writer.architecture = "rwkv6"
    path = writer.write(tmp_path / "m.gguf")
    refused(path, left_nothing, Unsupported, "'rwkv6'")


def test_a_missing_tensor_is_named(writer, left_nothing, tmp_path):
    del writer.tensors["blk.0.ffn_up.weight"]
    path = writer.write(tmp_path / "m.gguf")
    refused(path, left_nothing, CheckpointError, "model.layers.0.mlp.up_proj.weight")


def test_a_tensor_that_the_model_has_not_is_named(writer, left_nothing, tmp_path):
    writer.tensors["blk.0.attn_q_norm.weight"] = (np.ones(64, np.float32), None)
    path = writer.write(tmp_path / "m.gguf")
    refused(path, left_nothing, Unsupported, "blk.0.attn_q_norm.weight", "LlamaForCausalLM")


@pytest.mark.parametrize("name", ["attn_v", "attn_output"])  # packed, dense
def test_another_shape_is_refused_with_both(name, writer, left_nothing, tmp_path):
    data, number = writer.tensors[f"blk.0.{name}.weight"]
    writer.tensors[f"blk.0.{name}.weight"] = (data[:128], number)
    path = writer.write(tmp_path / "m.gguf")
    refused(path, left_nothing, CheckpointError, f"blk.0.{name}.weight", "[128, 256]", "[256, 256]")


@pytest.mark.parametrize(
    ("number", "at", "data", "words"),
    [
        (Format.Q4_0, 0, np.float16(np.inf).tobytes(), ["scale of inf"]),
        (Format.Q4_1, 2, np.float16(np.nan).tobytes(), ["minimum of nan"]),
        (Format.MXFP4, 0, b"\xff", ["scale of nan"]),
        (Format.TQ2_0, 0, b"\xff", ["code 3, not 0 to 2"]),
    ],
)
def test_scales_and_codes_that_are_no_numbers(
    number, at, data, words, writer, left_nothing, tmp_path
):
    writer.quantize("attn_output.weight", number)
    blocks, _ = writer.tensors["blk.0.attn_output.weight"]
    blocks[9, at : at + len(data)] = np.frombuffer(data, np.uint8)
    path = writer.write(tmp_path / "m.gguf")
    refused(path, left_nothing, CheckpointError, "blk.0.attn_output.weight", *words)


def test_a_scale_beyond_float16_is_not_rounded_to_infinity(writer, left_nothing, tmp_path):
    writer.quantize("attn_output.weight", Format.Q6_K)
    blocks, _ = writer.tensors["blk.0.attn_output.weight"]
    blocks[3, 192:208], blocks[3, 208:210] = (
        127,
        np.frombuffer(np.float16(1000).tobytes(), np.uint8),
    )
    path = writer.write(tmp_path / "m.gguf")
    refused(path, left_nothing, InvalidArgument, "127000", "float16", float16_scales=True)


def test_stretched_rotary_embeddings_are_taken_or_refused(writer, left_nothing, tmp_path):
    writer.fields |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    folder = tmp_path / "linear"
    repack(writer.write(tmp_path / "m.gguf"), folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    assert config.rope_parameters["rope_type"] == "linear"
    assert config.rope_parameters["factor"] == 4.0
    writer.fields["llama.rope.scaling.type"] = "yarn"
    path = writer.write(tmp_path / "yarn.gguf")
    refused(path, left_nothing, Unsupported, "'yarn'", "rope.scaling.type")


def test_stretched_embeddings_of_one_kind_of_layers_are_refused(left_nothing, tmp_path):
    """A file of Gemma 3 stretches those of its global layers only, and does not say so."""
    config = transformers.Gemma3TextConfig(**SIZES | {"num_hidden_layers": 2})
    config.rope_parameters["full_attention"]["rope_theta"] = 10000.0
    model = transformers.AutoModelForCausalLM.from_config(config)
    config.rope_parameters["rope_theta"] = 10000.0
    writer = Writer(model, "gemma3")
    writer.quantize("attn_v.weight", Format.Q4_0)
    writer.fields |= {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    path = writer.write(tmp_path / "m.gguf")
    refused(path, left_nothing, Unsupported, "'linear'", "gemma3")


def test_a_file_without_quantised_layers_is_refused(writer, left_nothing, tmp_path):
    values = torch.randn(256, 256).numpy()
    writer.tensors["blk.0.attn_v.weight"] = (values, None)
    path = writer.write(tmp_path / "m.gguf")
    refused(path, left_nothing, CheckpointError, "no linear layer is quantised")


def test_arguments_that_are_the_callers_fault(whole, left_nothing, tmp_path):
    refused(tmp_path / "none.gguf", left_nothing, InvalidArgument, "is not a file")
    folder = tmp_path / "folder"
    folder.mkdir()
    refused(folder, left_nothing, InvalidArgument, "GGUF", float16_scales=True)


def test_without_the_gguf_package_one_sentence_says_what_to_install(
    whole, left_nothing, monkeypatch
):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    refused(whole, left_nothing, Unsupported, "pip install 'ladder-torch[gguf]'")
