# SPDX-License-Identifier: Apache-2.0
"""GGUF files that are damaged, or hold what ladder cannot hold: refused in a sentence, and no
folder is left behind."""

import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from gguf_models import Format, Writer  # noqa: E402

from ladder.checkpoints import repack  # noqa: E402
from ladder.checkpoints.convert import convert  # noqa: E402
from ladder.checkpoints.gguf.header import GgufFile, read_file  # noqa: E402
from ladder.checkpoints.gguf.rope import set_rope  # noqa: E402
from ladder.checkpoints.info import describe  # noqa: E402
from ladder.errors import CheckpointError, InvalidArgument, LadderError, Unsupported  # noqa: E402

SIZES = dict(
    hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=4, head_dim=64, vocab_size=64, max_position_embeddings=64,
)  # fmt: skip

STRETCHED = {"factor": 4.0, "original_context_length": 32}


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
    nbytes = gguf.GGML_QUANT_SIZES[Format.Q8_K][1]
    writer.tensors["blk.0.attn_q.weight"] = (np.zeros((256, nbytes), np.uint8), Format.Q8_K)
    path = writer.write(tmp_path / "m.gguf")
    refused(path, left_nothing, Unsupported, "blk.0.attn_q.weight is q8_k", "q4_k")


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


def test_stretched_embeddings_of_unknown_kinds_of_layers_are_refused():
    """Gemma 3 stretches those of its global layers; of others nobody knows."""
    for architecture, kinds in (("gemma4", ("full_attention", "sliding_attention")),
                                ("gemma3", ("full_attention", "another"))):  # fmt: skip
        config = SimpleNamespace(rope_parameters={kind: {"rope_theta": 1.0} for kind in kinds})
        fields = {"general.architecture": architecture}
        fields[f"{architecture}.rope.scaling.type"] = "linear"
        fields[f"{architecture}.rope.scaling.factor"] = 8.0
        with pytest.raises(Unsupported, match=f"'linear'.*{architecture}"):
            set_rope(GgufFile("a file", 3, fields, {}), config)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"factor": 4.0}, []),  # from where on, nobody says
        ({**STRETCHED, "yarn_ext_factor": 0.5}, ["yarn_ext_factor 0.5"]),
        ({**STRETCHED, "attn_factor": 2.0}, ["attn_factor 2.0"]),
        ({**STRETCHED, "yarn_log_multiplier": 0.1}, ["yarn_log_multiplier"]),
    ],
)
def test_yarn_that_transformers_lacks_is_refused(fields, words, writer, left_nothing, tmp_path):
    writer.fields |= {"llama.rope.scaling.type": "yarn"}
    writer.fields |= {f"llama.rope.scaling.{key}": value for key, value in fields.items()}
    path = writer.write(tmp_path / "m.gguf")
    refused(path, left_nothing, Unsupported, "'yarn'", *words)


def test_a_field_that_no_configuration_has_is_named(left_nothing, tmp_path):
    """Where ladder makes the configuration, nothing is passed over: Olmo 3 is an olmo2 too."""
    config = transformers.Olmo2Config(**SIZES | {"pad_token_id": 0})
    writer = Writer(transformers.AutoModelForCausalLM.from_config(config), "olmo2")
    writer.quantize("attn_v.weight", Format.Q4_0)
    for name in ("olmo2.attention.sliding_window", "olmo2.rope.dimension_sections"):
        writer.fields = {name: 4096}
        path = writer.write(tmp_path / "m.gguf")
        refused(path, left_nothing, Unsupported, f"{name} (4096)", "of olmo2 models")


def test_falcons_whose_rows_the_converter_moved_are_refused(left_nothing, tmp_path):
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    config = transformers.FalconConfig(**sizes, multi_query=False)
    writer = Writer(transformers.AutoModelForCausalLM.from_config(config), "falcon")
    writer.quantize("attn_qkv.weight", Format.Q4_0)
    path = writer.write(tmp_path / "m.gguf")
    refused(path, left_nothing, Unsupported, "falcon with 4 heads")


def mixture(architecture="qwen3moe"):
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(**SIZES, num_experts=4, moe_intermediate_size=64)
    writer = Writer(transformers.AutoModelForCausalLM.from_config(config), architecture)
    writer.quantize("_exps.weight", Format.Q8_0)
    return writer


def test_experts_that_make_no_stack_are_refused(left_nothing, tmp_path):
    writer = mixture()
    gate, up = (f"blk.0.ffn_{which}_exps.weight" for which in ("gate", "up"))
    values, number = writer.tensors[up]
    writer.tensors[up] = (gguf.quantize(gguf.dequantize(values, number), Format.Q4_0), Format.Q4_0)
    path = writer.write(tmp_path / "types.gguf")
    refused(path, left_nothing, Unsupported, f"{gate} is q8_0", f"{up} q4_0", "one type")
    writer.tensors[up] = (values[:, :32], number)
    path = writer.write(tmp_path / "shapes.gguf")
    refused(path, left_nothing, CheckpointError, up, "[4, 32, 256]", "[4, 64, 256]")
    del writer.tensors[up]
    path = writer.write(tmp_path / "missing.gguf")
    refused(path, left_nothing, Unsupported, gate, "gate_up_proj")
    writer = mixture()
    for name in (gate, up):
        values = gguf.dequantize(*writer.tensors[name])
        writer.tensors[name] = (values, None)
    path = writer.write(tmp_path / "floats.gguf")
    refused(path, left_nothing, Unsupported, f"{gate} is f32", "quantised")


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


def test_who_names_a_gguf_file_or_its_folder_elsewhere_is_told_what_reads_it(whole, tmp_path):
    for read in (lambda path: convert(path, tmp_path / "out", "nf4"), describe):
        with pytest.raises(InvalidArgument, match="whole.gguf is .* GGUF file, which `ladder rep"):
            read(whole)
    (tmp_path / "files").mkdir()
    whole = whole.rename(tmp_path / "files" / whole.name)
    for read in (lambda path: repack(path, tmp_path / "out"), describe):
        with pytest.raises(InvalidArgument, match="has no config.json, but .*whole.gguf"):
            read(whole.parent)
    assert not (tmp_path / "out").exists()


def test_without_the_gguf_package_one_sentence_says_what_to_install(
    whole, left_nothing, monkeypatch
):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    refused(whole, left_nothing, Unsupported, "pip install 'ladder-torch[gguf]'")
