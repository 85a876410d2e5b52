# SPDX-License-Identifier: Apache-2.0
"""Unmodified folders of torchao and HQQ, neither of which is installed."""

import json
import sys

import pytest
import torch
from hf_models import check_equal, edit_config, edit_tensors, foreign_folder, load, logits
from safetensors.torch import load_file, save_file
from subclass_oracles import HQQ, TORCHAO, hqq, torchao, torchao_said

import ladder
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.transformers import disable, enable

Q_PROJ, EMBEDDING = "model.layers.0.self_attn.q_proj", "model.embed_tokens"
FORMS = {"torchao": (torchao, TORCHAO), "hqq": (hqq, HQQ)}


@pytest.fixture(autouse=True)
def not_left_enabled():
    yield
    disable()


@pytest.fixture(autouse=True)
def without_packages(monkeypatch):
    for package in ("torchao", "hqq"):
        monkeypatch.setitem(sys.modules, package, None)


def folder_of(form, dense_folder, path, said=None):
    """A folder of packed layers, and the dense model that it means."""
    draw, settings = FORMS[form]
    folder, expected = foreign_folder(dense_folder, path, draw, settings)
    if form == "torchao":
        say(folder, said or torchao_said())
    return folder, expected


def say(folder, said):
    """Write the metadata ``said`` of each packed weight into the file."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    parts = [name for name in tensors if name.endswith("._weight_qdata")]
    metadata = {name.replace("._weight_qdata", ".weight"): said for name in parts}
    save_file(tensors, file, metadata=metadata | {"format": "pt"})


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_is_loaded_saved_and_repacked_alike(form, dense_folder, tmp_path):
    folder, expected = folder_of(form, dense_folder, tmp_path / "foreign")
    with enable(form):
        model = load(folder)
    assert type(model.get_submodule(Q_PROJ)) is ladder.Linear
    outputs = logits(model)
    model.save_pretrained(tmp_path / "saved")
    ladder.checkpoints.repack(folder, tmp_path / "repacked")
    made = [json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]
            for name in ("saved", "repacked")]  # fmt: skip
    assert made[0] == made[1]
    for name in ("saved", "repacked"):
        assert torch.equal(logits(load(tmp_path / name)), outputs)
    check_equal(model, expected)


def test_a_quantised_embedding_is_decoded(dense_folder, tmp_path):
    folder, expected = folder_of("torchao", dense_folder, tmp_path / "foreign")
    truth = torchao(*expected.get_submodule(EMBEDDING).weight.shape, seed=99)

    def change(tensors):
        del tensors[f"{EMBEDDING}.weight"]
        tensors |= {f"{EMBEDDING}.{part}": tensor for part, tensor in truth.tensors.items()}

    edit_tensors(folder, change)
    say(folder, torchao_said())
    with enable("torchao"):
        model = load(folder)
    wanted = torch.from_numpy(truth.weight).bfloat16().float()
    assert torch.equal(model.get_submodule(EMBEDDING).weight, wanted)
    assert type(model.get_submodule(EMBEDDING)) is torch.nn.Embedding
    model.save_pretrained(tmp_path / "saved")
    report = ladder.checkpoints.repack(folder, tmp_path / "repacked")
    assert report.notes[0] == f"decoded, as no linear layer has their weight: {EMBEDDING}"
    repacked = load_file(tmp_path / "repacked" / "model.safetensors")
    assert torch.equal(repacked[f"{EMBEDDING}.weight"].float(), wanted)
    assert repacked[f"{EMBEDDING}.weight"].dtype == torch.bfloat16
    for name in ("saved", "repacked"):
        assert torch.equal(logits(load(tmp_path / name)), logits(model))


def test_an_embedding_of_another_shape_is_named(dense_folder, tmp_path):
    folder, _ = folder_of("torchao", dense_folder, tmp_path / "foreign")

    def change(tensors):
        del tensors[f"{EMBEDDING}.weight"]
        drawn = torchao(8, 64).tensors.items()
        tensors |= {f"{EMBEDDING}.{part}": tensor for part, tensor in drawn}

    edit_tensors(folder, change)
    say(folder, torchao_said())
    with enable("torchao"), pytest.raises(CheckpointError, match=r"\[8, 64\], not \[\d+, 64\]"):
        load(folder)


@pytest.mark.parametrize(("form", "part"), [
    ("torchao", "_weight_qdata"), ("torchao", "_weight_scale"), ("torchao", "_weight_zero_point"),
    ("hqq", "W_q"), ("hqq", "scale"), ("hqq", "zero"),
])  # fmt: skip
def test_a_lost_part_is_named(form, part, dense_folder, tmp_path):
    folder, _ = folder_of(form, dense_folder, tmp_path / "foreign")
    edit_tensors(folder, lambda tensors: tensors.pop(f"{Q_PROJ}.{part}"))
    if form == "torchao":
        say(folder, torchao_said())
    with enable(form), pytest.raises(CheckpointError, match=f"{Q_PROJ}.{part} is missing"):
        load(folder)


def test_files_without_metadata_are_refused(dense_folder, tmp_path):
    folder, _ = folder_of("torchao", dense_folder, tmp_path / "foreign")
    edit_tensors(folder, lambda tensors: None)
    with enable("torchao"), pytest.raises(CheckpointError, match="metadata of the files does not"):
        load(folder)


@pytest.mark.parametrize("form", FORMS)
def test_a_weight_of_another_shape_is_named(form, dense_folder, tmp_path):
    folder, _ = folder_of(form, dense_folder, tmp_path / "foreign")
    down = "model.layers.0.mlp.down_proj"  # [64, 96]

    def change(tensors):
        drawn = FORMS[form][0](96, 64).tensors.items()
        tensors |= {f"{down}.{part}": tensor for part, tensor in drawn}

    edit_tensors(folder, change)
    if form == "torchao":
        say(folder, torchao_said())
    with enable(form), pytest.raises(CheckpointError, match=r"\[96, 64\].* \[64, 96\]"):
        load(folder)


def test_x_is_rounded_as_the_metadata_says(dense_folder, tmp_path):
    said = torchao_said(activation_quantization="int8_asym_per_token")
    folder, _ = folder_of("torchao", dense_folder, tmp_path / "foreign", said)
    with enable("torchao"):
        model = load(folder)
    assert model.get_submodule(Q_PROJ).activation_type == "int8"


def test_pickles_are_to_be_repacked(dense_folder, tmp_path):
    folder, _ = folder_of("hqq", dense_folder, tmp_path / "foreign")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with enable("hqq"), pytest.raises(Unsupported, match="for pickled ones run `ladder repack`"):
        load(folder)


def test_settings_of_hqq_that_name_layers_leave_the_others_dense(dense_folder, tmp_path):
    folder, expected = folder_of("hqq", dense_folder, tmp_path / "foreign")
    usual, up = HQQ["quant_config"], "model.layers.{}.mlp.up_proj"
    tags = ("q_proj", "k_proj", "v_proj", "o_proj")
    named = {f"self_attn.{tag}": usual for tag in tags}
    named |= {f"mlp.{tag}": usual for tag in ("gate_proj", "down_proj")} | {"mlp.up_proj": None}
    edit_config(folder, quantization_config=HQQ | {"quant_config": named})

    def change(tensors):
        for name in (up.format(0), up.format(1)):
            for part in hqq(8, 64).tensors:
                del tensors[f"{name}.{part}"]
            tensors[f"{name}.weight"] = expected.get_submodule(name).weight.detach()

    edit_tensors(folder, change)
    with enable("hqq"):
        model = load(folder)
    assert type(model.get_submodule(up.format(0))) is torch.nn.Linear
    check_equal(model, expected)
