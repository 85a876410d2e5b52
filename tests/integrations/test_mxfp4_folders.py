# SPDX-License-Identifier: Apache-2.0
"""gpt-oss as it is published (quant_method "mxfp4"), against transformers' own dequantising."""

import json
import logging

import pytest
import torch
from hf_mixtures import FIRST, experts_of, fresh
from hf_models import edit_config, edit_tensors
from safetensors.torch import load_file

import ladder
from ladder.checkpoints import repack
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.transformers import enable

DENSE = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A small gpt-oss whose experts are MXFP4, as the published folders have them."""
    folder = tmp_path_factory.mktemp("gpt_oss") / "model"
    fresh("gpt_oss").to(torch.bfloat16).save_pretrained(folder)

    def blocks(tensors):
        for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
            dense = tensors.pop(name).transpose(1, 2).float()
            experts, n, k = dense.shape
            weights = [ladder.quantize(each, "mxfp4") for each in dense]
            codes = torch.stack([w.qweight for w in weights]).view(torch.uint8)
            tensors[f"{name}_blocks"] = codes.reshape(experts, n, k // 32, 16).clone()
            tensors[f"{name}_scales"] = torch.stack([w.scales.view(torch.uint8) for w in weights])

    edit_tensors(folder, blocks)
    method = {"quant_method": "mxfp4", "modules_to_not_convert": DENSE}
    edit_config(folder, quantization_config=method)
    return folder


def load(folder, **options):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)


@pytest.fixture(scope="module")
def theirs(published):
    from transformers import Mxfp4Config

    return load(published, quantization_config=Mxfp4Config(dequantize=True))


def test_the_values_are_those_of_transformers(published, theirs, tmp_path):
    repack(published, tmp_path / "ours")
    with enable("mxfp4"):
        models = [load(published), load(tmp_path / "ours")]
    ids = torch.arange(30)[None]
    first, second = (model(ids).logits for model in models)
    assert torch.equal(first, second)
    for model in models:
        assert len(experts_of(model)) == 2
        assert {str(e.gate_up.weight_type) for e in experts_of(model).values()} == {"mxfp4"}
        dense = dict(model.dequantize().named_parameters())
        assert all(torch.equal(dense[n], p) for n, p in theirs.named_parameters())
    # The same values, whose products are summed in float32 in another order; logits are near 1.
    torch.testing.assert_close(first, theirs(ids).logits, rtol=0, atol=1e-5)


def test_a_loaded_model_is_saved_as_a_ladder_folder(published, tmp_path):
    repack(published, tmp_path / "repacked")
    with enable("mxfp4"):
        load(published).save_pretrained(tmp_path / "saved")
    saved, repacked = (
        load_file(tmp_path / name / "model.safetensors") for name in ("saved", "repacked")
    )
    stacks = [name for name in repacked if "experts" in name and not name.endswith("bias")]
    assert len(stacks) == 8 and saved.keys() == repacked.keys()
    for name in stacks:
        assert torch.equal(saved[name].view(torch.uint8), repacked[name].view(torch.uint8))
    config = json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["weight_type"]) == ("ladder", "mxfp4")


def copied(published, path, change):
    import shutil

    folder = shutil.copytree(published, path)
    edit_tensors(folder, change)
    return folder


def test_damaged_folders_are_named(published, tmp_path):
    name = f"{FIRST}.down_proj"

    def without(tensors):
        del tensors[f"{name}_scales"]

    def fewer(tensors):
        for part in ("blocks", "scales", "bias"):
            tensors[f"{name}_{part}"] = tensors[f"{name}_{part}"][:3].clone()

    def no_bias(tensors):
        del tensors[f"{name}_bias"]

    def dense(tensors):
        for part in ("blocks", "scales"):
            del tensors[f"{name}_{part}"], tensors[f"{FIRST}.gate_up_proj_{part}"]

    with enable("mxfp4"):
        for at, (change, error, why) in enumerate([
            (without, CheckpointError, f"{name}_scales is missing, but there is"),
            (fewer, CheckpointError, r"down.qweight has shape \[3, "),
            (no_bias, CheckpointError, f"{FIRST}.down.bias is missing"),
            (dense, Unsupported, "experts that are dense"),
        ]):  # fmt: skip
            with pytest.raises(error, match=why):
                load(copied(published, tmp_path / str(at), change))


def test_transformers_takes_such_folders_unless_asked(published, caplog):
    """Without a GPU it dequantises, and says so."""
    with caplog.at_level(logging.WARNING):
        assert not experts_of(load(published))
