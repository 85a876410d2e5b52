# SPDX-License-Identifier: Apache-2.0
"""Output embeddings that are packed, of models that tie them to the input embedding."""

import json

import pytest
import torch
from hf_models import TINY, check_same, load, logits
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModelForSeq2SeqLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import ladder
from ladder.checkpoints.calibrated import Calibration
from ladder.checkpoints.convert import convert
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.integrations.transformers import LadderConfig

TYPES = {"lm_head": "uint6,group=32,scale=float16,zero=midpoint"}
BATCHES = torch.randint(0, 128, (4, 24), generator=torch.Generator().manual_seed(1))
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    # Its embedding is a class of its own, and ties where nobody says.
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, {"head_dim": 32}),
}


def tied(kind="llama"):
    torch.manual_seed(0)
    model, config, more = MODELS[kind]
    made = model(config(**TINY, **more, initializer_range=0.1)).eval()
    assert made.lm_head.weight is made.model.embed_tokens.weight
    return made


@pytest.mark.parametrize("kind", MODELS)
def test_a_tied_head_becomes_a_layer_of_its_own(kind, tmp_path):
    model, embedding = tied(kind), tied(kind).model.embed_tokens.weight
    report = ladder.convert(model, "uint4", 32, head=True, types=TYPES)
    assert report.packed["lm_head"] == TYPES["lm_head"] == str(model.lm_head.weight_type)
    assert torch.equal(model.model.embed_tokens.weight, embedding)
    values = ladder.quantize(embedding, TYPES["lm_head"]).dequantize()
    assert torch.equal(model.lm_head.packed_weight.dequantize(), values)
    assert not model.config.tie_word_embeddings and not model.all_tied_weights_keys
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    check_same(again, model)
    assert torch.equal(again.model.embed_tokens.weight, embedding)
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize("kind", MODELS)
def test_a_folder_gets_what_the_model_in_memory_gets(kind, tmp_path):
    model = tied(kind)
    model.save_pretrained(tmp_path / "dense")
    assert "lm_head.weight" not in load_file(tmp_path / "dense" / "model.safetensors")
    options = {"group_size": 32, "head": True, "types": TYPES}
    report = convert(tmp_path / "dense", tmp_path / "packed", "uint4", **options)
    assert report.conversion.packed["lm_head"] == TYPES["lm_head"]
    tensors = load_file(tmp_path / "packed" / "model.safetensors")
    assert report.tensors_carried == sum(".weight" in name for name in tensors)
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    ladder.convert(model, "uint4", **options)
    again = load(tmp_path / "packed")
    check_same(again, model)
    assert torch.equal(logits(again), logits(model))


def test_calibration_leaves_the_embedding_alone(tmp_path):
    model, embedding = tied(), tied().model.embed_tokens.weight
    model.save_pretrained(tmp_path / "dense")
    report = ladder.convert(model, "uint3", 32, head=True, calibration=BATCHES)
    assert report.errors["lm_head"].error < report.errors["lm_head"].nearest
    assert torch.equal(model.model.embed_tokens.weight, embedding)
    calibration = Calibration(load(tmp_path / "dense"), BATCHES)
    options = {"group_size": 32, "head": True, "calibration": calibration}
    convert(tmp_path / "dense", tmp_path / "packed", "uint3", **options)
    check_same(load(tmp_path / "packed"), model)


def test_heads_have_types_of_a_budget(tmp_path):
    model = tied()
    types = ["uint3", "uint4", "uint6"]
    chosen = ladder.choose_types(
        model, types, 4.6, BATCHES, group_size=32, calibrated=True, head=True
    )
    assert torch.equal(model.lm_head.weight, tied().lm_head.weight)
    report = ladder.convert(model, types=chosen, head=True)
    assert report.packed["lm_head"] == str(chosen["lm_head"])
    tied().save_pretrained(tmp_path / "dense")
    calibration = Calibration(load(tmp_path / "dense"), BATCHES)
    report = convert(
        tmp_path / "dense", tmp_path / "packed", group_size=32, head=True, bits=4.6,
        types=["uint3", "uint4", "uint6"], calibration=calibration,
    )  # fmt: skip
    again = load(tmp_path / "packed")
    assert str(again.lm_head.weight_type) == report.conversion.packed["lm_head"]
    assert torch.equal(again.model.embed_tokens.weight, tied().model.embed_tokens.weight)


def test_the_head_of_a_packed_model_is_packed_later(tmp_path):
    """As of a repacked GPTQ model, whose head stayed dense."""
    tied().save_pretrained(tmp_path / "dense")
    convert(tmp_path / "dense", tmp_path / "packed", "uint4", group_size=32)
    model = load(tmp_path / "packed")
    report = ladder.convert(model, "uint8", 64, head=True)
    assert list(report.packed) == ["lm_head"]
    model.save_pretrained(tmp_path / "with head")
    again = load(tmp_path / "with head")
    check_same(again, model)
    assert str(again.model.layers[0].mlp.up_proj.weight_type).startswith("uint4,group=32")


def test_heads_that_are_trained_are_parameters_of_their_own():
    model = tied()
    ladder.qat.prepare(model, "uint3", 32, head=True)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    model(BATCHES, labels=BATCHES).loss.backward()
    assert model.lm_head.weight.grad.any() and model.model.embed_tokens.weight.grad.any()
    report = ladder.qat.convert(model)
    assert "lm_head" in report.packed and not model.config.tie_word_embeddings


def test_heads_that_are_not_tied_are_packed_as_well(dense_folder, tmp_path):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**TINY, tie_word_embeddings=False))
    assert "lm_head" in ladder.convert(model, "uint4", 32, head=True).packed
    with pytest.raises(InvalidArgument, match="head is given, and the model says of no module"):
        ladder.convert(nn.Sequential(nn.Linear(8, 8)), head=True)
    with pytest.raises(InvalidArgument, match="head is for a folder that is not quantised"):
        convert(dense_folder, tmp_path / "out", head=True, again=True)


def test_skip_goes_before_head():
    model = tied()
    report = ladder.convert(model, "uint4", 32, head=True, skip=("lm_head",))
    assert report.left["lm_head"].reason == "named by skip"
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.tie_word_embeddings


def test_files_that_have_the_head_and_not_the_embedding(tmp_path):
    tied().save_pretrained(tmp_path / "dense")
    file = tmp_path / "dense" / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, file, metadata={"format": "pt"})
    convert(tmp_path / "dense", tmp_path / "both", "uint4", group_size=32, head=True)
    assert isinstance(load(tmp_path / "both").lm_head, ladder.Linear)
    del tensors["model.embed_tokens.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    said = "the files have lm_head.weight and none of model.embed_tokens, which is tied to it"
    with pytest.raises(CheckpointError, match=said):
        convert(tmp_path / "dense", tmp_path / "one", "uint4", group_size=32, head=True)
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize("do", [
    lambda model, folder: ladder.convert(model, "uint4", 32, head=True),
    lambda model, folder: convert(
        folder, folder.parent / "packed", "uint4", group_size=32, head=True
    ),
    lambda model, folder: ladder.qat.prepare(model, "uint4", 32, head=True),
    lambda model, folder: AutoModelForSeq2SeqLM.from_pretrained(
        folder, quantization_config=LadderConfig("uint4", 32, head=True)
    ),
], ids=["convert", "folder", "qat", "while loading"])  # fmt: skip
def test_a_head_that_is_always_tied_is_refused_before_anything_changes(do, tmp_path):
    """T5's configuration says so whatever it is made of, so that a folder could not be loaded."""
    sizes = {"d_model": 64, "d_ff": 96, "d_kv": 32, "num_layers": 1, "num_heads": 2}
    config = T5Config(**sizes, vocab_size=128, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "dense")
    with pytest.raises(Unsupported, match="T5ForConditionalGeneration is loaded with its output"):
        do(model, tmp_path / "dense")
    assert model.lm_head.weight is model.shared.weight and not (tmp_path / "packed").exists()
    assert not any(isinstance(module, ladder.Linear) for module in model.modules())


def test_a_type_of_a_head_that_stays_dense_says_how_it_would_not():
    with pytest.raises(InvalidArgument, match=r"lm_head is not quantised: .*; head=True packs"):
        ladder.convert(tied(), "uint4", 32, types=TYPES)
