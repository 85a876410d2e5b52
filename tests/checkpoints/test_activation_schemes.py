# SPDX-License-Identifier: Apache-2.0
"""What folders of other packages say of activations: what becomes of it, and what is said."""

import json
import logging

import pytest
import torch
from checkpoint_oracle import (
    ACTIVATIONS,
    compressed,
    compressed_settings,
    tensors_of,
    write_folder,
)
from safetensors.torch import load_file

from ladder import CheckpointError
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.compressed_config import Config
from ladder.checkpoints.info import describe

W8 = {"bits": 8, "form": "int-quantized", "group": -1}
F8 = {"bits": 8, "form": "float-quantized", "group": -1}
NVFP4 = {"bits": 4, "form": "nvfp4-pack-quantized", "group": 16}
#: More than one k-tile, which products of rounded activations want.
N, K = 96, 256

#: name: options of the weights, activations, what a repacked folder says, and what the log says.
SCHEMES = {
    "W8A8": (W8, "int8", "int8", None),
    "W4A8": ({"bits": 4}, "int8", "int8", None),
    "W4AFP8": ({"bits": 4}, "float8", "float8_e4m3", None),
    "W4AFP8 with zero points": ({"bits": 4, "symmetric": False}, "float8", "float8_e4m3", None),
    "FP8_DYNAMIC": (F8, "float8", "float8_e4m3", None),
    "W8A8 static": (W8, "int8 static", "int8", None),
    "W8A8 asymmetric": (W8, "int8 asymmetric", "int8", "is int8, static, per tensor, with zero "
                        "points: ladder rounds each token to int8 with a scale of its own, and "
                        "leaves out input_scale and input_zero_point"),
    "FP8": (F8, "float8 static", "float8_e4m3", None),
    "FP8_BLOCK": (F8, "float8 block", "float8_e4m3", "is float8, dynamic, per group of 128 "
                  "columns: ladder rounds each token to float8_e4m3 with a scale of its own"),
    "NVFP4": (NVFP4, "nvfp4", None, "is float4, dynamic in groups, per tensor group of 16 columns: "
              "ladder takes activations as they come, and leaves out input_global_scale"),
    "W4A4": ({"bits": 4}, "int4", None, "is int4, dynamic, per token: ladder takes activations as "
             "they come"),
}  # fmt: skip


def folder_of(path, options, activations, n=N, k=K):
    truth = compressed(n, k, activations=activations, **options)
    settings = compressed_settings(activations=activations, **options)
    return truth, write_folder(path, settings, [tensors_of({"layer": truth})])


def written(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


@pytest.mark.parametrize("name", SCHEMES)
def test_a_folder_repacked_rounds_activations_as_the_scheme_asks(name, tmp_path, caplog):
    options, activations, wanted, _ = SCHEMES[name]
    truth, source = folder_of(tmp_path / "a", options, activations)
    repack(source, tmp_path / "b")
    assert written(tmp_path / "b").get("activation_type") == wanted
    assert "activation_types" not in written(tmp_path / "b")
    for folder in (source, tmp_path / "b"):
        found = describe(folder)
        assert found["activation_type"] == found["modules"][0]["activation_type"] == wanted
    ((_, weight),) = open_folder(source)
    assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight).float())
    found = load_file(tmp_path / "b" / "model.safetensors")
    kept = found.pop("layer.input_scale", None)
    parts = {name.rpartition(".")[2] for name in found}
    assert parts == set(weight.tensors()), "other tensors of activations are left out"
    if name not in ("W8A8 static", "FP8"):
        assert kept is None
        return
    assert kept.dtype == torch.float32 and torch.equal(kept, truth.tensors["input_scale"])


@pytest.mark.parametrize("name", SCHEMES)
def test_what_ladder_does_otherwise_is_said_once_by_name(name, caplog):
    options, activations, _, said = SCHEMES[name]
    with caplog.at_level(logging.INFO, "ladder"):
        Config.from_dict(compressed_settings(activations=activations, **options))
    wanted = [] if said is None else [f"quantization_config.config_groups.group_0."
                                      f"input_activations {said}"]  # fmt: skip
    assert [record.getMessage() for record in caplog.records] == wanted


@pytest.mark.parametrize(
    ("options", "activations", "k", "why"),
    [
        ({"bits": 4, "order": True}, "float8", K, "does not take a weight with g_idx"),
        (W8, "float8", K, "codes of 8 bits are up to 128 from their zero point"),
        (F8, "float8", 40, "x of 8 bits has 40 columns, no multiple of 16"),
        (NVFP4, "float8", K, "groups of 16 columns are no whole k-steps of 32"),
        ({"bits": 4, "order": True}, "int8", K, "int8 does not take a weight with g_idx"),
        (F8, "int8", K, "int8 does not take float8_e4m3"),
    ],
)
def test_a_layer_without_kernels_for_it_takes_activations_as_they_come(
    options, activations, k, why, tmp_path, caplog
):
    _, source = folder_of(tmp_path / "a", options, activations, k=k)
    repack(source, tmp_path / "b")
    assert "activation_type" not in written(tmp_path / "b")
    assert describe(source)["modules"][0]["activation_type"] is None
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("layer: activations are taken as they come, not rounded: ")
    assert why in said


def test_layers_of_one_folder_may_differ(tmp_path):
    """Each group of the config has activations of its own, and one layer of four has no kernels."""
    settings = compressed_settings(activations="int8", **W8)
    groups = settings["config_groups"]
    for name, target, options, activations in (
        ("b", "re:.*down", F8, "float8"), ("c", "re:.*gate", {"bits": 4}, None),
    ):  # fmt: skip
        of = compressed_settings(activations=activations, **options)
        groups[name] = of["config_groups"]["group_0"] | {"targets": [target]}
        groups[name]["format"] = of["format"]
    layers = {
        "q": compressed(N, K, seed=1, **W8), "o": compressed(N, K, seed=2, **W8),
        "up": compressed(N, K, seed=3, **W8), "down": compressed(N, K, seed=4, **F8),
        "gate": compressed(N, K, seed=5), "narrow_down": compressed(N, 40, seed=6, **F8),
    }  # fmt: skip
    repack(write_folder(tmp_path / "a", settings, [tensors_of(layers)]), tmp_path / "b")
    made = written(tmp_path / "b")
    assert made["activation_type"] == "int8"
    assert made["activation_types"] == {"down": "float8_e4m3", "gate": None, "narrow_down": None}
    found = {m["name"]: m["activation_type"] for m in describe(tmp_path / "b")["modules"]}
    assert found == dict.fromkeys(layers, "int8") | made["activation_types"]


def test_a_folder_may_be_repacked_for_its_weights_only(tmp_path):
    _, source = folder_of(tmp_path / "a", W8, "int8")
    repack(source, tmp_path / "b", weights_only=True)
    assert "activation_type" not in written(tmp_path / "b")


def test_a_static_scale_goes_with_what_is_rounded(tmp_path):
    """Not where no device has kernels for it, nor where weights alone are asked for."""
    _, source = folder_of(tmp_path / "a", F8, "float8 static", k=40)
    repack(source, tmp_path / "b")
    _, source = folder_of(tmp_path / "c", F8, "float8 static")
    repack(source, tmp_path / "d", weights_only=True)
    for folder in ("b", "d"):
        assert "layer.input_scale" not in load_file(tmp_path / folder / "model.safetensors")


def test_layers_without_their_static_scale_are_said(tmp_path, caplog):
    layers = {name: compressed(N, K, activations="int8 static", **W8) for name in ("q", "k", "v")}
    for name in ("q", "v"):
        del layers[name].tensors["input_scale"]
    settings = compressed_settings(activations="int8 static", **W8)
    repack(write_folder(tmp_path / "a", settings, [tensors_of(layers)]), tmp_path / "b")
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("q and 1 more: input_scale is missing, though activations are static")
    found = load_file(tmp_path / "b" / "model.safetensors")
    assert [name for name in found if name.endswith("input_scale")] == ["k.input_scale"]
    assert written(tmp_path / "b")["activation_type"] == "int8"


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.tensor([0.0]), r"layer.input_scale is 0.0, not positive and finite"),
        (torch.tensor([-0.5]), r"layer.input_scale is -0.5, not positive"),
        (torch.tensor([float("nan")]), r"layer.input_scale is nan, not positive"),
        (torch.tensor([0.5, 0.25]), r"layer.input_scale has shape \[2\], not \[1\]"),
        (torch.tensor([3]), r"layer.input_scale is int64, not"),
    ],
)
def test_a_damaged_static_scale_is_named_with_its_value(scale, message, tmp_path):
    truth = compressed(N, K, activations="float8 static", **F8)
    truth.tensors["input_scale"] = scale
    settings = compressed_settings(activations="float8 static", **F8)
    source = write_folder(tmp_path / "a", settings, [tensors_of({"layer": truth})])
    with pytest.raises(CheckpointError, match=message):
        repack(source, tmp_path / "b")
    if "not positive" in message:  # it is not kept
        repack(source, tmp_path / "c", weights_only=True)


def test_activations_of_dense_layers_are_left_as_they_are(caplog):
    settings = compressed_settings(activations="float8", **F8)
    settings["config_groups"]["a"] = {
        "targets": ["re:vision"], "weights": None, "input_activations": ACTIVATIONS["float8"],
    }  # fmt: skip
    assert Config.from_dict(settings).for_module("vision.up") is None
    assert "group_0" not in caplog.text
    assert "a.input_activations is float8, dynamic, per token of layers whose" in caplog.text


def test_every_scheme_names_the_tensors_that_its_layers_have():
    """Without headers the config says which tensors an engine is given."""
    from ladder.checkpoints import compressed_tensors

    for options, activations, *_ in SCHEMES.values():
        settings = compressed_settings(activations=activations, **options)
        scheme = Config.from_dict(settings).for_module("layer")
        truth = compressed(N, K, activations=activations, **options)
        assert compressed_tensors.shapes(N, K, scheme).keys() == truth.tensors.keys()
