# SPDX-License-Identifier: Apache-2.0
"""Folders and configs of mixtures that are refused, by the name of what is wrong."""

import json
import shutil

import pytest
import torch
from hf_mixtures import FIRST, fresh
from hf_models import edit_config, edit_tensors, load, logits

import ladder
from ladder.checkpoints.convert import convert as convert_folder
from ladder.checkpoints.folder import StoredConfig
from ladder.integrations.folders.checkpoint import read_headers
from ladder.integrations.transformers import LadderConfig, LadderHfQuantizer
from ladder.integrations.transformers.experts import swap_experts


@pytest.fixture(scope="module")
def packed_folder(tmp_path_factory):
    """gpt-oss, whose experts have biases too."""
    root = tmp_path_factory.mktemp("packed")
    fresh("gpt_oss").save_pretrained(root / "dense")
    config = LadderConfig("uint4", 32)
    load(root / "dense", quantization_config=config).save_pretrained(root / "packed")
    return root / "packed"


@pytest.fixture
def damaged(packed_folder, tmp_path):
    return shutil.copytree(packed_folder, tmp_path / "model")


@pytest.mark.parametrize("change, why", [
    (lambda t: t.pop(f"{FIRST}.down.qweight"), f"{FIRST}.down"),
    (lambda t: t.pop(f"{FIRST}.gate_up.scales"), f"{FIRST}.gate_up.scales is missing"),
    (lambda t: t.pop(f"{FIRST}.down.bias"), f"{FIRST}.down.bias is missing"),
    (lambda t: t.update({f"{FIRST}.down.qweight": t[f"{FIRST}.down.qweight"][:3]}),
     r"down.qweight has shape \[3, 64, 12\], not \[4, 64, 12\]"),
    (lambda t: t.update({f"{FIRST}.down.scales": t[f"{FIRST}.down.scales"].float()}),
     "down.scales has dtype torch.float32, not torch.float16"),
    (lambda t: t[f"{FIRST}.down.scales"][2, 1].fill_(torch.inf),
     rf"{FIRST}.down\[2\].scales\[1, 0\] is inf, not finite"),
], ids=range(6))  # fmt: skip
def test_a_damaged_folder_is_refused_by_the_name_of_the_tensor(damaged, change, why):
    edit_tensors(damaged, change)
    with pytest.raises(ladder.CheckpointError, match=why):
        load(damaged)


def test_experts_that_would_be_cut_over_processes_are_refused_before_loading(packed_folder):
    """tests/integrations/test_tensor_parallel.py has the processes; here is what each would say."""
    fields = json.loads((packed_folder / "config.json").read_text())["quantization_config"]
    headers = read_headers([packed_folder / "model.safetensors"])
    with pytest.raises(ladder.Unsupported, match=f"{FIRST} holds packed experts, which cannot be"):
        swap_experts(fresh("gpt_oss"), headers, StoredConfig.from_dict(fields), cut=True)


def test_packed_experts_in_a_model_of_another_kind_are_refused(packed_folder):
    fields = json.loads((packed_folder / "config.json").read_text())["quantization_config"]
    headers = read_headers([packed_folder / "model.safetensors"])
    model = fresh("gpt_oss")
    model.model.layers[0].mlp.experts = torch.nn.Identity()
    with pytest.raises(ladder.Unsupported, match="is a Identity in this model"):
        swap_experts(model, headers, StoredConfig.from_dict(fields), cut=False)


def test_a_state_dict_in_memory_loads_too(packed_folder):
    from safetensors.torch import load_file
    from transformers import GptOssForCausalLM

    config = GptOssForCausalLM.config_class.from_pretrained(packed_folder)
    state = load_file(packed_folder / "model.safetensors")
    model = GptOssForCausalLM.from_pretrained(
        None, config=config, state_dict=dict(state), dtype=torch.float32
    )
    assert torch.equal(logits(model), logits(load(packed_folder)))
    del state[f"{FIRST}.down.scales"]
    with pytest.raises(ladder.CheckpointError, match=f"{FIRST}.down.scales was not loaded"):
        GptOssForCausalLM.from_pretrained(None, config=config, state_dict=state)


def test_experts_that_the_config_leaves_unquantised_are_refused(damaged):
    fields = json.loads((damaged / "config.json").read_text())["quantization_config"]
    edit_config(damaged, quantization_config=fields | {"modules_to_not_convert": ["experts"]})
    with pytest.raises(ladder.CheckpointError, match="experts.*leaves it unquantised"):
        load(damaged)


def test_a_type_for_experts_that_are_not_there_is_an_error(mixture_folder):
    for name in ("model.layers.7.mlp.experts", f"{FIRST}.up", f"{FIRST}.gate_up_proj"):
        config = LadderConfig("uint4", 32, modules={name: "nf4,group=32,scale=float16"})
        with pytest.raises(ladder.InvalidArgument, match=f'^modules has "{name}", which names no'):
            load(mixture_folder, quantization_config=config)


def test_files_that_lack_a_parameter_of_experts_are_refused(mixture_folder, mixture, tmp_path):
    source = shutil.copytree(mixture_folder, tmp_path / "model")

    def drop(tensors):
        for name in list(tensors):
            if "layers.1" in name and ("w2" in name or "experts" in name and "down_proj" in name):
                del tensors[name]

    edit_tensors(source, drop)
    with pytest.raises(ladder.CheckpointError, match="layers.1.mlp.experts.down_proj.* is missing"):
        convert_folder(source, tmp_path / "out", "int8", group_size=32)
    with pytest.raises(ladder.CheckpointError, match="layers.1.mlp.experts.down_proj.* is missing"):
        load(source, quantization_config=LadderConfig("int8", 32))


@pytest.mark.parametrize("name", [FIRST, f"{FIRST}.gate_up", f"{FIRST}.down"])
def test_a_type_for_experts_that_are_not_known_is_an_error(
    mixture, mixture_folder, monkeypatch, name
):
    kind = type(fresh(mixture).get_submodule(FIRST))
    monkeypatch.setattr(kind, "_apply_gate", lambda self, x: x.chunk(2, -1)[0].cos())
    config = LadderConfig("uint4", modules={name: "nf4,group=32,scale=float16"})
    with pytest.raises(ladder.InvalidArgument, match=f'^modules has "{name}", which names no'):
        load(mixture_folder, quantization_config=config)


def test_a_type_for_experts_with_hooks_on_their_state_says_why(mixture_folder):
    model = load(mixture_folder)
    quantizer = LadderHfQuantizer(
        LadderConfig("uint4", modules={FIRST: "nf4,group=32,scale=float16"})
    )
    model.get_submodule(FIRST).register_state_dict_pre_hook(lambda *_: None)
    with pytest.raises(
        ladder.InvalidArgument, match=f'^modules has "{FIRST}", but it has hooks on'
    ):
        quantizer._choose(model)
