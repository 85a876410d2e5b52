# SPDX-License-Identifier: Apache-2.0
"""Unmodified folders whose activations are quantised, through transformers: what the model computes
is worked out anew from the canonical codes and the rounding that ladder states."""

import json

import numpy as np
import pytest
import torch
from checkpoint_oracle import (
    compressed,
    compressed_settings,
    fp8,
    fp8_settings,
    modelopt,
    modelopt_settings,
)
from hf_models import TINY, edit_config, foreign_folder, load, logits, model_class
from torch import nn

import ladder
from ladder.checkpoints import repack
from ladder.integrations.transformers import dense, disable, enable
from ladder.ops import activations

W8 = {"bits": 8, "form": "int-quantized", "group": -1}
F8 = {"bits": 8, "form": "float-quantized", "group": -1}
NVFP4 = {"bits": 4, "form": "nvfp4-pack-quantized", "group": 16}
W4 = {"bits": 4, "symmetric": False}
UP = "model.layers.0.mlp.up_proj"


@pytest.fixture(autouse=True)
def not_left_enabled():
    yield
    disable()


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory):
    """Of more columns than one k-tile, which products of rounded activations want."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("wide")
    wide = TINY | {"hidden_size": 128, "intermediate_size": 256}
    LlamaForCausalLM(LlamaConfig(**wide)).to(torch.float16).save_pretrained(folder)
    return folder


@pytest.fixture
def foreign(wide_folder, tmp_path):
    """Makes a folder with these weights and activations, and the dense model of the weights."""

    def make(options, scheme):
        options = options | {"activations": scheme}

        def draw(n, k, seed):
            return compressed(n, k, seed=seed, **options)

        settings = compressed_settings(**options)
        return foreign_folder(wide_folder, tmp_path / "foreign", draw, settings)

    return make


def opened(folder):
    with enable("compressed-tensors"):
        return load(folder)


def said(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


class Rounded(nn.Module):
    """The product of :class:`ladder.Linear` with "int8" on the CPU, in float64."""

    def __init__(self, linear):
        super().__init__()
        self.ttype, k = linear.weight_type, linear.in_features
        assert activations.int8(self.ttype, k).exact, "codes keep their values"
        self.values = linear.packed_weight.dequantize().double()

    def forward(self, x):
        rounded = activations.round_activations(x, self.ttype)
        return (rounded.double() @ self.values.T).float()


def rounding(model):
    """``model`` with the products of its packed layers worked out anew."""
    for name, module in list(model.named_modules()):
        if isinstance(module, ladder.Linear):
            model.set_submodule(name, Rounded(module))
    return model


def error(found, wanted):
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def order_of_sums(model):
    """What sums of float32 in another order may change: a rounding for each term of the products
    that a token goes through one after the other. Rounded activations change more than 1e-3."""
    config = model.config
    terms = config.num_hidden_layers * (3 * config.hidden_size + config.intermediate_size)
    return (terms + config.hidden_size) * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("scheme", ["int8", "int8 static", "int8 asymmetric"])
@pytest.mark.parametrize("weights", [W8, W4], ids=["W8", "W4"])
def test_activations_of_int8_are_rounded(foreign, weights, scheme):
    """Logits of rounded and of other activations are 1e-3 apart and more."""
    folder, expected = foreign(weights, scheme)
    model = opened(folder)
    assert model.get_submodule(UP).activation_type == "int8"
    found = logits(model)
    assert error(found, logits(rounding(opened(folder)))) < 2e-5
    plain = logits(expected)
    assert error(found, plain) > 1e-3
    ladder.set_activation_type(model, None)
    assert error(logits(model), plain) < 2e-5


@pytest.mark.parametrize(
    ("weights", "scheme", "kept"),
    [(F8, "float8", "float8_e4m3"), (F8, "float8 static", "float8_e4m3"),
     (F8, "float8 block", "float8_e4m3"), (NVFP4, "nvfp4", None), (NVFP4, "float8", None),
     (W4, "float8", "float8_e4m3"), (W8, "float8", None), (W4, "int4", None),
     (W4 | {"order": True}, "int8", None)],
)  # fmt: skip
def test_where_there_are_no_kernels_activations_are_taken_as_they_come(
    foreign, tmp_path, weights, scheme, kept
):
    """On the CPU; on a GPU as well where the folder says nothing afterwards."""
    folder, expected = foreign(weights, scheme)
    model = opened(folder)
    assert model.get_submodule(UP).activation_type is None
    assert error(logits(model), logits(expected)) < 2e-5
    model.save_pretrained(tmp_path / "saved")
    repack(folder, tmp_path / "repacked")
    assert said(tmp_path / "saved") == said(tmp_path / "repacked")
    assert said(tmp_path / "saved").get("activation_type") == kept
    assert torch.equal(logits(load(tmp_path / "saved")), logits(load(tmp_path / "repacked")))
    model.to("meta")  # stands for any device
    assert model.get_submodule(UP).activation_type == kept


def test_a_saved_model_that_rounds_is_its_repacked_folder(foreign, tmp_path):
    folder, _ = foreign(W8, "int8 static")
    model = opened(folder)
    model.save_pretrained(tmp_path / "saved")
    repack(folder, tmp_path / "repacked")
    assert said(tmp_path / "saved") == said(tmp_path / "repacked")
    assert said(tmp_path / "saved")["activation_type"] == "int8"
    for name in ("saved", "repacked"):
        assert torch.equal(logits(load(tmp_path / name)), logits(model))


def test_layers_round_as_their_group_of_the_config_says(foreign, wide_folder, tmp_path):
    """Those of the second group are weights-only; in the saved folder too."""
    folder, _ = foreign(W8, "int8")
    settings = said(folder)
    plain = compressed_settings(**W8)["config_groups"]["group_0"]
    settings["config_groups"]["b"] = plain | {"targets": ["re:.*up_proj"]}
    edit_config(folder, quantization_config=settings)
    model = opened(folder)
    for name, module in model.named_modules():
        if isinstance(module, ladder.Linear):
            wanted = None if name.endswith("up_proj") else "int8"
            assert module.activation_type == wanted, name
    model.save_pretrained(tmp_path / "saved")
    kept = said(tmp_path / "saved")
    assert kept["activation_types"] == {f"model.layers.{at}.mlp.up_proj": None for at in (0, 1)}
    assert torch.equal(logits(load(tmp_path / "saved")), logits(model))


@pytest.mark.parametrize(("weights", "scheme"), [(W8, "int8 static"), (F8, "float8 static")])
def test_static_scales_are_loaded_saved_and_loaded_again(foreign, tmp_path, weights, scheme):
    folder, _ = foreign(weights, scheme)
    model = opened(folder)
    model.save_pretrained(tmp_path / "saved")
    repack(folder, tmp_path / "repacked")
    again = [load(tmp_path / name) for name in ("saved", "repacked")]
    again.append(load(tmp_path / "saved", dtype=torch.bfloat16))
    with enable("compressed-tensors"):
        again.append(load(folder, dtype=torch.bfloat16))
    for each in (model, *again):
        for name, module in each.named_modules():
            if isinstance(module, ladder.Linear):
                assert torch.equal(module.input_scale, torch.tensor([0.03])), name


def test_layers_without_a_static_scale_are_said(foreign, caplog):
    from safetensors.torch import load_file, save_file

    folder, _ = foreign(W8, "int8 static")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors[f"{UP}.input_scale"]
    save_file(tensors, file, metadata={"format": "pt"})
    model = opened(folder)
    assert model.get_submodule(UP).input_scale is None
    assert model.get_submodule(UP).activation_type == "int8"
    (said,) = (r.getMessage() for r in caplog.records if r.name == "ladder")
    assert said.startswith(f"{UP}: input_scale is missing, though activations are static")


@pytest.mark.parametrize(("scale", "message"), [
    (torch.tensor([0.0]), "input_scale is 0.0, not positive and finite"),
    (torch.tensor([0.5, 0.5]), r"input_scale is torch.float32 \[2\], not torch.float32 \[1\]"),
])  # fmt: skip
def test_a_damaged_static_scale_of_a_ladder_folder_is_named(foreign, tmp_path, scale, message):
    from safetensors.torch import load_file, save_file

    folder, _ = foreign(W8, "int8 static")
    repack(folder, tmp_path / "b")
    file = tmp_path / "b" / "model.safetensors"
    save_file(load_file(file) | {f"{UP}.input_scale": scale}, file, metadata={"format": "pt"})
    with pytest.raises(ladder.CheckpointError, match=message):
        load(tmp_path / "b")


def test_each_reason_is_said_once(foreign, caplog):
    folder, _ = foreign(F8, "float8 block")
    opened(folder)
    scheme, layers = (r.getMessage() for r in caplog.records if r.name == "ladder")
    assert "group_0.input_activations is float8, dynamic, per group of 128" in scheme
    assert "self_attn.q_proj and 13 more: activations are taken as they come" in layers
    assert layers.endswith("for devices of type cuda, and none for cpu")


@pytest.mark.parametrize(
    ("weights", "scheme", "why"),
    [(NVFP4, "float8", "groups of 16 columns are no whole k-steps"),
     (W4 | {"order": True}, "int8", "does not take a weight with g_idx")],
)  # fmt: skip
def test_layers_without_kernels_on_any_device_are_said_too(foreign, caplog, weights, scheme, why):
    folder, _ = foreign(weights, scheme)
    opened(folder)
    (said,) = (r.getMessage() for r in caplog.records if r.name == "ladder")
    assert "_proj and 13 more: activations are taken as they come" in said
    assert why in said


def test_a_model_made_dense_has_the_weights_alone(foreign):
    folder, expected = foreign(W8, "int8")
    assert error(logits(dense(opened(folder))), logits(expected)) < 2e-5


FP8_KINDS = ("blocks", "small blocks", "tensor", "static", "scalar", "channel")


@pytest.mark.parametrize("kind", FP8_KINDS)
def test_fp8_folders_compute_what_they_mean(wide_folder, tmp_path, kind):
    """On the CPU, which takes activations as they come; on a GPU they are float8_e4m3."""
    folder, expected = foreign_folder(
        wide_folder, tmp_path / "foreign", lambda n, k, seed: fp8(n, k, kind=kind, seed=seed),
        fp8_settings(kind),
    )  # fmt: skip
    with enable("fp8"):
        model = load(folder)
    for name, linear in expected.model.named_modules():
        if isinstance(linear, nn.Linear):
            values = model.model.get_submodule(name).packed_weight.dequantize()
            assert torch.equal(values, linear.weight), name
    assert error(logits(model), logits(expected)) < order_of_sums(expected)
    model.save_pretrained(tmp_path / "saved")
    repack(folder, tmp_path / "repacked")
    assert said(tmp_path / "saved") == said(tmp_path / "repacked")
    assert said(tmp_path / "saved")["activation_type"] == "float8_e4m3"
    model.to("meta")
    assert model.get_submodule(UP).activation_type == "float8_e4m3"


def modelopt_in_columns(n, k, algorithm, seed):
    """A layer whose values have what columns of x are multiplied by, which is a power of two."""
    truth = modelopt(n, k, algorithm=algorithm, seed=seed)
    if (columns := truth.tensors.get("pre_quant_scale")) is not None:
        truth.scales = truth.scales[:, truth.group_of] * columns.float().numpy()
        truth.zeros, truth.group_of = np.zeros_like(truth.scales), np.arange(k)
    return truth


@pytest.mark.parametrize("algorithm", ["FP8", "NVFP4", "NVFP4_AWQ", "W4A8_AWQ"])
def test_modelopts_folders_compute_what_they_mean(wide_folder, tmp_path, algorithm):
    folder, expected = foreign_folder(
        wide_folder, tmp_path / "foreign",
        lambda n, k, seed: modelopt_in_columns(n, k, algorithm, seed),
        modelopt_settings(algorithm),
    )  # fmt: skip
    with enable("modelopt"):
        model = load(folder)
    for name, linear in expected.model.named_modules():
        if isinstance(linear, nn.Linear):
            packed = model.model.get_submodule(name)
            assert torch.equal(packed.dequantize(torch.float32).weight, linear.weight), name
            assert (packed.pre_scale is not None) == algorithm.endswith("AWQ")
    assert error(logits(model), logits(expected)) < order_of_sums(expected)
    model.save_pretrained(tmp_path / "saved")
    repack(folder, tmp_path / "repacked")
    assert said(tmp_path / "saved") == said(tmp_path / "repacked")
    wanted = "float8_e4m3" if algorithm in ("FP8", "W4A8_AWQ") else None
    assert said(tmp_path / "saved").get("activation_type") == wanted
    for kind in ("saved", "repacked"):
        again = load(tmp_path / kind)
        state = model.state_dict()
        assert state.keys() == again.state_dict().keys()
        assert all(torch.equal(t, state[name]) for name, t in again.state_dict().items())
    half = load(tmp_path / "saved", dtype=torch.bfloat16)
    scales = [t for name, t in half.state_dict().items() if name.endswith("pre_scale")]
    assert bool(scales) == algorithm.endswith("AWQ")
    assert all(scale.dtype == torch.float32 for scale in scales)


@pytest.mark.parametrize("kind", ["blocks", "scalar"])
def test_fp8_weights_are_those_that_transformers_reads(wide_folder, tmp_path, kind):
    """Without a GPU transformers itself dequantises such folders, to bfloat16."""
    pytest.importorskip("accelerate")
    folder, _ = foreign_folder(
        wide_folder, tmp_path / "foreign", lambda n, k, seed: fp8(n, k, kind=kind, seed=seed),
        fp8_settings(kind),
    )  # fmt: skip
    with enable("fp8"):
        ours = dense(load(folder, dtype=torch.bfloat16))
    theirs = model_class().from_pretrained(folder, dtype=torch.bfloat16)
    for name, linear in theirs.model.named_modules():
        if isinstance(linear, nn.Linear):
            assert torch.equal(ours.model.get_submodule(name).weight, linear.weight), name
