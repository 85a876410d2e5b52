# SPDX-License-Identifier: Apache-2.0
"""``ladder export --format mlx``, against the layers and models that MLX itself has made."""

import json

import pytest
import torch
from mlx_oracle import FIXTURES, MLX, decode, fixture_layers, write_mlx
from safetensors.torch import load_file
from test_export import NAME, K, N, check_same, drawn, ladder_folder, tensors_in

import ladder
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.export import export
from ladder.errors import Unsupported

LAYERS = fixture_layers()


def settings_in(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization"] == config["quantization_config"]
    return config["quantization"]


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_those_that_mlx_made(name, tmp_path):
    """Repacked and exported: the same tensors, byte by byte."""
    settings, parts = LAYERS[name]
    tensors = {f"q_proj.{part}": t for part, t in parts.items() if part != "values"}
    source = write_mlx(tmp_path / "a", tensors, settings)
    repack(source, tmp_path / "ladder")
    export(tmp_path / "ladder", tmp_path / "out", "mlx")
    check_same(tensors_in(tmp_path / "out"), tensors)
    usual = {"group_size": 64, "bits": 4, "mode": "affine"} | settings
    assert settings_in(tmp_path / "out") == usual | {"lm_head": False}


def test_a_model_with_its_embedding_is_what_it_was(tmp_path):
    """Of several types, each with its settings."""
    source = FIXTURES / "llama"
    repack(source, tmp_path / "ladder", embeddings=True)
    export(tmp_path / "ladder", tmp_path / "out", "mlx")
    check_same(tensors_in(tmp_path / "out"), load_file(source / "model.safetensors"))
    before, after = settings_in(source), settings_in(tmp_path / "out")
    usual = {"group_size", "bits", "mode"}
    defaults = {"group_size": 64, "bits": 4, "mode": "affine"}
    assert {key: after[key] for key in usual} == {key: before[key] for key in usual}
    for name in before.keys() - usual:
        assert after[name] == defaults | before[name]
    assert "quant_method" not in after


@pytest.mark.parametrize("type", [
    "uint4,group=64,scale=float16,zero=midpoint", "uint3,group=32,scale=bfloat16,zero=midpoint",
    "uint8,group=128,scale=bfloat16,zero=midpoint", "int6,group=64,scale=float16",
    "int2,group=32,scale=float16", "uint5,group=64,scale=float16,zero=rescale", "mxfp4",
    "mxfp8_e4m3", "float4_e2m1,group=16,scale=float8_e4m3",
])  # fmt: skip
def test_values_are_those_of_the_type(type, tmp_path):
    weight = drawn(type)
    export(ladder_folder(tmp_path / "ladder", {NAME: weight}), tmp_path / "out", "mlx")
    made = tensors_in(tmp_path / "out")
    parts = {
        p: made[f"{NAME}.{p}"] for p in ("weight", "scales", "biases") if f"{NAME}.{p}" in made
    }
    assert torch.equal(decode(parts, settings_in(tmp_path / "out")), weight.dequantize())
    assert settings_in(tmp_path / "out")["lm_head"] is False
    ((_, found),) = open_folder(tmp_path / "out")
    assert torch.equal(found.dequantize(), weight.dequantize())


@pytest.mark.parametrize(("type", "why"), [
    ("uint4,group=64,scale=float16,zero=integer", "whose zero points are the middle"),
    ("uint4,channel,scale=float16,zero=midpoint", "in groups of 32, 64 and 128"),
    ("uint7,group=64,scale=float16,zero=midpoint", "of 1 to 6 and 8 bits"),
    ("uint8,group=128,scale=float32,zero=midpoint", "beside scales of 16 bits"),
    ("nvfp4", "without a second scale"),
    ("nf4,group=64,scale=float16", "it has integers"),
])  # fmt: skip
def test_what_mlx_does_not_hold_is_refused_by_name(type, why, tmp_path):
    source = ladder_folder(tmp_path / "ladder", {NAME: drawn(type)})
    with pytest.raises(Unsupported, match=f"{NAME}: mlx cannot hold a weight of .*{why}"):
        export(source, tmp_path / "out", "mlx")
    assert not (tmp_path / "out").exists()


def test_groups_that_do_not_divide_and_biases_that_are_no_numbers(tmp_path):
    odd = drawn("uint4,group=64,scale=float16,zero=midpoint", k=96)
    source = ladder_folder(tmp_path / "odd", {NAME: odd})
    with pytest.raises(Unsupported, match="64 does not divide 96"):
        export(source, tmp_path / "out", "mlx")
    large = drawn("uint8,group=64,scale=float16,zero=midpoint")
    scales = torch.full_like(large.scales, 1024)
    weight = ladder.Weight(large.type, (N, K), large.qweight, scales)
    source = ladder_folder(tmp_path / "large", {NAME: weight})
    with pytest.raises(Unsupported, match=f"{NAME}: a scale of 1024.0 times 128 is beyond float16"):
        export(source, tmp_path / "out", "mlx")
    assert not (tmp_path / "out").exists()


def test_the_settings_of_most_modules_stand_for_all(tmp_path):
    type = "uint4,group=32,scale=float16,zero=midpoint"
    weights = {f"layers.{i}.up_proj": drawn(type, seed=i) for i in range(3)}
    weights["layers.3.up_proj"] = drawn("mxfp4")
    export(ladder_folder(tmp_path / "ladder", weights), tmp_path / "out", "mlx")
    assert settings_in(tmp_path / "out") == MLX | {
        "layers.3.up_proj": {"group_size": 32, "bits": 4, "mode": "mxfp4"}, "lm_head": False,
    }  # fmt: skip
