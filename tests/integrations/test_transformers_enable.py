# SPDX-License-Identifier: Apache-2.0
"""Folders of other packages, unmodified, through ladder.integrations.transformers.enable."""

import json
import shutil
import sys

import pytest
import torch
from checkpoint_oracle import awq, compressed, compressed_settings, gptq
from hf_mixtures import fresh
from hf_models import check_equal, edit_config, edit_tensors, foreign_folder, load, logits

import ladder
from ladder.checkpoints import METHODS, repack
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.integrations.transformers import disable, enable, enabled

Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.fixture(autouse=True)
def not_left_enabled():
    yield
    disable()


@pytest.fixture
def foreign(dense_folder, tmp_path):
    """Makes a GPTQ or AWQ folder of the tiny model, and the dense model that it means."""

    def make(draw, settings, skip=("lm_head",)):
        return foreign_folder(dense_folder, tmp_path / "foreign", draw, settings, skip)

    return make


def test_the_gptq_folder_equals_its_repacked_self(gptq_folder, ladder_folder, tmp_path):
    with enable("gptq"):
        model = load(gptq_folder)
    repacked = load(ladder_folder)
    assert type(model.get_submodule(Q_PROJ)) is ladder.Linear
    assert torch.equal(logits(model), logits(repacked))
    model.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    expected = json.loads((ladder_folder / "config.json").read_text())["quantization_config"]
    assert stored == expected
    assert torch.equal(logits(load(tmp_path)), logits(repacked))


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"bits": 4, "order": True}, {"bits": 4, "desc_act": True}),
        ({"bits": 3, "symmetric": False, "lowest": 1}, {"bits": 3, "sym": False}),
        ({"bits": 8, "form": "gptq_v2"}, {"bits": 8, "checkpoint_format": "gptq_v2"}),
        ({"bits": 5, "form": "gptq_p"}, {"bits": 5, "format": "gptq_p"}),
        ({"bits": 4, "group": -1}, {"bits": 4, "group_size": -1}),
    ],
    ids=["act_order", "asymmetric_3", "v2_8", "planar_5", "per_channel"],
)
def test_gptq_of_any_kind_computes_what_it_means(foreign, options, settings):
    base = {"quant_method": "gptq", "group_size": 32, "sym": True, "desc_act": False}
    folder, expected = foreign(lambda n, k, seed: gptq(n, k, seed=seed, **options), base | settings)
    with enable():
        model = load(folder)
    assert not any(type(m) is torch.nn.Linear for m in model.model.modules())
    check_equal(model, expected)


@pytest.mark.parametrize("version", ["gemm", "gemv", "gemv_fast"])
def test_awq_of_any_version_computes_what_it_means(foreign, version):
    settings = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": version}
    skip = ("lm_head", "down_proj") if version == "gemv_fast" else ("lm_head",)  # K = 96
    folder, expected = foreign(
        lambda n, k, seed: awq(n, k, seed=seed, version=version), settings, skip
    )
    with enable("awq"):
        model = load(folder)
    assert type(model.get_submodule(Q_PROJ)) is ladder.Linear
    check_equal(model, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"bits": 4},
        {"bits": 3, "symmetric": False},
        {"bits": 6, "group": -1, "symmetric": False},
        {"bits": 4, "symmetric": False, "order": True},
        {"bits": 8, "form": "int-quantized", "group": -1},
        {"bits": 8, "form": "float-quantized", "group": -1},
        {"bits": 4, "form": "mxfp4-pack-quantized"},
        {"bits": 4, "form": "nvfp4-pack-quantized", "group": 16},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_compressed_tensors_of_any_kind_compute_what_they_mean(foreign, options, monkeypatch):
    """Without the package, whose configuration class transformers cannot even make."""
    monkeypatch.setitem(sys.modules, "compressed_tensors", None)
    folder, expected = foreign(
        lambda n, k, seed: compressed(n, k, seed=seed, **options), compressed_settings(**options)
    )
    with enable("compressed-tensors"):
        model = load(folder)
    assert type(model.get_submodule(Q_PROJ)) is ladder.Linear
    check_equal(model, expected)


def test_a_saved_model_of_compressed_tensors_is_its_repacked_folder(foreign, tmp_path):
    folder, _ = foreign(lambda n, k, seed: compressed(n, k, seed=seed), compressed_settings())
    with enable("compressed-tensors"):
        load(folder).save_pretrained(tmp_path / "saved")
    ladder.checkpoints.repack(folder, tmp_path / "repacked")
    saved, repacked = (
        json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]
        for name in ("saved", "repacked")
    )
    assert saved == repacked
    assert torch.equal(logits(load(tmp_path / "saved")), logits(load(tmp_path / "repacked")))


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
def test_a_quantised_embedding_is_for_repack(tied, foreign, tmp_path):
    settings = compressed_settings()
    settings["config_groups"]["group_0"]["targets"].append("Embedding")
    folder, _ = foreign(lambda n, k, seed: compressed(n, k, seed=seed), settings)

    def change(tensors):
        del tensors["model.embed_tokens.weight"]
        tensors |= {f"model.embed_tokens.{part}": each for part, each in table.tensors.items()}
        if not tied:
            tensors["lm_head.weight"] = torch.ones(128, 64)

    table = compressed(128, 64)
    edit_tensors(folder, change)
    edit_config(folder, tie_word_embeddings=tied)
    with enable(), pytest.raises(Unsupported, match="embed_tokens is a quantised embedding"):
        load(folder)
    with pytest.raises(Unsupported, match="embed_tokens.weight_packed is .* with --embeddings"):
        repack(folder, tmp_path / "refused")
    for head in (False, True):
        repack(folder, tmp_path / f"{head}", embeddings=True, head=head)
        model = load(tmp_path / f"{head}")
        rows, output = model.get_input_embeddings(), model.lm_head
        assert type(rows) is ladder.Embedding and not model.config.tie_word_embeddings
        values = torch.from_numpy(table.weight.astype("float32"))
        assert torch.equal(rows(torch.arange(128)), values)
        assert isinstance(output, ladder.Linear) == (tied and head)
        if tied:
            made = output.dequantize() if head else output
            assert torch.equal(made.weight, values)


def test_a_module_that_dynamic_leaves_out_stays_dense(foreign):
    settings = {
        "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False,
        "dynamic": {r"-:.*\.mlp\..*": {}},
    }  # fmt: skip
    skip = ("lm_head", "up_proj", "gate_proj", "down_proj")
    folder, expected = foreign(lambda n, k, seed: gptq(n, k, seed=seed), settings, skip)
    with enable("gptq"):
        model = load(folder)
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear
    check_equal(model, expected)


def test_damaged_foreign_folders_are_named(gptq_folder, tmp_path):
    def damaged(**changes):
        folder = shutil.copytree(gptq_folder, tmp_path / "model", dirs_exist_ok=True)
        edit_tensors(folder, lambda tensors: [tensors.pop(f"{Q_PROJ}.{p}") for p in changes])
        return folder

    with enable("gptq"):
        for part in ("scales", "qzeros", "qweight"):
            with pytest.raises(CheckpointError, match=f"{Q_PROJ}.{part} is missing"):
                load(damaged(**{part: None}))
        folder = shutil.copytree(gptq_folder, tmp_path / "wide", dirs_exist_ok=True)
        edit_config(folder, hidden_size=512)
        with pytest.raises(CheckpointError, match=r"a weight of \[256, 768\], not \[512, 768"):
            load(folder)


def test_single_experts_of_a_model_that_cannot_fuse_them_are_refused(tmp_path):
    """transformers knows no single projections of gpt-oss: their order in the stacks is not
    known."""
    from safetensors.torch import save_file

    fresh("gpt_oss").save_pretrained(tmp_path)
    expert = "model.layers.0.mlp.experts.0.gate_proj"
    tensors = {f"{expert}.{part}": t for part, t in gptq(96, 64).tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    edit_config(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 32})
    with enable("gptq"), pytest.raises(Unsupported, match="experts in one tensor"):
        load(tmp_path)


def test_enable_and_disable_leave_no_trace():
    from transformers.quantizers import auto

    before = dict(auto.AUTO_QUANTIZER_MAPPING), dict(auto.AUTO_QUANTIZATION_CONFIG_MAPPING)
    assert enabled() == ()
    enable("gptq")
    with enable():  # ends what it began, not what came before
        assert set(enabled()) == set(METHODS)
    assert enabled() == ("gptq",)
    disable()
    after = auto.AUTO_QUANTIZER_MAPPING, auto.AUTO_QUANTIZATION_CONFIG_MAPPING
    assert after == before
    with pytest.raises(InvalidArgument, match='method is "gguf", not one of'):
        enable("gguf")
