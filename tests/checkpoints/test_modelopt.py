# SPDX-License-Identifier: Apache-2.0
"""quant_method "modelopt": folders of each algorithm, to the bit, and what is refused."""

import json
import logging

import pytest
import torch
from checkpoint_oracle import modelopt, modelopt_settings, tensors_of, write_folder
from safetensors.torch import load_file

from ladder import types
from ladder.checkpoints import modelopt as reader
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.layer import stored
from ladder.checkpoints.modelopt import ALGORITHMS, Config
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.serving.stored import Folder
from ladder.weight import Weight

N, K = 192, 320
TYPES = {
    "FP8": "float8_e4m3,tensor,scale=float32",
    "FP8_PER_CHANNEL_PER_TOKEN": "float8_e4m3,channel,scale=float32",
    "FP8_PB_WO": "float8_e4m3,block=128x128,scale=float32",
    "MXFP8": "mxfp8_e4m3",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_AWQ": "int4,group=128,scale=float32",
    "W4A16_NVFP4": "nvfp4",
    "W4A8_AWQ": "int4,group=128,scale=float32",
}
ROUNDED = {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", "W4A8_AWQ"}


@pytest.fixture(params=ALGORITHMS)
def algorithm(request):
    return request.param


def folder_of(drawn, path, settings):
    others = {"mlp.gate.weight": torch.ones(4, 4).half(), "q.k_scale": torch.ones(1)}
    return write_folder(path, settings, [tensors_of(drawn) | others])


def test_a_folder_and_its_repacked_self_mean_what_was_drawn(algorithm, tmp_path):
    truth = modelopt(N, K, algorithm=algorithm)
    source = folder_of({"q": truth}, tmp_path / "a", modelopt_settings(algorithm))
    ((name, direct),) = open_folder(source)
    repack(source, tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    made = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    kept = ("qweight", "scales", "scale2")
    parts = {p: tensors[f"q.{p}"] for p in kept if f"q.{p}" in tensors}
    again = Weight(types.parse(made["weight_type"]), (N, K), **parts)
    for weight in (direct, again):
        weight.check()
        assert str(weight.type) == str(types.parse(TYPES[algorithm]))
        assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight).float())
    assert ("q.input_scale" in tensors) == (algorithm in ("FP8", "W4A8_AWQ"))
    assert ("q.pre_scale" in tensors) == algorithm.endswith("AWQ")
    if algorithm.endswith("AWQ"):
        wanted = truth.tensors["pre_quant_scale"].float()
        assert torch.equal(tensors["q.pre_scale"], wanted)
        assert tensors["q.pre_scale"].dtype == torch.float32
    assert made.get("activation_type") == ("float8_e4m3" if algorithm in ROUNDED else None)
    assert name == "q" and made["modules_to_not_convert"] == ["lm_head", "mlp.gate"]


def test_engines_are_told_the_same_shapes_as_the_files_have(algorithm):
    truth = modelopt(N, K, algorithm=algorithm)
    settings = Config.from_dict(modelopt_settings(algorithm))
    config = settings.for_module("q")
    layer = reader.measure(stored(truth.tensors), config, "q")
    unread = Folder(modelopt_settings(algorithm)).module("q", N, K)
    assert str(unread.type) == str(types.parse(TYPES[algorithm]))
    assert (layer.n, layer.k) == (N, K)
    # Which modules have numbers for columns, and what ladder does not read, configs do not say.
    unsaid = {"pre_quant_scale"} | ({"weight_scale_2"} if algorithm == "W4A8_AWQ" else set())
    assert reader.shapes(N, K, config).keys() == truth.tensors.keys() - unsaid
    for part, (shape, dtype) in reader.shapes(N, K, config).items():
        found = truth.tensors[part]
        assert found.numel() == torch.empty(shape, device="meta").numel(), part
        assert dtype is None or found.element_size() == dtype.itemsize


def test_rows_are_unpacked_in_pieces_of_any_size(monkeypatch, tmp_path):
    truth = modelopt(N, K, algorithm="W4A16_AWQ")
    source = open_folder(folder_of({"q": truth}, tmp_path / "a", modelopt_settings("W4A16_AWQ")))
    layer, whole = source.layer("q"), dict(source)["q"].qweight
    pieces = list(source.words(layer, codes=32 * K))
    assert len(pieces) == N // 32
    for rows, words in pieces:
        assert torch.equal(words, whole[rows])


def test_groups_of_integers_are_those_of_the_settings(tmp_path):
    settings = modelopt_settings("W4A16_AWQ", group_size=64)
    truth = modelopt(N, K, algorithm="W4A16_AWQ")
    with pytest.raises(CheckpointError, match=r"\[192, 3\], not \[192, 5\]"):
        dict(open_folder(folder_of({"q": truth}, tmp_path / "a", settings)))


def test_each_module_may_have_an_algorithm_of_its_own(tmp_path):
    names = {"a": "NVFP4", "b": "FP8", "c": "MXFP8"}
    drawn = {name: modelopt(N, K, algorithm=each) for name, each in names.items()}
    layers = {name: {"quant_algo": each} for name, each in names.items()}
    settings = modelopt_settings("MIXED_PRECISION", quantized_layers=layers)
    found = dict(open_folder(folder_of(drawn, tmp_path / "a", settings)))
    for name, each in names.items():
        assert str(found[name].type) == str(types.parse(TYPES[each]))
    del layers["b"]
    with pytest.raises(CheckpointError, match="b.weight is there, but .* leaves b unquantised"):
        dict(open_folder(folder_of(drawn, tmp_path / "b", settings)))


def test_settings_in_a_file_of_their_own(tmp_path):
    """As older versions have it, whose config.json says nothing."""
    source = folder_of({"q": modelopt(N, K)}, tmp_path / "a", None)
    inner = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    told = {"producer": {"name": "modelopt"}, "quantization": inner}
    (source / "hf_quant_config.json").write_text(json.dumps(told))
    repack(source, tmp_path / "b")
    made = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    assert made["weight_type"] == "nvfp4" or types.parse(made["weight_type"]).scale2
    assert not (tmp_path / "b" / "hf_quant_config.json").exists()


def test_rounding_of_x_that_ladder_does_otherwise_is_said(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "ladder")
    Config.from_dict(modelopt_settings("NVFP4"))
    (record,) = caplog.records
    assert "NVFP4 is float4" in record.getMessage()
    assert "takes activations as they come, and leaves out input_scale" in record.getMessage()


@pytest.mark.parametrize(("settings", "error", "why"), [
    ({"quant_algo": "W8A16"}, Unsupported, "quant_algo is 'W8A16'; ladder reads FP8"),
    ({"quant_algo": None}, Unsupported, "quant_algo is 'NONE'"),
    ({"ignore": "lm_head"}, CheckpointError, "exclude_modules is 'lm_head', not a list"),
    ({"quant_algo": "MIXED_PRECISION"}, CheckpointError, "quantized_layers is None"),
    ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "INT4"}}},
     Unsupported, "quantized_layers.a is 'INT4'"),
    ({"ignore": ["q*"]}, CheckpointError, "leaves q unquantised"),
])  # fmt: skip
def test_settings_that_ladder_cannot_follow(settings, error, why, tmp_path):
    with pytest.raises(error, match=why):
        source = folder_of({"q": modelopt(N, K)}, tmp_path / "a",
                           modelopt_settings("NVFP4") | settings)  # fmt: skip
        dict(open_folder(source))


@pytest.mark.parametrize(("algorithm", "part", "change", "why"), [
    ("NVFP4", "weight_scale", lambda t: t[:, :3].clone(), r"\[192, 3\], not \[192, 20\]"),
    ("NVFP4", "weight_scale_2", lambda t: t.double(), "is F64, not float32"),
    ("NVFP4", "weight_scale_2", lambda t: t / 0, "must be finite"),
    ("NVFP4", "weight_scale_2", None, "weight_scale_2 is missing"),
    ("NVFP4", "weight", lambda t: t.view(torch.int8), "is int8, not uint8"),
    ("FP8", "input_scale", lambda t: -t, "not positive"),
    ("FP8", "weight_scale", lambda t: t.repeat(2), r"\[2\], not \[1\]"),
    ("FP8_PB_WO", "weight_scale", lambda t: t[:1], r"not \[2, 3\]"),
    ("W4A16_AWQ", "pre_quant_scale", lambda t: t[:7].clone(), r"\[7\], not \[320\]"),
    ("NVFP4_AWQ", "pre_quant_scale", lambda t: t / 0, "pre_scale is not finite"),
])  # fmt: skip
def test_damaged_tensors_are_named(algorithm, part, change, why, tmp_path):
    truth = modelopt(N, K, algorithm=algorithm)
    tensor = truth.tensors.pop(part)
    if change is not None:
        truth.tensors[part] = change(tensor)
    source = folder_of({"q": truth}, tmp_path / "a", modelopt_settings(algorithm))
    with pytest.raises(CheckpointError, match=why) as raised:
        repack(source, tmp_path / "b")
    assert "q." in str(raised.value) and not (tmp_path / "b").exists()
