# SPDX-License-Identifier: Apache-2.0
"""Output and input embeddings that are quantised while a model is loaded."""

import pytest
import torch
from hf_models import check_same, edit_config, edit_tensors, load, logits
from test_embedding_folders import EIGHT, MODELS, NAMES, made
from transformers import BertConfig, BertForMaskedLM

import ladder
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.integrations.transformers import LadderConfig

BOTH = [(True, False), (False, True), (True, True)]
IDS = ["head", "embeddings", "both"]


def options(kind, head, embeddings):
    types = {NAMES[kind]: EIGHT} if embeddings else {}
    types |= {"lm_head": "uint6"} if head else {}
    return {"types": types, "head": head, "embeddings": embeddings}


@pytest.mark.parametrize(("head", "embeddings"), BOTH, ids=IDS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_loaded_model_is_that_of_convert(kind, head, embeddings, tmp_path):
    model = made(kind)
    model.save_pretrained(tmp_path / "dense")
    more = options(kind, head, embeddings)
    report = ladder.convert(model, "uint4", 32, **more)
    loaded = load(tmp_path / "dense", quantization_config=LadderConfig("uint4", 32, **more))
    said = loaded.hf_quantizer.conversion
    assert said.packed == report.packed and said.embeddings == report.embeddings == embeddings
    assert {name: each.weights for name, each in said.left.items()} == {
        name: each.weights for name, each in report.left.items()
    }
    check_same(loaded, model)
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.config.tie_word_embeddings is False and not loaded.all_tied_weights_keys
    loaded.save_pretrained(tmp_path / "packed")
    again = load(tmp_path / "packed")
    check_same(again, model)
    assert torch.equal(logits(again), logits(model))
    trained = {name for name, _ in loaded.named_parameters()}
    assert trained == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("first", ["embedding", "head"])
@pytest.mark.parametrize(("head", "embeddings"), BOTH, ids=IDS)
def test_files_may_have_a_tied_weight_twice(head, embeddings, first, tmp_path):
    """As pickled files do; whichever is read first."""
    made().save_pretrained(tmp_path / "dense")
    model = made()
    table = "model.embed_tokens.weight"

    def change(tensors):
        both = {table: tensors.pop(table)}
        both["lm_head.weight"] = both[table].clone()
        names = [*both] if first == "embedding" else [*both][::-1]
        rest = {**tensors}
        tensors.clear()
        tensors |= {name: both[name] for name in names} | rest

    edit_tensors(tmp_path / "dense", change)
    more = options("llama, tied", head, embeddings)
    ladder.convert(model, "uint4", 32, **more)
    loaded = load(tmp_path / "dense", quantization_config=LadderConfig("uint4", 32, **more))
    check_same(loaded, model)
    assert torch.equal(logits(loaded), logits(model))


def test_files_that_have_the_head_alone_are_refused(tmp_path):
    made().save_pretrained(tmp_path)
    edit_tensors(tmp_path, lambda t: t.update(
        {"lm_head.weight": t.pop("model.embed_tokens.weight")}
    ))  # fmt: skip
    config = LadderConfig("uint4", 32, head=True)
    with pytest.raises(CheckpointError, match="no model.embed_tokens.weight, of which head and"):
        load(tmp_path, quantization_config=config)


def test_other_ties_are_for_convert(tmp_path):
    """BERT's head has a bias that is tied, too."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForMaskedLM(BertConfig(**sizes, intermediate_size=96, vocab_size=128))
    model.save_pretrained(tmp_path)
    from transformers import AutoModelForMaskedLM

    config = LadderConfig("uint4", 32, head=True)
    with pytest.raises(Unsupported, match="decoder.bias is tied to .* give ladder.convert"):
        AutoModelForMaskedLM.from_pretrained(tmp_path, quantization_config=config)


@pytest.mark.parametrize(("given", "why"), [
    ({"modules": {"model.embed_tokens": "int8,tensor,scale=float32"}}, "a scale for all rows"),
    ({"types": {"model.embed_tokens": "int8,tensor,scale=float32"}}, "a scale for all rows"),
    ({"modules": {"model.embed_token": "uint8"}}, "model.embed_token"),
])  # fmt: skip
def test_types_that_embeddings_cannot_have_are_the_callers_fault(given, why, tmp_path):
    made().save_pretrained(tmp_path)
    config = LadderConfig("uint4", 32, embeddings=True, **given)
    with pytest.raises(InvalidArgument, match=why):
        load(tmp_path, quantization_config=config)


def test_modules_and_names_to_leave_speak_of_embeddings(tmp_path):
    made().save_pretrained(tmp_path)
    modules = {"model.embed_tokens": EIGHT}
    config = LadderConfig("uint4", 32, embeddings=True, head=True, modules=modules)
    assert str(load(tmp_path, quantization_config=config).model.embed_tokens.weight_type) == EIGHT
    left = LadderConfig(
        "uint4", 32, embeddings=True, head=True, modules_to_not_convert=["embed_tokens"]
    )
    model = load(tmp_path, quantization_config=left)
    assert type(model.model.embed_tokens) is torch.nn.Embedding
    assert torch.equal(model.model.embed_tokens.weight, made().model.embed_tokens.weight)
    assert type(model.lm_head) is ladder.Linear


def test_a_model_without_a_head_says_so(tmp_path):
    from transformers import AutoModel

    made().save_pretrained(tmp_path)
    with pytest.raises(InvalidArgument, match="head is given, and the model says of no module"):
        AutoModel.from_pretrained(tmp_path, quantization_config=LadderConfig("uint4", head=True))


def test_a_model_in_parts_of_two_dtypes_keeps_the_dense_one(tmp_path):
    """The embedding that stays dense has the dtype that was asked for, rounded once."""
    made().save_pretrained(tmp_path)
    edit_config(tmp_path, tie_word_embeddings=True)
    config = LadderConfig("uint4", 32, head=True)
    model = load(tmp_path, quantization_config=config, dtype=torch.bfloat16)
    table = made().model.embed_tokens.weight.bfloat16()
    assert torch.equal(model.model.embed_tokens.weight, table)
    values = ladder.quantize(table.float(), str(model.lm_head.weight_type)).dequantize()
    assert torch.equal(model.lm_head.packed_weight.dequantize(), values)
    assert model.lm_head.dtype == torch.bfloat16
