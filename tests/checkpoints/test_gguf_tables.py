# SPDX-License-Identifier: Apache-2.0
"""Quantised embeddings of GGUF files that stay packed, and output embeddings tied to them."""

import json

import pytest
import torch
from test_gguf import logits, make, of_ladder, of_transformers
from typer.testing import CliRunner

transformers = pytest.importorskip("transformers")

from gguf_models import Format, Writer  # noqa: E402

import ladder  # noqa: E402
from ladder.checkpoints import repack  # noqa: E402
from ladder.checkpoints.gguf.blocks import BLOCKS  # noqa: E402
from ladder.checkpoints.info import describe  # noqa: E402
from ladder.cli import app  # noqa: E402
from ladder.errors import CheckpointError, InvalidArgument  # noqa: E402

EMBEDDING = "model.embed_tokens"


def write(path, table=Format.Q6_K, **sizes):
    """A LLaMA with a quantised embedding, and a head of its own in q8_0 unless tied."""
    writer = Writer(make("Llama", **sizes))
    writer.quantize("ffn_down.weight", Format.Q4_K)
    if table is not None:
        writer.quantize("token_embd.weight", table)
    if not sizes.get("tie_word_embeddings"):
        writer.quantize("output.weight", Format.Q8_0)
    return writer.write(path / "m.gguf")


@pytest.mark.parametrize("head", [False, True], ids=["", "head"])
@pytest.mark.parametrize("embeddings", [False, True], ids=["", "embeddings"])
@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
def test_what_stays_packed_is_what_was_asked_for(tied, embeddings, head, tmp_path):
    path, out = write(tmp_path, tie_word_embeddings=tied), tmp_path / "out"
    report = repack(path, out, embeddings=embeddings, head=head)
    stored = json.loads((out / "config.json").read_text())
    said, config = stored["quantization_config"], stored["tie_word_embeddings"]
    assert said.get("embeddings", []) == [EMBEDDING] * embeddings
    assert config == (tied and not embeddings and not head)
    model, dense = of_ladder(out), of_transformers(path)
    table, output = model.get_submodule(EMBEDDING), model.lm_head
    assert isinstance(table, ladder.Embedding) == embeddings
    assert isinstance(output, ladder.Linear) == (head or not tied)
    of_layers = 2 if tied else 4  # attn_output ends as output does
    assert report.modules == of_layers + embeddings + (head or not tied)
    assert ("lm_head" in said["modules_to_not_convert"]) == (tied and not head)
    ids = torch.arange(128)
    assert torch.equal(table(ids), dense.get_submodule(EMBEDDING)(ids))
    model.dequantize()
    assert torch.equal(model.lm_head.weight, dense.lm_head.weight)
    assert torch.equal(logits(model), logits(dense))


@pytest.mark.parametrize("number", [n for n in BLOCKS if n != Format.NVFP4],
                         ids=lambda number: BLOCKS[number].name)  # fmt: skip
def test_rows_of_every_format_are_those_of_transformers(number, tmp_path):
    path = write(tmp_path, Format(number), tie_word_embeddings=True)
    repack(path, tmp_path / "out", embeddings=True, head=True)
    model, dense = of_ladder(tmp_path / "out"), of_transformers(path)
    table, ids = model.get_submodule(EMBEDDING), torch.arange(128)
    assert table.weight_type == BLOCKS[number].ttype == model.lm_head.weight_type
    assert torch.equal(table(ids), dense.get_submodule(EMBEDDING).weight)
    assert torch.equal(model.lm_head.packed_weight.dequantize(), dense.lm_head.weight)


def test_both_are_smaller_than_the_dense_table_and_survive_a_copy(tmp_path):
    path = write(tmp_path, vocab_size=4096, tie_word_embeddings=True)
    before = repack(path, tmp_path / "dense").bytes_after
    after = repack(path, tmp_path / "out", embeddings=True, head=True).bytes_after
    assert before - after > 4096 * 256 * (4 - 2 * 9 / 8)
    model = of_ladder(tmp_path / "out")
    model.save_pretrained(tmp_path / "copy")
    assert torch.equal(logits(of_ladder(tmp_path / "copy")), logits(model))
    rows = {row["type"]: row for row in describe(tmp_path / "out")["types"]}
    assert rows[str(BLOCKS[Format.Q6_K].ttype)]["modules"] == 2


def test_scales_of_float16_are_those_of_both(tmp_path):
    path = write(tmp_path, tie_word_embeddings=True)
    repack(path, tmp_path / "out", embeddings=True, head=True, float16_scales=True)
    model = of_ladder(tmp_path / "out")
    table = model.get_submodule(EMBEDDING).packed_weight
    assert table.type == BLOCKS[Format.Q6_K].narrow
    assert torch.equal(table.dequantize(), model.lm_head.packed_weight.dequantize())


def test_positions_stay_dense_and_are_named(tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=256, n_layer=1, n_head=4)
    model = transformers.GPT2LMHeadModel(config).float().eval()
    writer = Writer(model, "gpt2")
    for name in ("token_embd", "position_embd", "ffn_down"):
        writer.quantize(f"{name}.weight", Format.Q4_0)
    path = writer.write(tmp_path / "m.gguf")
    report = repack(path, tmp_path / "out", embeddings=True, head=True)
    why = "position_embd.weight is decoded: an embedding, but not the input embedding of its model"
    assert why in report.notes
    packed, dense = of_ladder(tmp_path / "out"), of_transformers(path)
    assert type(packed.transformer.wpe) is torch.nn.Embedding
    assert type(packed.transformer.wte) is ladder.Embedding
    packed.dequantize()
    assert torch.equal(logits(packed), logits(dense))


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
def test_what_the_file_has_dense_stays_so_and_is_named(tied, tmp_path):
    path = write(tmp_path, None, tie_word_embeddings=tied)
    report = repack(path, tmp_path / "out", embeddings=True, head=True)
    assert any(note.startswith("no input embedding is quantised") for note in report.notes)
    assert any(note.startswith("lm_head stays dense") for note in report.notes) == tied
    model = of_ladder(tmp_path / "out")
    assert type(model.get_submodule(EMBEDDING)) is torch.nn.Embedding
    assert model.config.tie_word_embeddings == tied


def test_a_file_of_a_quantised_embedding_alone_is_refused(tmp_path, left_nothing):
    writer = Writer(make("Llama", tie_word_embeddings=False))
    writer.quantize("token_embd.weight", Format.Q8_0)
    path = writer.write(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match="no linear layer is quantised"):
        repack(path, left_nothing, embeddings=True)


def test_a_model_without_an_input_embedding_of_torchs_says_so(tmp_path, left_nothing, monkeypatch):
    path = write(tmp_path, tie_word_embeddings=False)
    monkeypatch.setattr("transformers.LlamaForCausalLM.get_input_embeddings", lambda self: None)
    monkeypatch.setattr("transformers.LlamaModel.get_input_embeddings", lambda self: None)
    with pytest.raises(InvalidArgument, match="the model has no input embedding"):
        repack(path, left_nothing, embeddings=True)


def test_the_command_says_what_it_decodes_and_how_not_to(tmp_path):
    path = write(tmp_path, tie_word_embeddings=True)
    said = CliRunner().invoke(app, ["repack", str(path), str(tmp_path / "dense")])
    assert said.exit_code == 0 and "--embeddings" in said.output
    both = ["--embeddings", "--head"]
    made = CliRunner().invoke(app, ["repack", str(path), str(tmp_path / "out"), *both])
    assert made.exit_code == 0 and "--embeddings" not in made.output
    assert isinstance(of_ladder(tmp_path / "out").lm_head, ladder.Linear)
