# SPDX-License-Identifier: Apache-2.0
"""save_pretrained writes the model as it is, whoever packed its layers, and when."""

import json

import pytest
import torch
from hf_mixtures import fresh
from hf_models import check_same, load, logits, packed_of
from torch import nn

import ladder
from ladder.checkpoints.shards import open_shards, remove_older_weights, times_of_weights
from ladder.integrations.transformers import LadderConfig, enable

UP = "model.layers.0.mlp.up_proj"
DOWN = "model.layers.0.mlp.down_proj"


def written(folder):
    return json.loads((folder / "config.json").read_text())


def saved_and_loaded(model, folder):
    """Loaded again, with the results of ``model``, to the bit."""
    model.save_pretrained(folder)
    again = load(folder, dtype=model.dtype)
    assert torch.equal(logits(again), logits(model))
    return again


@pytest.mark.parametrize("kind", [None, "mixtral"])
def test_weights_without_scales_are_loaded_without(kind, dense_folder, tmp_path):
    """Their type is spelled as an element, which elsewhere has groups and scales by default."""
    model = load(dense_folder) if kind is None else fresh(kind)
    ladder.convert(model, "float8_e4m3,channel", embeddings=kind is None)
    again = saved_and_loaded(model, tmp_path)
    check_same(model, again)
    assert not any("scales" in name for name in packed_of(again))


def test_a_model_that_was_packed_in_memory_is_saved_as_a_ladder_folder(dense_folder, tmp_path):
    model = load(dense_folder)
    ladder.convert(model, "uint4", 32)
    before = set(vars(model)), set(vars(model.config))
    again = saved_and_loaded(model, tmp_path)
    assert type(again.get_submodule(UP)) is ladder.Linear
    assert "ladder" in written(tmp_path)["transformers_weights"]
    gone = ({"dtype"}, {"architectures", "dtype"})  # which transformers writes into a model's own
    after = set(vars(model)), set(vars(model.config))
    assert [new - old - own for new, old, own in zip(after, before, gone, strict=True)] == [
        set()
    ] * 2
    model.save_pretrained(tmp_path / "again")  # nothing is left of the first time
    assert written(tmp_path / "again") == written(tmp_path)


def test_a_single_layer_that_was_packed_in_memory_is_saved(dense_folder, tmp_path):
    model = load(dense_folder)
    model.set_submodule(UP, ladder.Linear.from_linear(model.get_submodule(UP), "nf4", 32))
    again = saved_and_loaded(model, tmp_path)
    packed = [name for name, m in again.named_modules() if isinstance(m, ladder.Linear)]
    assert packed == [UP]


def test_a_part_of_a_model_that_was_packed_is_saved_under_its_own_names(dense_folder, tmp_path):
    from transformers import AutoModel

    model = load(dense_folder)
    ladder.convert(model.model, "uint4", 32)
    model.model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path, dtype=model.dtype)
    ids = torch.arange(8)[None]
    assert torch.equal(again(ids).last_hidden_state, model.model(ids).last_hidden_state)


def test_experts_of_a_model_that_was_never_loaded_are_saved(tmp_path):
    """Its names in files are those of transformers' own conversions."""
    model = fresh("mixtral")
    ladder.convert(model, "uint4", 32, activation_type="int8")
    again = saved_and_loaded(model, tmp_path)
    types = [m.activation_type for m in again.modules() if isinstance(m, ladder.Experts)]
    assert types and set(types) == {"int8"}


@pytest.mark.parametrize("skip", [["lm_head"], ["mlp"]])
def test_what_is_set_on_some_layers_is_saved(dense_folder, tmp_path, skip):
    model = load(dense_folder, quantization_config=LadderConfig("uint4", 32))
    ladder.set_activation_type(model, "int8", skip=skip)
    again = saved_and_loaded(model, tmp_path)
    rounded = model.get_submodule(UP).activation_type
    assert again.get_submodule(UP).activation_type == rounded
    assert rounded == (None if skip == ["mlp"] else "int8")


def test_layers_that_were_exchanged_are_saved_as_what_they_are_now(dense_folder, tmp_path):
    """Under the config of before the folder could not be loaded, or would mean something else."""
    model = load(dense_folder, quantization_config=LadderConfig("uint4", 32))
    up, down = (model.get_submodule(name).dequantize() for name in (UP, DOWN))
    model.set_submodule(UP, ladder.Linear.from_linear(up, "uint8", 32))
    model.set_submodule(DOWN, down)
    again = saved_and_loaded(model, tmp_path)
    assert str(again.get_submodule(UP).weight_type).startswith("uint8,")
    assert type(again.get_submodule(DOWN)) is nn.Linear
    fields = written(tmp_path)["quantization_config"]
    assert fields["weight_type"].startswith("uint4,") and [*fields["modules"]] == [UP]


def test_a_folder_of_another_package_keeps_its_source_when_a_layer_changes(gptq_folder, tmp_path):
    with enable("gptq"):
        model = load(gptq_folder)
    model.get_submodule(UP).activation_type = "int8"
    saved_and_loaded(model, tmp_path)
    fields = written(tmp_path)["quantization_config"]
    assert fields["activation_types"] == {UP: "int8"} and fields["source"]["quant_method"] == "gptq"


def test_what_model_folders_do_not_have_is_refused_before_anything_is_written(
    dense_folder, tmp_path
):
    model = load(dense_folder)
    model.model.add_module("absorbed", ladder.BatchedLinear(2, 32, 32))
    with pytest.raises(
        ladder.Unsupported, match=r"absorbed is a ladder\.BatchedLinear, which model"
    ):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("loaded", [False, True])
def test_a_folder_that_is_saved_again_has_the_new_weights_alone(dense_folder, tmp_path, loaded):
    """In one file over several, and in several over one, which transformers would load."""
    if loaded:
        model = load(dense_folder, quantization_config=LadderConfig("uint4", 32))
    else:
        model = load(dense_folder)
        ladder.convert(model, "uint4", 32)
    for number, (size, several) in enumerate((("20KB", True), ("1GB", False), ("20KB", True))):
        with torch.no_grad():
            model.model.norm.weight.fill_(number)
        model.save_pretrained(tmp_path, max_shard_size=size)
        names = {path.name for path in tmp_path.glob("model*")}
        assert (INDEX in names) == several and ("model.safetensors" in names) == (not several)
        assert torch.equal(logits(load(tmp_path, dtype=model.dtype)), logits(model))
        norm = open_shards(tmp_path).read(["model.norm.weight"])["model.norm.weight"]
        assert norm.unique().tolist() == [number]


def test_what_is_saved_beside_weights_leaves_them(dense_folder, tmp_path):
    """An index that names another file, and weights, neither of which is saved anew."""
    model = load(dense_folder)
    ladder.convert(model, "uint4", 32)
    model.save_pretrained(tmp_path)
    (tmp_path / INDEX).write_text('{"weight_map": {"a": "b.safetensors"}}')
    before = times_of_weights(tmp_path)
    remove_older_weights(tmp_path, before)
    assert times_of_weights(tmp_path) == before and len(before) == 2


def test_a_dense_model_is_saved_as_ever(dense_folder, tmp_path):
    load(dense_folder).save_pretrained(tmp_path)
    assert "quantization_config" not in written(tmp_path)
