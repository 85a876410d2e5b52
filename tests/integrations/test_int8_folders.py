# SPDX-License-Identifier: Apache-2.0
"""Model folders whose config says that activations have 8 bits."""

import json

import pytest
import torch
from hf_models import TINY, edit_config, load, logits

import ladder
from ladder.checkpoints.convert import convert
from ladder.checkpoints.info import describe
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.transformers import LadderConfig, dense


def layers(model):
    return [module for module in model.modules() if isinstance(module, ladder.Linear)]


def written(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def test_what_is_quantised_while_loading_is_saved_and_read_back(dense_folder, tmp_path):
    config = LadderConfig("uint4", 32, activation_type="int8")
    model = load(dense_folder, quantization_config=config)
    assert layers(model) and {each.activation_type for each in layers(model)} == {"int8"}
    model.save_pretrained(tmp_path)
    assert written(tmp_path)["activation_type"] == "int8"
    again = load(tmp_path)
    assert {each.activation_type for each in layers(again)} == {"int8"}
    rounded = logits(again)
    assert torch.equal(rounded, logits(model))
    ladder.set_activation_type(again, None)
    assert not torch.equal(rounded, logits(again))


def test_what_is_set_on_a_loaded_model_is_saved(dense_folder, tmp_path):
    model = load(dense_folder, quantization_config=LadderConfig("uint4", 32))
    model.save_pretrained(tmp_path / "plain")
    assert "activation_type" not in written(tmp_path / "plain")
    names = ladder.set_activation_type(model, "int8")
    assert len(names) == len(layers(model))
    model.save_pretrained(tmp_path / "set")
    assert torch.equal(logits(load(tmp_path / "set")), logits(model))
    assert written(tmp_path / "set")["activation_type"] == "int8"


def test_converted_folders_say_so(dense_folder, tmp_path):
    convert(dense_folder, tmp_path / "a", "uint4", group_size=32, activation_type="int8")
    assert describe(tmp_path / "a")["activation_type"] == "int8"
    assert describe(dense_folder)["activation_type"] is None
    assert {each.activation_type for each in layers(load(tmp_path / "a"))} == {"int8"}
    with pytest.raises(Unsupported, match="q_proj: activation_type int8 does not take float8"):
        convert(dense_folder, tmp_path / "b", "float8_e4m3", activation_type="int8")
    assert not (tmp_path / "b").exists()


@pytest.fixture(scope="module")
def float8_folder(tmp_path_factory):
    """Of mxfp4 weights with more columns than one k-tile, as products of float8_e4m3 want them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("float8")
    wide = TINY | {"hidden_size": 128, "intermediate_size": 256}
    LlamaForCausalLM(LlamaConfig(**wide)).save_pretrained(folder / "dense")
    convert(folder / "dense", folder / "model", "mxfp4", activation_type="float8_e4m3")
    return folder / "model"


def test_what_a_folder_says_of_activations_is_an_offer(float8_folder, tmp_path, caplog):
    """The CPU has no products of float8_e4m3. A model that is moved asks its new device."""
    assert describe(float8_folder)["activation_type"] == "float8_e4m3"
    model = load(float8_folder)
    assert {each.activation_type for each in layers(model)} == {None}
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("model.layers.0.self_attn.q_proj and 13 more: activations are taken as")
    assert said.endswith("has kernels for devices of type cuda, and none for cpu")
    assert (logits(model) - logits(dense(load(float8_folder)))).abs().max() < 1e-5
    model.save_pretrained(tmp_path)
    assert written(tmp_path)["activation_type"] == "float8_e4m3"
    model.to("meta")  # stands for any device
    assert {each.activation_type for each in layers(model)} == {"float8_e4m3"}
    ladder.set_activation_type(model, None)
    assert {each.activation_type for each in layers(model.to_empty(device="meta"))} == {None}


def test_what_a_program_says_of_activations_is_a_demand(float8_folder, dense_folder, tmp_path):
    model = load(float8_folder)
    ladder.set_activation_type(model, "float8_e4m3")
    with pytest.raises(Unsupported, match="devices of type cuda, and none for cpu"):
        logits(model)
    with pytest.raises(Unsupported, match="q_proj: .* float8_e4m3 does not take int8"):
        convert(dense_folder, tmp_path / "b", "int8", activation_type="float8_e4m3")
    config = LadderConfig("int8", 32, activation_type="float8_e4m3")
    with pytest.raises(Unsupported, match="q_proj: .* float8_e4m3 does not take int8"):
        load(dense_folder, quantization_config=config)


def test_single_layers_may_round_otherwise_than_the_folder(dense_folder, tmp_path):
    convert(dense_folder, tmp_path / "a", "uint4", group_size=32, activation_type="int8")
    others = {"model.layers.1.mlp.up_proj": None}
    edit_config(tmp_path / "a", quantization_config=written(tmp_path / "a") | {
        "activation_types": others})  # fmt: skip
    model = load(tmp_path / "a")
    plain = [name for name, module in model.named_modules()
             if isinstance(module, ladder.Linear) and module.activation_type is None]  # fmt: skip
    assert plain == list(others)
    model.save_pretrained(tmp_path / "b")
    assert written(tmp_path / "b")["activation_types"] == others
    assert torch.equal(logits(load(tmp_path / "b")), logits(model))
    ladder.set_activation_type(model, "int8")
    model.save_pretrained(tmp_path / "c")
    assert "activation_types" not in written(tmp_path / "c")


def test_a_config_with_another_word_is_refused(dense_folder, tmp_path):
    convert(dense_folder, tmp_path / "a", "uint4", group_size=32)
    edit_config(tmp_path / "a", quantization_config=written(tmp_path / "a") | {
        "activation_type": "int3"})  # fmt: skip
    with pytest.raises(CheckpointError, match="activation_type is 'int3'"):
        load(tmp_path / "a")
